//! What the source files define, import and name. Read from their tokens: a parser would be a crate that the macros of our
//! dependencies need too, and would have all of them built twice, for `cargo run` and for `cargo test`.

use std::collections::{BTreeMap, BTreeSet};

use crate::tokens::{Token, What, tokens};

/// The segments of a path.
pub(crate) type Path = Vec<String>;

/// A module, whether it has a file of its own or is written inside one.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// Its file, as an index into [`Sources::files`].
    pub(crate) file: usize,
    /// Modules in it.
    pub(crate) children: BTreeSet<String>,
    /// What it defines itself.
    items: BTreeSet<String>,
    /// The names that it imports, and what they stand for.
    imports: BTreeMap<String, Path>,
}

/// How a path is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `use path;`
    Import,
    /// `pub use path;`, of any visibility: the name is passed on.
    PassedOn,
    /// Named where something is done with it.
    Named,
}

/// A path in the source.
#[derive(Debug)]
pub(crate) struct Reference {
    /// The module it is in.
    pub(crate) module: Path,
    /// As it is written.
    pub(crate) path: Path,
    /// Its line.
    pub(crate) line: usize,
    /// How it is used.
    pub(crate) kind: Kind,
    /// Whether it is code of a test.
    pub(crate) is_test: bool,
}

/// All of the source.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// Their names, `src/app.rs`.
    pub(crate) files: Vec<String>,
    /// By path; that of the library's root is empty, that of the program is `main`.
    pub(crate) modules: BTreeMap<Path, Module>,
    /// In the order of the files and their lines.
    pub(crate) references: Vec<Reference>,
    /// Modules that are tests as a whole.
    tests: BTreeSet<Path>,
}

impl Sources {
    /// Reads files, given by name and content.
    pub(crate) fn read<'a>(files: impl IntoIterator<Item = (&'a str, &'a str)>) -> Self {
        let mut sources = Self::default();
        for (name, text) in files {
            let file = sources.files.len();
            sources.files.push(name.to_owned());
            let module = module_of(name);
            sources.modules.entry(module.clone()).or_default().file = file;
            Reader { sources: &mut sources, module, is_test: false }.items(&tokens(text), true);
        }
        for reference in &mut sources.references {
            reference.is_test |= sources.tests.iter().any(|test| reference.module.starts_with(test));
        }
        sources
    }

    /// The name of a module's file.
    pub(crate) fn file_of(&self, module: &Path) -> &str {
        &self.files[self.modules[module].file]
    }

    /// A path from the library's root. None if it leads out of this crate.
    pub(crate) fn absolute(&self, module: &[String], path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let from = |start: &[String]| Some([start, rest].concat());
        match first.as_str() {
            "crate" | "ebbtide" => from(&[]),
            "self" => from(module),
            "super" => {
                let outer = &module[..module.len().checked_sub(1)?];
                match rest.first().map(String::as_str) {
                    Some("super") => self.absolute(outer, rest),
                    _ => from(outer),
                }
            }
            name => {
                let scope = &self.modules[module];
                let is_known = scope.children.contains(name)
                    || scope.items.contains(name)
                    || scope.imports.get(name).is_some_and(|import| import != path);
                is_known.then(|| [module, path].concat())
            }
        }
    }

    /// What an absolute path names, and the module that defines it. None for a module as a whole, and for what others define.
    pub(crate) fn definition(&self, path: &[String]) -> Option<(&Path, String)> {
        const MOST_HOPS: usize = 16;
        let mut path = path.to_vec();
        for _ in 0..MOST_HOPS {
            let whole = path.len().checked_sub(1)?;
            let depth =
                (0..whole).find(|&depth| !self.modules.contains_key(&path[..=depth])).unwrap_or(whole);
            let (here, name) = (&path[..depth], &path[depth]);
            let (key, module) = self.modules.get_key_value(here)?;
            // A function and a module may be of one name.
            let is_item = module.items.contains(name) || module.imports.contains_key(name);
            if module.children.contains(name) && !is_item {
                return None;
            }
            match module.imports.get(name) {
                Some(import) if !module.items.contains(name) => {
                    path = [self.absolute(key, import)?, path[depth + 1..].to_vec()].concat();
                }
                // What is not seen here is made by a macro.
                _ => return Some((key, name.clone())),
            }
        }
        None
    }
}

