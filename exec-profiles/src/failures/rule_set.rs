//! The rules of one profile, ready to be matched.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, SystemTime};

use exec_core::{FailureClassifier, FailureKind, FailureMatch};

use super::failure_rule::{FailureClass, FailureRule};

/// The label of the rules for every agent.
const COMMON: &str = "common";

/// The rules of the built-in profiles, by label; `common` holds for every agent.
static BUILT_IN: LazyLock<BTreeMap<String, Vec<FailureRule>>> = LazyLock::new(|| {
    let parsed = toml_edit::de::from_str(include_str!("failures.toml"));
    // A test proves that the file is valid. Without rules every failure is of class `agent`.
    parsed.unwrap_or_else(|error| {
        tracing::error!(%error, "the built-in failure rules are invalid");
        BTreeMap::new()
    })
});

/// The rules for a built-in profile, or the common rules alone.
pub(crate) fn built_in_rules(label: &str) -> Vec<FailureRule> {
    let of = |label: &str| BUILT_IN.get(label).cloned().unwrap_or_default();
    let mut rules = of(label);
    if label != COMMON {
        rules.extend(of(COMMON));
    }
    rules
}

/// Rules with their texts in lower case.
#[derive(Clone, Debug)]
pub(crate) struct RuleSet(Arc<[FailureRule]>);

impl RuleSet {
    pub(crate) fn new(rules: &[FailureRule]) -> Self {
        let lower = |text: &String| text.to_lowercase();
        let rules = rules.iter().map(|rule| FailureRule {
            contains: rule.contains.iter().map(lower).collect(),
            reset_epoch_after: rule.reset_epoch_after.as_ref().map(lower),
            reset_in_after: rule.reset_in_after.as_ref().map(lower),
            ..rule.clone()
        });
        Self(rules.collect())
    }

    fn find(&self, text: &str, now: SystemTime) -> Option<FailureMatch> {
        let text = text.to_lowercase();
        let matches = |rule: &&FailureRule| rule.contains.iter().all(|part| text.contains(part));
        let matching: Vec<_> = self.0.iter().filter(matches).collect();
        let is_mark = |rule: &&&FailureRule| rule.retry && rule.class == FailureClass::Agent;
        let decides = matching.iter().find(|rule| !is_mark(rule));
        let rule = decides.or(matching.first())?;
        let mut kind = FailureKind::from(rule.class);
        if rule.class == FailureClass::Limited {
            let after = |marker: &Option<String>| {
                let marker = marker.as_deref()?;
                Some(&text[text.find(marker)? + marker.len()..])
            };
            let epoch = after(&rule.reset_epoch_after).and_then(epoch);
            let span = after(&rule.reset_in_after).and_then(time_span);
            kind = FailureKind::Limited {
                scope: rule.scope.clone(),
                resets_at: epoch.or_else(|| now.checked_add(span?)),
            };
        }
        Some(FailureMatch {
            kind,
            retries: matching.iter().any(|rule| rule.retry),
        })
    }
}

impl FailureClassifier for RuleSet {
    fn classify(&self, text: &str) -> Option<FailureMatch> {
        self.find(text, SystemTime::now())
    }
}

/// `1750708800`, in seconds or milliseconds.
fn epoch(text: &str) -> Option<SystemTime> {
    let digits = text.find(|c: char| !c.is_ascii_digit());
    let number: u64 = text[..digits.unwrap_or(text.len())].parse().ok()?;
    let seconds = match number {
        // In milliseconds since 2001; in seconds beyond the year 30000.
        1_000_000_000_000.. => number / 1000,
        seconds => seconds,
    };
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// `2 days 17 hours 14 minutes`, `1h2m3s`, `34.07s`. `None` for a span beyond all times: the text is
/// the agent's.
fn time_span(text: &str) -> Option<Duration> {
    let mut rest = text.trim_start();
    let mut total = None;
    loop {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        let (number, after) = rest.split_at(end.unwrap_or(rest.len()));
        let after = after.trim_start();
        let end = after.find(|c: char| !c.is_ascii_alphabetic());
        let (unit, after) = after.split_at(end.unwrap_or(after.len()));
        let seconds = match unit {
            "ms" => 0.001,
            "s" | "sec" | "secs" | "second" | "seconds" => 1.0,
            "m" | "min" | "mins" | "minute" | "minutes" => 60.0,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3600.0,
            "d" | "day" | "days" => 86400.0,
            _ => return total,
        };
        let Ok(number) = number.parse::<f64>() else {
            return total;
        };
        let part = Duration::try_from_secs_f64(number * seconds).ok()?;
        total = Some(total.unwrap_or(Duration::ZERO).checked_add(part)?);
        rest = after.trim_start_matches([' ', ',']);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_rules_are_valid() {
        let rules: BTreeMap<String, Vec<FailureRule>> =
            toml_edit::de::from_str(include_str!("failures.toml")).unwrap();
        assert!(rules.contains_key("common"));
        for (label, rules) in &rules {
            for rule in rules {
                assert_eq!(rule.check(), Ok(()), "{label}: {rule:?}");
            }
        }
    }

    #[test]
    fn the_first_matching_rule_decides_and_any_rule_tells_of_a_retry() {
        let mut retry = FailureRule::new(["Again"], FailureClass::Agent);
        retry.retry = true;
        let rules = RuleSet::new(&[
            FailureRule::new(["BUSY", "server"], FailureClass::Overloaded),
            FailureRule::new(["busy"], FailureClass::Network),
            retry,
        ]);
        let found = |text: &str| rules.classify(text).map(|m| (m.kind, m.retries));
        assert_eq!(
            found("Server is Busy"),
            Some((FailureKind::Overloaded, false))
        );
        assert_eq!(found("busy, again"), Some((FailureKind::Network, true)));
        assert_eq!(found("again"), Some((FailureKind::Agent, true)));
        assert_eq!(found("fine"), None);
    }

    #[test]
    fn the_time_of_a_reset_is_read_after_its_marker() {
        let mut rule = FailureRule::new(["limit"], FailureClass::Limited);
        rule.scope = Some("week".into());
        rule.reset_epoch_after = Some("at |".into());
        rule.reset_in_after = Some("In ".into());
        let rules = RuleSet::new(&[rule]);
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        for (text, seconds) in [
            ("limit at |1750708800 x", Some(750_708_800)),
            ("limit at |1750708800123", Some(750_708_800)),
            ("limit at |soon", None),
            ("limit in 2 days 17 hours 14 minutes.", Some(234_840)),
            ("limit in 1h2m3s", Some(3723)),
            ("limit in 34.5s", Some(34)),
            ("limit in a while", None),
            ("limit in 99999999999999999999 days", None),
            ("limit in 10000000000000000000s 10000000000000000000s", None),
            ("limit", None),
        ] {
            let Some(FailureKind::Limited { scope, resets_at }) =
                rules.find(text, now).map(|found| found.kind)
            else {
                panic!("{text}");
            };
            assert_eq!(scope.as_deref(), Some("week"));
            let in_seconds = resets_at.map(|at| at.duration_since(now).unwrap().as_secs());
            assert_eq!(in_seconds, seconds, "{text}");
        }
    }
}
