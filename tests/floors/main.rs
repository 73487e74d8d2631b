//! The house, as the table in `src/lib.rs` draws it: each floor imports only from floors below it, and no files outside
//! `sim` need each other in a circle. What is compiled for tests alone is held to the floors too.

mod rules;
mod source;
mod tokens;

use std::fs;
use std::path::Path;

use rules::{breaches, circles, floors, misdrawn};
use source::Sources;

/// A file's name, `src/a/b.rs`, and its text.
type File = (String, String);

/// The files of the program, outside the simulated worlds, which may know everything.
fn program() -> Vec<File> {
    let mut files = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), "src");
    files.retain(|(name, _)| !name.starts_with("src/sim/"));
    files
}

fn files(folder: &Path, name: &str) -> Vec<File> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let name = format!("{name}/{}", path.file_name().and_then(|name| name.to_str()).expect("text"));
        if path.is_dir() {
            files.extend(self::files(&path, &name));
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            files.push((name, fs::read_to_string(&path).expect("text")));
        }
    }
    files.sort();
    files
}

fn read(files: &[File]) -> Sources {
    Sources::read(files.iter().map(|(name, text)| (name.as_str(), text.as_str())))
}

/// What brings in a file that its name does not tell of.
const HIDDEN: [&str; 2] = ["#[path", "include!("];

/// What is wrong with the floors of these files, the first of which is `src/lib.rs`.
fn wrong(files: &[File]) -> Vec<String> {
    let hides = |text: &str| HIDDEN.into_iter().find(|hidden| text.contains(hidden));
    let hidden =
        files.iter().filter_map(|(name, text)| Some(format!("{name}: {} hides a file", hides(text)?)));
    let lib = files.iter().find(|(name, _)| name == "src/lib.rs").expect("a library");
    let (sources, floors) = (read(files), floors(&lib.1));
    [misdrawn(&sources, &floors), breaches(&sources, &floors), hidden.collect()].concat()
}

