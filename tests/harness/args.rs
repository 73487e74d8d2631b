//! What `cargo test` passes on to every test program, for those without libtest's harness.

/// Reads an argument that is none of the program's own. Returns whether only other tests than `test` are meant; `None` if libtest has
/// no such argument.
pub(crate) fn is_for_others(test: &str, arg: &str, rest: &mut impl Iterator<Item = String>) -> Option<bool> {
    match arg {
        "--quiet" | "-q" | "--nocapture" | "--show-output" | "--exact" => Some(false),
        "--test-threads" => rest.next().map(|_| false),
        flag if flag.starts_with("--test-threads=") => Some(false),
        "--list" => Some(true),
        // The name of a test, or a part of it.
        name if !name.starts_with('-') => Some(!test.contains(name)),
        _ => None,
    }
}
