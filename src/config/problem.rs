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
    pub(super) fn new(flag: impl Into<String>, text: impl Into<String>) -> Self {
        Self { flag: flag.into(), text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.flag.is_empty() { f.write_str(&self.text) } else { write!(f, "{}: {}", self.flag, self.text) }
    }
}

/// All problems of the command line: the program exits with code 2.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.0 {
            writeln!(f, "{problem}")?;
        }
        f.write_str("see ebbtide --help")
    }
}