#[test]
fn every_import_goes_down() {
    let found = wrong(&program());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn no_files_need_each_other_in_a_circle() {
    let found = circles(&read(&program()));
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

/// A house of three rooms, `top` over `left` and `right`, with these files besides.
fn house(files: &[(&str, &str)]) -> Vec<File> {
    let lib = "//! | 8 | `main` | |\n//! | 2 | `top` | |\n//! | 1 | `left/`, `right` | |\n\
               pub mod left;\npub mod right;\npub mod top;\n";
    let files = [("src/lib.rs", lib)].into_iter().chain(files.iter().copied());
    files.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
}

#[test]
fn an_import_that_goes_up_is_named_with_file_and_line() {
    let up = "src/left/mod.rs:2: left (floor 1) imports top (floor 2)";
    for text in [
        "\nuse crate::top::Name;",
        "\nuse super::top::{self, Name};",
        "\nuse {crate::top as other, std::fmt};",
        "\npub use crate::top::*;",
        "\nfn f() -> crate::top::Name { todo!() }",
        "fn f() {\n    crate::top::f();\n}",
        "fn f() {\n    use crate::top::Name;\n}",
        "fn f() {\n    println!(\"{}\", [crate::top::f()].len());\n}",
        "macro_rules! m { () => {\n    $crate::top::f()\n} }",
        "#[derive(Deserialize)]\nstruct S { #[serde(with = \"crate::top::seconds\")] a: u8 }",
        "#[cfg(test)] mod tests {\n    use super::super::top::Name;\n}",
    ] {
        assert_eq!(wrong(&house(&[("src/left/mod.rs", text)])), [up], "{text}");
    }
    let main = "use ebbtide::top::Name;";
    assert_eq!(wrong(&house(&[("src/main.rs", main), ("src/top.rs", "use crate::left::Name;")])), [""; 0]);
    for text in ["pub(in crate::left) fn top() {}", "use top::Name;", "fn f() { crate::left::top() }"] {
        assert_eq!(wrong(&house(&[("src/left/mod.rs", text)])), [""; 0], "{text}");
    }
}

#[test]
fn what_would_hide_an_import_is_told() {
    for (text, told) in [
        ("use crate::*;", "src/left/mod.rs:1: left (floor 1) imports all of the root"),
        ("use super::*;", "src/left/mod.rs:1: left (floor 1) imports all of the root"),
        (
            "fn f() { crate::passed_on() }",
            "src/left/mod.rs:1: left (floor 1) names crate::passed_on, which is no room",
        ),
        ("#[path = \"../top.rs\"] mod other;", "src/left/mod.rs: #[path hides a file"),
        ("include!(\"../top.rs\");", "src/left/mod.rs: include!( hides a file"),
    ] {
        assert_eq!(wrong(&house(&[("src/left/mod.rs", text)])), [told], "{text}");
    }
}

#[test]
fn rooms_of_a_floor_do_not_know_each_other() {
    let files = house(&[("src/left/deep/mod.rs", "use crate::right::Name;")]);
    assert_eq!(wrong(&files), ["src/left/deep/mod.rs:1: left (floor 1) imports right (floor 1)"]);
}

#[test]
fn a_room_that_is_not_drawn_is_told_and_so_is_one_that_is_drawn_only() {
    let mut files = house(&[]);
    files[0].1 = files[0].1.replace("pub mod top;", "pub mod cellar;");
    let told = ["src/lib.rs: cellar is on no floor", "src/lib.rs: top has a floor and is not there"];
    assert_eq!(wrong(&files), told);
}

#[test]
fn files_that_need_each_other_are_named_with_what_ties_them() {
    let told = "2 files need each other:\n    \
                src/top/a.rs:2 needs src/top/b.rs for B\n    \
                src/top/b.rs:1 needs src/top/a.rs for A";
    // A name that is passed on is its file's, not that of who passes it on.
    let room = ("src/top/mod.rs", "mod a;\nmod b;\npub use a::A;\npub(crate) use self::b::B as Bee;");
    for a in [
        "struct A;\nuse super::b::B;",
        "struct A;\nfn f() { super::b::B::new() }",
        "struct A;\nuse super::Bee;",
    ] {
        for b in ["struct B(super::A);", "use crate::top::A; struct B;", "use super::a; struct B(a::A);"] {
            let files = house(&[room, ("src/top/a.rs", a), ("src/top/b.rs", b)]);
            assert_eq!(circles(&read(&files)), [told], "{a}\n{b}");
        }
    }
}

#[test]
fn a_mod_file_is_in_a_circle_with_a_file_that_it_uses_and_that_uses_it() {
    let a = ("src/top/a.rs", "use super::Own;\npub struct A;");
    let circle = |room| circles(&read(&house(&[("src/top/mod.rs", room), a]))).len();
    assert_eq!(circle("mod a;\npub use a::A;\npub struct Own;"), 0);
    assert_eq!(circle("mod a;\npub use a::A;\npub struct Own(A);"), 1);
    assert_eq!(circle("mod a;\nuse a::A;\npub struct Own(A);"), 1);
    assert_eq!(circle("mod a;\npub struct Own(a::A);"), 1);
    assert_eq!(circle("mod a;\npub struct Own;\n#[cfg(test)] mod tests { use super::a::A; }"), 0);
}

#[test]
fn comments_and_texts_neither_hide_names_nor_make_any() {
    let text = r##"
        // crate::top::A  "
        /* /* crate::top::B */ ' */ fn f<'a>(c: &'a char) -> bool { *c == '"' || *c == '\'' }
        const T: &str = "crate::top::C \" // ";
        const R: &str = r#"crate::top::D " "#; const B: &[u8] = br"\"; const E: &str = r"use crate::top::F;";
        fn r#type() -> u8 { crate::top::G }
    "##;
    let files = house(&[("src/left.rs", text)]);
    assert_eq!(wrong(&files), ["src/left.rs:6: left (floor 1) imports top (floor 2)"]);
}
