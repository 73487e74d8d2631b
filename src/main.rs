//! The `ebbtide` binary.

fn main() {}
