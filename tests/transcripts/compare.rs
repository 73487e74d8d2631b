//! What of a recorded answer is not in another one.

use serde_json::Value;

/// What stands for ids, versions and moments in the recording.
const PLACEHOLDERS: [&str; 3] = ["UID", "RV", "TIME"];

/// Collects where `actual` lacks what `expected` has, or says it otherwise. Absent and null are one, and so are absent and
/// empty; lists of conditions and of causes are sets (a real server says one cause as often as it comes across it).
pub(crate) fn differences(expected: &Value, actual: &Value, at: &str, found: &mut Vec<(String, String)>) {
    match (expected, actual) {
        (Value::Null, _) => {}
        (Value::Object(fields), Value::Null) if fields.is_empty() => {}
        (Value::Object(fields), Value::Object(_)) => {
            for (key, value) in fields {
                differences(value, actual.get(key).unwrap_or(&Value::Null), &format!("{at}/{key}"), found);
            }
        }
        (Value::Array(items), Value::Array(others)) if is_set(items) => {
            for item in items {
                let name = identity(item);
                match others.iter().find(|other| identity(other) == name) {
                    Some(other) => differences(item, other, &format!("{at}/{name}"), found),
                    None => found.push((format!("{at}/{name}"), "is not there".to_owned())),
                }
            }
        }
        (Value::Array(items), Value::Array(others)) => {
            if items.len() != others.len() {
                found.push((at.to_owned(), format!("{} for {} items", others.len(), items.len())));
            }
            for (index, (item, other)) in items.iter().zip(others).enumerate() {
                differences(item, other, &format!("{at}/{index}"), found);
            }
        }
        (Value::String(text), Value::String(other)) if fits(text, other) => {}
        (expected, actual) if expected == actual => {}
        (expected, actual) => found.push((at.to_owned(), format!("{actual} for {expected}"))),
    }
}

fn is_set(items: &[Value]) -> bool {
    items
        .iter()
        .all(|item| item.get("type").is_some() || item.get("reason").is_some() && item.get("field").is_some())
}

fn identity(item: &Value) -> String {
    let part = |key| item.get(key).and_then(Value::as_str).unwrap_or_default();
    format!("{}{}", part("type"), part("field"))
}

/// Whether a text is the recorded one, with anything in the places of ids, versions and moments.
fn fits(recorded: &str, actual: &str) -> bool {
    let marked =
        PLACEHOLDERS.iter().fold(recorded.to_owned(), |text, placeholder| text.replace(placeholder, "\u{0}"));
    let mut parts = marked.split('\u{0}');
    let Some(mut rest) = parts.next().and_then(|first| actual.strip_prefix(first)) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        let found =
            if parts.peek().is_none() && part.is_empty() { Some(rest.len()) } else { rest.find(part) };
        match found {
            Some(index) if index > 0 => rest = &rest[index + part.len()..],
            _ => return false,
        }
    }
    rest.is_empty()
}

#[test]
fn placeholders_stand_for_something() {
    assert!(fits("a UID b", "a 1-2 b") && fits("TIME", "12:00") && fits("same", "same"));
    assert!(!fits("a UID b", "a  c") && !fits("TIME", "") && !fits("same", "other") && !fits("a UID", "b 1"));
}