/// `src/a/b.rs` and `src/a/b/mod.rs` are `a::b`.
fn module_of(file: &str) -> Path {
    let name = file.strip_prefix("src/").and_then(|name| name.strip_suffix(".rs")).expect("src/….rs");
    let mut path: Path = name.split('/').map(str::to_owned).collect();
    if path.last().is_some_and(|last| last == "mod" || last == "lib") {
        path.pop();
    }
    path
}

/// Walks through a file.
struct Reader<'a> {
    sources: &'a mut Sources,
    module: Path,
    is_test: bool,
}

impl Reader<'_> {
    fn here(&mut self) -> &mut Module {
        self.sources.modules.entry(self.module.clone()).or_default()
    }

    fn refer(&mut self, path: Path, line: usize, kind: Kind) {
        let (module, is_test) = (self.module.clone(), self.is_test);
        self.sources.references.push(Reference { module, path, line, kind, is_test });
    }

    /// Reads code; `of_module`: what stands in the module itself, and not in a body.
    fn items(&mut self, tokens: &[Token], of_module: bool) {
        let outer = self.is_test;
        let (mut at, mut test_until) = (0, 0);
        while at < tokens.len() {
            self.is_test = outer || at < test_until;
            match (&tokens[at].what, tokens.get(at + 1).map(|token| &token.what)) {
                (What::Sign('#'), Some(What::Group('[', inner))) => {
                    if is_for_tests(inner) {
                        test_until = end_of_item(tokens, at + 2);
                    }
                    self.attribute(inner);
                    at += 1;
                }
                // `pub(in crate::a)` imports nothing.
                (What::Word(word), Some(What::Group('(', _))) if word == "pub" => at += 1,
                (What::Word(word), Some(What::Word(_) | What::Group('{', _))) if word == "use" => {
                    let passes_on = at > 0 && is_visibility(tokens, at - 1);
                    let kind = if passes_on { Kind::PassedOn } else { Kind::Import };
                    let end = (at..tokens.len()).find(|&end| tokens[end].what == What::Sign(';'));
                    let end = end.unwrap_or(tokens.len());
                    self.import(&tokens[at + 1..end], &[], kind);
                    at = end;
                }
                (What::Word(word), Some(What::Word(name))) if word == "mod" => {
                    let body = match tokens.get(at + 2).map(|token| &token.what) {
                        Some(What::Group('{', body)) => Some(body),
                        _ => None,
                    };
                    self.child(name, body);
                    at += 2;
                }
                (What::Word(word), Some(What::Word(name))) if defines(word) && name != "fn" => {
                    if of_module {
                        self.here().items.insert(name.clone());
                    }
                    at += 1;
                }
                (What::Word(_), _) => at = self.named(tokens, at),
                (What::Group(_, inner), _) => self.items(inner, false),
                _ => {}
            }
            at += 1;
        }
        self.is_test = outer;
    }

    fn child(&mut self, name: &str, body: Option<&Vec<Token>>) {
        self.here().children.insert(name.to_owned());
        let file = self.here().file;
        self.module.push(name.to_owned());
        if self.is_test {
            self.sources.tests.insert(self.module.clone());
        }
        if let Some(body) = body {
            self.here().file = file;
            self.items(body, true);
        }
        self.module.pop();
    }

    /// Reads what follows `use`.
    fn import(&mut self, tree: &[Token], prefix: &[String], kind: Kind) {
        let branches = tree.split(|token| token.what == What::Sign(','));
        for branch in branches {
            let Some(line) = branch.first().map(|token| token.line) else { continue };
            let mut path = prefix.to_vec();
            let mut bound = None;
            for (at, token) in branch.iter().enumerate() {
                match &token.what {
                    What::Word(word) if word == "as" => {
                        bound = branch.get(at + 1).and_then(Token::word);
                        break;
                    }
                    What::Word(word) if word != "self" || path.is_empty() => path.push(word.clone()),
                    What::Group('{', inner) => self.import(inner, &path, kind),
                    _ => {}
                }
            }
            if matches!(branch.last().map(|token| &token.what), Some(What::Group(..))) {
                continue;
            }
            let is_glob = branch.last().is_some_and(|token| token.what == What::Sign('*'));
            if let Some(bound) = bound.or_else(|| path.last().cloned()).filter(|_| !is_glob) {
                self.here().imports.insert(bound, path.clone());
            }
            self.refer(path, line, kind);
        }
    }

    /// Reads the path that begins here. Where it ends.
    fn named(&mut self, tokens: &[Token], start: usize) -> usize {
        let is = |at: usize, sign: char| tokens.get(at).is_some_and(|token| token.what == What::Sign(sign));
        let mut path: Path = tokens[start].word().into_iter().collect();
        let mut end = start;
        while is(end + 1, ':') && is(end + 2, ':') {
            let Some(word) = tokens.get(end + 3).and_then(Token::word) else { break };
            path.push(word);
            end += 3;
        }
        let is_after = |sign: char| start > 0 && is(start - 1, sign);
        // Fields, methods, what follows `>::`, and names of variables are no paths.
        let is_member = is_after('.') && !(start > 1 && is(start - 2, '.'));
        let goes_on = is_after(':') && start > 1 && is(start - 2, ':');
        let is_type = path[0].starts_with(char::is_uppercase);
        let is_called = matches!(tokens.get(end + 1).map(|token| &token.what), Some(What::Group('(', _)));
        if !is_member && !goes_on && (path.len() > 1 || is_type || is_called) {
            self.refer(path, tokens[start].line, Kind::Named);
        }
        end
    }

    /// Reads what an attribute is given: paths, also as text, `#[serde(with = "super::seconds")]`.
    fn attribute(&mut self, inner: &[Token]) {
        for token in inner {
            match &token.what {
                What::Group(_, inner) => self.attribute(inner),
                What::Text(text) if text.contains("::") && !text.contains(' ') => {
                    self.refer(text.split("::").map(str::to_owned).collect(), token.line, Kind::Named);
                }
                _ => {}
            }
        }
        self.items(inner, false);
    }
}

