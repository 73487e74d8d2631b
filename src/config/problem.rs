//! Problems of a command line.

use std::fmt;

/// A problem of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The flag, such as `--listen`; empty if it concerns none.
    pub flag: String,
    /// The problem.
    pub text: String,
}

impl Problem {
    /// What was typed may be in both: they are told in a short line, whatever it is.
    pub(super) fn new(flag: impl Into<String>, text: impl Into<String>) -> Self {
        Self { flag: one_line(&flag.into(), 80), text: one_line(&text.into(), LONGEST) }
    }
}

/// Characters of the longest problem.
const LONGEST: usize = 240;

/// The text without control characters, cut to `room`.
fn one_line(text: &str, room: usize) -> String {
    let plain = |c: char| if c.is_control() { '\u{fffd}' } else { c };
    let cut = if text.chars().nth(room).is_some() { "…" } else { "" };
    text.chars().take(room).map(plain).chain(cut.chars()).collect()
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.flag.is_empty() { f.write_str(&self.text) } else { write!(f, "{}: {}", self.flag, self.text) }
    }
}

/// All problems of the command line: the program exits with code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems {
    /// Each of them.
    pub all: Vec<Problem>,
    /// The command as it was called, `ebbtide serve`: its help says what would be right.
    pub command: String,
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.all {
            writeln!(f, "{problem}")?;
        }
        write!(f, "see {} --help", self.command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_was_typed_is_told_in_a_short_line() {
        let problem = Problem::new("--\u{1b}[2J", "x".repeat(1_000));
        assert_eq!(problem.flag, "--\u{fffd}[2J");
        assert_eq!(problem.text.chars().count(), LONGEST + 1);
    }
}
