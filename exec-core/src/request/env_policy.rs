/// Which of the host's variables a child inherits. A name that ends in `*` stands for every name
/// with that prefix.
///
/// The variables of the command and of the service are added afterwards, whatever the
/// policy.
///
/// ```
/// use exec_core::EnvPolicy;
///
/// let policy = EnvPolicy::AllExcept(vec!["AWS_*".to_owned()]);
/// assert!(policy.passes("PATH"));
/// assert!(!policy.passes("AWS_SECRET_ACCESS_KEY"));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum EnvPolicy {
    /// All variables.
    #[default]
    All,
    /// All but these.
    AllExcept(Vec<String>),
    /// Only these. Most programs need at least `PATH` and `HOME`.
    Only(Vec<String>),
}

impl EnvPolicy {
    /// Whether a variable of this name is inherited.
    pub fn passes(&self, name: &str) -> bool {
        let listed = |names: &[String]| {
            names.iter().any(|listed| match listed.strip_suffix('*') {
                Some(prefix) => name.starts_with(prefix),
                None => name == listed,
            })
        };
        match self {
            Self::All => true,
            Self::AllExcept(names) => !listed(names),
            Self::Only(names) => listed(names),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(policy: EnvPolicy, name: &str, expected: bool) {
        assert_eq!(policy.passes(name), expected, "{policy:?} {name}");
    }

    #[test]
    fn a_policy_decides_by_name_and_prefix() {
        let names = || vec!["HOME".to_owned(), "LC_*".to_owned()];
        check(EnvPolicy::All, "ANY", true);
        check(EnvPolicy::Only(names()), "HOME", true);
        check(EnvPolicy::Only(names()), "HOMER", false);
        check(EnvPolicy::Only(names()), "LC_ALL", true);
        check(EnvPolicy::AllExcept(names()), "LC_ALL", false);
        check(EnvPolicy::AllExcept(names()), "PATH", true);
    }
}
