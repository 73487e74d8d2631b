//! Changes inputs: bytes, figures, words, depth, length, and JSON by its structure.

use fastrand::Rng;

use crate::json;

/// Figures at the ends of what fits.
pub(crate) const FIGURES: &[&str] = &[
    "0",
    "-0",
    "-1",
    "1e999",
    "-1e999",
    "1e-999",
    "0.1",
    "127",
    "128",
    "255",
    "65536",
    "2147483647",
    "2147483648",
    "-2147483649",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    "18446744073709551615",
    "18446744073709551616",
    "99999999999999999999999999999999999999999",
    "NaN",
    "Infinity",
    "1970-01-01T00:00:00Z",
    "9999-12-30T22:00:00Z",
    "-009999-01-02T01:59:59Z",
    "2026-02-30T25:61:61Z",
];

/// Bytes that mean something somewhere, or are no UTF-8.
const BYTES: &[&[u8]] = &[
    b"\0",
    b"\n",
    b"\r\n",
    b"\t",
    b"\x1b[2J",
    b"\x7f",
    b"\xff",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    b"\xf4\x90\x80\x80",
    b"\"",
    b"\\",
    b"/",
    b":",
    b",",
    b"=",
    b"-",
    b"%",
    b"{",
    b"}",
    b"[",
    b"]",
    b"\\u0000",
    b"\\ud800",
    "é".as_bytes(),
    "\u{202e}".as_bytes(),
    "\u{feff}".as_bytes(),
    "\u{1f600}".as_bytes(),
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x7f",
    b"\xff\xff\xff\xff\x0f",
];

/// An input made from one of the pool by a few changes, no longer than `largest`.
pub(crate) fn mutated(pool: &[Vec<u8>], words: &[&str], largest: usize, rng: &mut Rng) -> Vec<u8> {
    let mut input = pool[rng.usize(..pool.len())].clone();
    // Most inputs are changed a little, so that they come far.
    for _ in 0..=rng.u32(..4).min(rng.u32(..4)) {
        if rng.bool()
            && let Some(changed) = json::mutated(&input, words, rng)
        {
            input = changed;
        } else {
            change(&mut input, pool, words, largest, rng);
        }
    }
    input.truncate(largest);
    input
}

/// Changes bytes.
fn change(input: &mut Vec<u8>, pool: &[Vec<u8>], words: &[&str], largest: usize, rng: &mut Rng) {
    let (from, to) = part(input, rng);
    match rng.u8(..13) {
        0 if !input.is_empty() => input[from.min(to.saturating_sub(1))] ^= 1 << rng.u8(..8),
        1 if !input.is_empty() => input[from.min(to.saturating_sub(1))] = rng.u8(..),
        2 => drop(input.drain(from..to)),
        3 => {
            let copy = input[from..to].to_vec();
            input.splice(to..to, copy);
        }
        4 => {
            let other = &pool[rng.usize(..pool.len())];
            let (start, end) = part(other, rng);
            input.splice(from..to, other[start..end].iter().copied());
        }
        5 => {
            let bytes = BYTES[rng.usize(..BYTES.len())];
            input.splice(from..from, bytes.iter().copied());
        }
        6 if !words.is_empty() => {
            let word = words[rng.usize(..words.len())];
            input.splice(from..to, word.bytes());
        }
        7 | 8 => figure(input, rng),
        9 => input.truncate(from),
        10 => {
            let made: Vec<u8> = (0..rng.usize(..40)).map(|_| rng.u8(..)).collect();
            input.splice(from..from, made);
        }
        11 if rng.u8(..8) == 0 => {
            // Depth.
            let (open, close) = [("[", "]"), ("{\"a\":", "}"), ("(", ")")][rng.usize(..3)];
            let depth = 1 << rng.u32(..14);
            input.splice(to..to, close.repeat(depth).into_bytes());
            input.splice(from..from, open.repeat(depth).into_bytes());
        }
        12 if rng.u8(..100) == 0 => {
            // Length: a part of it again and again, up to the largest that is let in.
            let copy =
                if from < to { input[from..to.min(from + 40)].to_vec() } else { b"[{\"\":0},".to_vec() };
            let room = largest.saturating_sub(input.len());
            let times = room / copy.len() / (1 << rng.u32(..8)).max(1);
            input.splice(to..to, copy.repeat(times));
        }
        _ => {}
    }
}

/// A part of the input, mostly a short one.
fn part(input: &[u8], rng: &mut Rng) -> (usize, usize) {
    let from = rng.usize(..=input.len());
    let room = input.len() - from;
    let length = if rng.bool() { rng.usize(..=room.min(8)) } else { rng.usize(..=room) };
    (from, from + length)
}

/// Puts another figure in the place of one.
fn figure(input: &mut Vec<u8>, rng: &mut Rng) {
    let starts: Vec<usize> = (0..input.len())
        .filter(|&at| input[at].is_ascii_digit() && (at == 0 || !input[at - 1].is_ascii_digit()))
        .collect();
    if starts.is_empty() {
        return;
    }
    let from = starts[rng.usize(..starts.len())];
    let length = input[from..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    let other = FIGURES[rng.usize(..FIGURES.len())];
    input.splice(from..from + length, other.bytes());
}
