//! Settings of the user and settings of a launch in one JSON value.

use serde_json::Value;

/// Adds `ours` to `theirs`: objects by key, lists one after the other. For other values that of the user counts.
pub(super) fn merge(theirs: Value, ours: Value) -> Value {
    match (theirs, ours) {
        (Value::Object(mut theirs), Value::Object(ours)) => {
            for (key, value) in ours {
                let merged = match theirs.remove(&key) {
                    Some(known) => merge(known, value),
                    None => value,
                };
                theirs.insert(key, merged);
            }
            Value::Object(theirs)
        }
        (Value::Array(mut theirs), Value::Array(ours)) => {
            theirs.extend(ours);
            Value::Array(theirs)
        }
        (Value::Null, ours) => ours,
        (theirs, _) => theirs,
    }
}

/// Reads JSON as the agents do: with comments, and with commas before a closing bracket.
pub(super) fn parse_lenient(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).or_else(|_| serde_json::from_str(&strip(text)))
}

/// Removes comments and trailing commas outside of strings. Newlines stay, so that an error names its line.
fn strip(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    let mut is_string = false;
    while let Some(c) = chars.next() {
        match c {
            '\\' if is_string => {
                out.push(c);
                out.extend(chars.next());
            }
            '"' => {
                is_string = !is_string;
                out.push(c);
            }
            '/' if !is_string && chars.peek() == Some(&'/') => {
                while chars.next_if(|c| *c != '\n').is_some() {}
            }
            '/' if !is_string && chars.peek() == Some(&'*') => {
                let mut before = ' ';
                for c in chars.by_ref().skip(1) {
                    if c == '\n' {
                        out.push(c);
                    }
                    if before == '*' && c == '/' {
                        break;
                    }
                    before = c;
                }
            }
            '}' | ']' if !is_string => {
                let end = out.trim_end().len();
                if out[..end].ends_with(',') {
                    out.replace_range(end - 1..end, " ");
                }
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nothing_of_the_user_is_lost() {
        let theirs = json!({"hooks": {"Stop": [1], "Other": [2]}, "theme": "dark", "plugin": ["mine"], "empty": null});
        let ours = json!({"hooks": {"Stop": [3]}, "theme": "light", "plugin": ["bus"], "new": true, "empty": 1});
        let expected = json!({"hooks": {"Stop": [1, 3], "Other": [2]}, "theme": "dark", "plugin": ["mine", "bus"], "new": true, "empty": 1});
        assert_eq!(merge(theirs, ours), expected);
    }

    #[test]
    fn comments_and_trailing_commas_are_read() {
        let text = "{ // \"a\n \"url\": \"http://x//y\", /* [ \n ** */ \"list\": [1, 2, ], \"q\": \"\\\"//,}\",\n}";
        let expected = json!({"url": "http://x//y", "list": [1, 2], "q": "\"//,}"});
        assert_eq!(parse_lenient(text).unwrap(), expected);
        assert_eq!(parse_lenient("{\n\n x").unwrap_err().line(), 3);
        assert!(parse_lenient("/*").is_err() && parse_lenient("").is_err());
    }
}