fn defines(word: &str) -> bool {
    ["const", "enum", "fn", "static", "struct", "trait", "type", "union"].contains(&word)
}

/// Whether this token ends `pub` or `pub(…)`.
fn is_visibility(tokens: &[Token], at: usize) -> bool {
    let is_pub = |at: usize| tokens[at].word().is_some_and(|word| word == "pub");
    is_pub(at) || at > 0 && matches!(tokens[at].what, What::Group('(', _)) && is_pub(at - 1)
}

fn is_for_tests(attribute: &[Token]) -> bool {
    match attribute {
        [cfg, Token { what: What::Group('(', given), .. }] => {
            cfg.word().is_some_and(|word| word == "cfg")
                && matches!(&given[..], [only] if only.word().is_some_and(|word| word == "test"))
        }
        _ => false,
    }
}

/// Where the item ends that begins here, or the field or variant.
fn end_of_item(tokens: &[Token], start: usize) -> usize {
    let rest = tokens[start..].iter();
    let is_item =
        |word: String| defines(&word) || ["impl", "mod", "use", "macro_rules"].contains(&word.as_str());
    let head = rest.clone().take_while(|token| !matches!(token.what, What::Sign(',' | ':' | '=' | '<')));
    let is_item = head.filter_map(Token::word).any(is_item);
    let ends = |token: &Token| match &token.what {
        What::Sign(';') | What::Group('{', _) => true,
        What::Sign(',') => !is_item,
        _ => false,
    };
    rest.clone().position(ends).map_or(tokens.len(), |length| start + length + 1)
}
