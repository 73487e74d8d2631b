//! Rust as far as names go: words, signs, texts and brackets, with their lines. Comments are left out.

use std::iter::Peekable;
use std::str::Chars;

/// A token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// Its line, counted from 1.
    pub(crate) line: usize,
    /// What it is.
    pub(crate) what: What,
}

/// What a token is.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// A name, a keyword or a number.
    Word(String),
    /// One character.
    Sign(char),
    /// What is between quotes.
    Text(String),
    /// The opening bracket, and what is between it and the closing one.
    Group(char, Vec<Token>),
}

impl Token {
    /// The word that this is.
    pub(crate) fn word(&self) -> Option<String> {
        match &self.what {
            What::Word(word) => Some(word.clone()),
            _ => None,
        }
    }
}

/// The tokens of a file.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut lexer = Lexer { rest: text.chars().peekable(), line: 1 };
    lexer.group()
}

struct Lexer<'a> {
    rest: Peekable<Chars<'a>>,
    line: usize,
}

impl Lexer<'_> {
    fn next(&mut self) -> Option<char> {
        let next = self.rest.next();
        self.line += usize::from(next == Some('\n'));
        next
    }

    fn peek(&mut self, at: usize) -> Option<char> {
        self.rest.clone().nth(at)
    }

    /// Everything up to a closing bracket, or the end.
    fn group(&mut self) -> Vec<Token> {
        let mut tokens = Vec::new();
        loop {
            let Some(&first) = self.rest.peek() else { return tokens };
            let line = self.line;
            let what = match first {
                '/' if self.peek(1) == Some('/') => {
                    while self.rest.peek().is_some_and(|c| *c != '\n') {
                        self.next();
                    }
                    continue;
                }
                '/' if self.peek(1) == Some('*') => {
                    self.comment();
                    continue;
                }
                '"' => self.text(None),
                '\'' => match self.character() {
                    Some(what) => what,
                    None => continue,
                },
                'r' | 'b' | 'c' if self.opens_text() => {
                    let (mut is_raw, mut hashes) = (false, 0);
                    while let Some(c) = self.rest.peek().copied().filter(|c| *c != '"') {
                        is_raw |= c == 'r';
                        hashes += usize::from(c == '#');
                        self.next();
                    }
                    self.text(is_raw.then_some(hashes))
                }
                c if c.is_alphanumeric() || c == '_' => {
                    let mut word = String::new();
                    while let Some(c) = self.rest.peek().copied().filter(|c| c.is_alphanumeric() || *c == '_')
                    {
                        word.push(c);
                        self.next();
                    }
                    What::Word(word)
                }
                '(' | '[' | '{' => {
                    self.next();
                    What::Group(first, self.group())
                }
                ')' | ']' | '}' => {
                    self.next();
                    return tokens;
                }
                c => {
                    self.next();
                    if c.is_whitespace() {
                        continue;
                    }
                    What::Sign(c)
                }
            };
            tokens.push(Token { line, what });
        }
    }

    /// `/* … /* … */ … */`.
    fn comment(&mut self) {
        let mut depth = 0;
        loop {
            match (self.next(), self.rest.peek()) {
                (Some('/'), Some('*')) => depth += 1,
                (Some('*'), Some('/')) => depth -= 1,
                (None, _) => return,
                _ => continue,
            }
            self.next();
            if depth == 0 {
                return;
            }
        }
    }

    /// Whether `r"`, `r#"`, `b"`, `br#"`, `b'` and the like begin here, and no name does.
    fn opens_text(&mut self) -> bool {
        let mut ahead = self.rest.clone().skip_while(|c| "rbc".contains(*c));
        let letters = self.rest.clone().take_while(|c| "rbc".contains(*c)).count();
        letters <= 2 && ahead.find(|c| *c != '#') == Some('"')
    }

    /// From the quote to the one that closes it; in a raw one, to that with so many hashes after it.
    fn text(&mut self, raw: Option<usize>) -> What {
        self.next();
        let mut text = String::new();
        while let Some(c) = self.next() {
            let hashes = raw.unwrap_or_default();
            if c == '"' && (0..hashes).all(|at| self.peek(at) == Some('#')) {
                for _ in 0..hashes {
                    self.next();
                }
                break;
            }
            text.push(c);
            if c == '\\' && raw.is_none() {
                text.extend(self.next());
            }
        }
        What::Text(text)
    }

    /// `'a'` or `'\''`; None for the lifetime `'a`.
    fn character(&mut self) -> Option<What> {
        self.next();
        if self.rest.peek() == Some(&'\\') {
            self.next();
            self.next();
            while self.next().is_some_and(|c| c != '\'') {}
            return Some(What::Text(String::new()));
        }
        if self.peek(1) == Some('\'') {
            self.next();
            self.next();
            return Some(What::Text(String::new()));
        }
        while self.rest.peek().is_some_and(|c| c.is_alphanumeric() || *c == '_') {
            self.next();
        }
        None
    }
}
