//! Changes JSON by its structure: other kinds of values, keys that are missing, renamed or there twice, depth and width.

use fastrand::Rng;
use serde_json::{Map, Value};

use crate::mutate::FIGURES;

/// Stands where text that is no JSON value of serde's goes.
const HOLE: &str = "\u{1}hole\u{1}";

/// The JSON text with one change; `None` if it is none.
pub(crate) fn mutated(input: &[u8], words: &[&str], rng: &mut Rng) -> Option<Vec<u8>> {
    // Long ones are changed as bytes: this is to be quick.
    let mut value: Value = serde_json::from_slice(input.get(..input.len().min(1 << 14))?).ok()?;
    let mut fill = String::new();
    let target = rng.usize(..count(&value));
    change(&mut value, &mut target.clone(), words, &mut fill, rng);
    let mut text = value.to_string();
    if !fill.is_empty() {
        text = text.replacen(&format!("{HOLE:?}").replace("\\u{1}", "\\u0001"), &fill, 1);
    }
    Some(text.into_bytes())
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(items) => items.iter().map(count).sum(),
        Value::Object(members) => members.values().map(count).sum(),
        _ => 0,
    }
}

/// Changes the value that is `left` steps further on.
fn change(value: &mut Value, left: &mut usize, words: &[&str], fill: &mut String, rng: &mut Rng) -> bool {
    if *left == 0 {
        here(value, words, fill, rng);
        return true;
    }
    *left -= 1;
    match value {
        Value::Array(items) => items.iter_mut().any(|item| change(item, left, words, fill, rng)),
        Value::Object(members) => members.values_mut().any(|member| change(member, left, words, fill, rng)),
        _ => false,
    }
}

fn here(value: &mut Value, words: &[&str], fill: &mut String, rng: &mut Rng) {
    let word = |rng: &mut Rng| if words.is_empty() { "a" } else { words[rng.usize(..words.len())] };
    match rng.u8(..12) {
        0 => *value = Value::Null,
        1 => *value = Value::Bool(rng.bool()),
        2 => *value = Value::Array(vec![value.take(); rng.usize(..4)]),
        3 => *value = Value::Object(Map::from_iter([(word(rng).to_owned(), value.take())])),
        4 => *value = Value::String(word(rng).to_owned()),
        5 => {
            // A figure as it stands, that need not fit into any of serde's.
            FIGURES[rng.usize(..FIGURES.len())].clone_into(fill);
            *value = Value::String(HOLE.to_owned());
        }
        6 => *value = Value::String(FIGURES[rng.usize(..FIGURES.len())].to_owned()),
        7 => *value = Value::String(word(rng).repeat(1 << rng.u32(..12))),
        8 => {
            let depth = 1 << rng.u32(..14);
            *fill = format!("{}{value}{}", "[".repeat(depth), "]".repeat(depth));
            *value = Value::String(HOLE.to_owned());
        }
        9 => {
            // A key twice, with another value.
            if let Value::Object(members) = value
                && let Some(key) = members.keys().nth(rng.usize(..members.len().max(1)))
            {
                let key = Value::from(key.as_str());
                let rest = Value::Object(members.clone()).to_string();
                let figure = FIGURES[rng.usize(..FIGURES.len())];
                *fill = format!("{{{key}:{figure:?},{}", &rest[1..]);
                *value = Value::String(HOLE.to_owned());
            }
        }
        10 => {
            if let Value::Object(members) = value
                && let Some(key) = members.keys().nth(rng.usize(..members.len().max(1))).cloned()
            {
                let taken = members.remove(&key).unwrap_or_default();
                if rng.bool() {
                    members.insert(word(rng).to_owned(), taken);
                }
            }
        }
        _ => {
            if let Value::String(text) = value {
                let at = text.floor_char_boundary(rng.usize(..=text.len()));
                text.insert_str(at, ["\0", "\n", "\u{202e}", "\u{1b}[2J", "é", "\"", "😀"][rng.usize(..7)]);
            }
        }
    }
}
