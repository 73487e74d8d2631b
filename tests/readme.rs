//! The README says what the program does.

#[test]
fn the_readme_has_the_flags_of_the_program() {
    let readme = include_str!("../README.md");
    let marked: Vec<_> = readme.split("<!-- flags -->\n").collect();
    let [_, table, _] = marked[..] else { panic!("the table of flags stands between two marks") };
    let expected = ebbtide::config::flags_table();
    assert_eq!(table, expected, "put this between the marks:\n{expected}");
}
