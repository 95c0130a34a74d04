//! Whether two patterns of paths may match the same path.

use globset::{GlobBuilder, GlobMatcher};

/// Conservative: `true` if a common path is possible or cannot be excluded, `false` only if there is
/// none.
///
/// The patterns are compared part by part between slashes. `**` stands for any number of parts. A
/// part without wildcards is matched by the other one; two parts with wildcards are compared by the text before their first wildcard and after their last
/// one: `a*.rs` and `*b.rs` may both match `ab.rs`, `*.rs` and `*.md` exclude each other.
pub(crate) fn may_overlap(one: &str, two: &str) -> bool {
    parts_may_overlap(&parts(one), &parts(two))
}

fn parts(pattern: &str) -> Vec<&str> {
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    let mut parts = Vec::new();
    for part in pattern.split('/').filter(|part| !part.is_empty()) {
        // A part that is not valid on its own ends inside of alternatives or a class: anything may follow.
        if glob(part).is_none() {
            parts.push("**");
            break;
        }
        parts.push(part);
    }
    parts
}

fn parts_may_overlap(one: &[&str], two: &[&str]) -> bool {
    // `table[a][b]`: whether the last `a` and `b` parts may match the same path.
    let mut table = vec![vec![false; two.len() + 1]; one.len() + 1];
    for a in 0..=one.len() {
        for b in 0..=two.len() {
            let (first, second) = (
                one.len().checked_sub(a).filter(|_| a > 0).map(|at| one[at]),
                two.len().checked_sub(b).filter(|_| b > 0).map(|at| two[at]),
            );
            table[a][b] = match (first, second) {
                (None, None) => true,
                // `**` matches nothing here, or the first part of the other pattern.
                (Some("**"), _) => table[a - 1][b] || (b > 0 && table[a][b - 1]),
                (_, Some("**")) => table[a][b - 1] || (a > 0 && table[a - 1][b]),
                (Some(first), Some(second)) => {
                    part_may_overlap(first, second) && table[a - 1][b - 1]
                }
                _ => false,
            };
        }
    }
    table[one.len()][two.len()]
}

pub(crate) const WILDCARDS: [char; 5] = ['*', '?', '[', '{', '\\'];

fn part_may_overlap(one: &str, two: &str) -> bool {
    let fixed = |part: &str| {
        let first = part.find(WILDCARDS);
        let prefix = first.map_or(part, |first| &part[..first]).to_owned();
        let last = part.rfind(['*', '?', ']', '}', '\\']);
        // An escaped character belongs to the wildcard.
        let suffix = last.map_or("", |last| part[last..].get(1..).unwrap_or_default());
        let is_escape = last.is_some_and(|last| part[last..].starts_with('\\'));
        let suffix = if is_escape { "" } else { suffix }.to_owned();
        (first.is_some(), prefix, suffix)
    };
    let (is_pattern, prefix, suffix) = fixed(one);
    let (is_other_pattern, other_prefix, other_suffix) = fixed(two);
    match (is_pattern, is_other_pattern) {
        (false, false) => one == two,
        (true, false) => may_match(one, two),
        (false, true) => may_match(two, one),
        (true, true) => {
            let agree = |a: &str, b: &str| a.starts_with(b) || b.starts_with(a);
            let agree_at_end = |a: &str, b: &str| a.ends_with(b) || b.ends_with(a);
            agree(&prefix, &other_prefix) && agree_at_end(&suffix, &other_suffix)
        }
    }
}

fn may_match(pattern: &str, text: &str) -> bool {
    glob(pattern).is_none_or(|glob| glob.is_match(text))
}

fn glob(pattern: &str) -> Option<GlobMatcher> {
    let glob = GlobBuilder::new(pattern).literal_separator(true).build();
    Some(glob.ok()?.compile_matcher())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(one: &str, two: &str, expected: bool) {
        assert_eq!(may_overlap(one, two), expected, "{one} and {two}");
        assert_eq!(may_overlap(two, one), expected, "{two} and {one}");
    }

    #[test]
    fn patterns_are_compared_part_by_part() {
        check("src/main.rs", "src/main.rs", true);
        check("src/main.rs", "./src/main.rs", true);
        check("src/main.rs", "src/lib.rs", false);
        check("src/*.rs", "src/main.rs", true);
        check("src/*.rs", "src/a/main.rs", false);
        check("src/**", "src/a/main.rs", true);
        check("**/*.rs", "src/**", true);
        check("**/*.rs", "**/*.md", false);
        check("docs/**", "src/**", false);
        check("a*.rs", "*b.rs", true);
        check("src/{a,b}.rs", "src/c.rs", false);
        check("src/{a,b}*", "src/c.md", false);
        check("src/{a,b}*", "src/c*", true);
        check("src/{a/x,b}.rs", "src/a/x.rs", true);
        check("**", "anything/at/all", true);
    }

    /// If a path matches both patterns, they overlap.
    #[test]
    fn no_common_path_is_missed() {
        let patterns = [
            "*", "**", "a", "a/b", "a/*", "*/b", "a/**", "**/b", "a?", "[ab]", "[!a]/b", "{a,b}",
            "{a,b}/c", "a{b,/c}", "a*b", "ab*", "*ab", "**/a/**", "a/**/b", "\\a", "a\\b",
        ];
        let with_slashes_inside = ["{a,b}/{c/ab,b}", "{c,{b},a/b}", "{b\\}/a,a}", "a[/b]b"];
        let patterns: Vec<&str> = patterns.into_iter().chain(with_slashes_inside).collect();
        let letters = ["a", "b", "c", "ab", "ba", "aab", "abb"];
        let mut paths: Vec<String> = letters.map(str::to_owned).to_vec();
        for first in letters {
            for second in letters {
                paths.push(format!("{first}/{second}"));
                paths.extend(letters.map(|third| format!("{first}/{second}/{third}")));
            }
        }
        let compiled = patterns.iter().map(|pattern| glob(pattern).unwrap());
        let compiled: Vec<GlobMatcher> = compiled.collect();
        for (one, matches_one) in patterns.iter().zip(&compiled) {
            for (two, matches_two) in patterns.iter().zip(&compiled) {
                let common = paths
                    .iter()
                    .find(|path| matches_one.is_match(path) && matches_two.is_match(path));
                if let Some(path) = common {
                    assert!(may_overlap(one, two), "{one} and {two} have {path}");
                }
            }
        }
    }
}
