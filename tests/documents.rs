//! The README and the files in deploy say what the program does.

#[test]
fn the_readme_has_the_flags_of_the_program() {
    let readme = include_str!("../README.md");
    let marked: Vec<_> = readme.split("<!-- flags -->\n").collect();
    let [_, table, _] = marked[..] else { panic!("the table of flags stands between two marks") };
    let expected = ebbtide::config::flags_table();
    assert_eq!(table, expected, "put this between the marks:\n{expected}");
}

#[test]
fn the_iam_policy_allows_exactly_what_the_program_calls() {
    let policy: serde_json::Value =
        serde_json::from_str(include_str!("../deploy/iam-policy.json")).expect("JSON");
    let statements = policy["Statement"].as_array().expect("statements").iter();
    let mut allowed: Vec<_> = statements
        .flat_map(|s| s["Action"].as_array().expect("actions"))
        .filter_map(|a| a.as_str())
        .collect();
    allowed.sort_unstable();
    let mut called: Vec<_> =
        ebbtide::aws::Operation::ALL.iter().map(|operation| operation.action()).collect();
    called.sort_unstable();
    assert_eq!(allowed, called);
}
