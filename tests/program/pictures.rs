//! The pictures in the README and in docs are what the program draws.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// The files of a folder, by name.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let file = |entry: std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path()).expect("text");
        (entry.file_name().into_string().expect("a name"), text)
    };
    entries.map(file).collect()
}

#[test]
fn the_pictures_of_scale_ins_are_what_simulate_draws() {
    let drawn = std::env::temp_dir().join(format!("ebbtide-pictures-{}", std::process::id()));
    std::fs::create_dir_all(&drawn).expect("a folder");
    let program = Command::new(env!("CARGO_BIN_EXE_ebbtide"))
        .args(["simulate", "--json", "--svg"])
        .arg(&drawn)
        .output()
        .expect("started");
    let found = files(&drawn);
    std::fs::remove_dir_all(&drawn).expect("removed");
    assert!(program.status.success(), "{}", String::from_utf8_lossy(&program.stderr));
    assert!(found.len() > 5, "{:?}", found.keys());
    let kept = files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/images/simulate"));
    assert_eq!(
        found.keys().collect::<Vec<_>>(),
        kept.keys().collect::<Vec<_>>(),
        "docs/images/simulate has one of each"
    );
    for (name, picture) in found {
        let is_same = kept[&name] == picture;
        assert!(is_same, "{name} differs: cargo run -- simulate --svg docs/images/simulate");
    }
}
