//! The README, docs and the files in deploy say what the program does.

use std::collections::BTreeMap;

use ebbtide::provider::expander::events;
use ebbtide::scale_in::events::Reason;

/// The flag that a row of a table begins with.
fn flag_of(row: &str) -> Option<&str> {
    row.strip_prefix("| `")?.split('`').next()
}

#[test]
fn the_table_of_flags_is_the_programs_and_says_when_to_change_each() {
    let marked: Vec<_> = include_str!("../docs/flags.md").split("<!-- flags -->\n").collect();
    let [_, table, _] = marked[..] else { panic!("the table of flags stands between two marks") };
    let reason = |row| Some((flag_of(row)?, row.strip_suffix(" |")?.rsplit_once(" | ")?.1));
    let reasons: BTreeMap<&str, &str> = table.lines().filter_map(reason).collect();
    let with_reason = |row: &str| {
        let last = match flag_of(row) {
            Some(flag) => reasons.get(flag).copied().unwrap_or_default(),
            None if row.contains("---") => "---",
            None => "change it when",
        };
        format!("{row} {last} |\n")
    };
    let expected: String = ebbtide::config::flags_table().lines().map(with_reason).collect();
    assert_eq!(table, expected, "put this between the marks:\n{expected}");
    assert!(reasons.values().all(|reason| !reason.is_empty()), "each has a reason: {reasons:?}");
}

#[test]
fn the_versions_that_were_tested_are_those_of_the_files_they_are_taken_from() {
    let document = include_str!("../docs/compatibility.md");
    let table = document.split("<!-- versions -->").nth(1).expect("between two marks");
    let rows: Vec<_> = table.lines().filter(|line| line.contains("`: `")).collect();
    assert!(rows.len() > 10, "{rows:?}");
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    for row in rows {
        let cells: Vec<_> = row.split('|').map(str::trim).collect();
        let (file, text) = cells[3].trim_matches('`').split_once("`: `").expect("a file, and what it says");
        let content = std::fs::read_to_string(root.join(file)).expect("text");
        let content = content.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(cells[2]) && content.contains(text), "{row}");
    }
}

/// The flags of ebbtide's container in a manifest of `deploy`, and those that an overlay's patch adds.
fn flags_in(manifest: &str) -> Vec<String> {
    let ours = manifest.split("name: cluster-autoscaler").next().unwrap_or_default();
    let flag = |line: &str| {
        let line = line.trim();
        let flag = line.strip_prefix("value: ").or_else(|| line.strip_prefix("- "))?;
        flag.starts_with("--").then(|| flag.to_owned())
    };
    ours.lines().filter_map(flag).collect()
}

#[test]
fn the_program_accepts_the_flags_of_the_overlays() {
    let base = flags_in(include_str!("../deploy/base/deployment.yaml"));
    assert!(!base.is_empty());
    let sidecar = include_str!("../deploy/overlays/sidecar/kustomization.yaml");
    let apart = include_str!("../deploy/overlays/eks/kustomization.yaml");
    for overlay in [sidecar, apart] {
        let own = flags_in(overlay);
        assert!(own.iter().any(|flag| flag.starts_with("--listen=")), "{own:?}");
        let args = ["ebbtide", "serve"].map(str::to_owned).into_iter().chain(base.clone()).chain(own);
        let parsed = ebbtide::config::Config::parse(args.map(Into::into), |_| None, Vec::new);
        // The certificates are in the pod alone.
        let problems = parsed.err().map(|problems| problems.all).unwrap_or_default();
        let others: Vec<_> =
            problems.iter().filter(|problem| !problem.text.contains("cannot be read")).collect();
        assert!(others.is_empty(), "{others:?}");
    }
}

#[test]
fn the_table_of_events_has_every_reason() {
    let rows = include_str!("../docs/events.md").lines().filter(|line| line.starts_with("| `"));
    let cells =
        |row: &str| row.split('|').map(|cell| cell.trim().trim_matches('`').to_owned()).collect::<Vec<_>>();
    let rows: Vec<_> = rows.map(cells).collect();
    for row in &rows {
        assert!(
            row.len() == 6 && row[3..5].iter().all(|cell| !cell.is_empty()),
            "when, and what to do: {row:?}"
        );
    }
    let documented: Vec<_> = rows.iter().map(|row| row[1].as_str()).collect();
    assert_eq!(documented, [&Reason::ALL.map(Reason::as_str)[..], &[events::REASON]].concat());
    assert_eq!(rows.last().map(|row| row[2].as_str()), Some("Normal"));
}

/// The statements of a policy.
fn statements(policy: &str) -> Vec<serde_json::Value> {
    let policy: serde_json::Value = serde_json::from_str(policy).expect("JSON");
    policy["Statement"].as_array().expect("statements").clone()
}

/// What ebbtide may do: the statements of all policies in `deploy/aws/iam`.
fn policies() -> Vec<serde_json::Value> {
    let files = [
        include_str!("../deploy/aws/iam/hooks.json"),
        include_str!("../deploy/aws/iam/load-balancers.json"),
        include_str!("../deploy/aws/iam/manage-hooks.json"),
        include_str!("../deploy/aws/iam/prices.json"),
        include_str!("../deploy/aws/iam/queue.json"),
        include_str!("../deploy/aws/iam/read.json"),
        include_str!("../deploy/aws/iam/retention.json"),
        include_str!("../deploy/aws/iam/size.json"),
    ];
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/aws/iam");
    assert_eq!(std::fs::read_dir(folder).expect("a folder").count(), files.len(), "each file is here");
    files.into_iter().flat_map(statements).collect()
}

fn actions(statement: &serde_json::Value) -> impl Iterator<Item = &str> {
    statement["Action"].as_array().expect("actions").iter().filter_map(|action| action.as_str())
}

#[test]
fn the_iam_policies_allow_exactly_what_the_program_calls() {
    let policies = policies();
    let mut allowed: Vec<_> = policies.iter().flat_map(actions).collect();
    allowed.sort_unstable();
    let mut called: Vec<_> =
        ebbtide::aws::Operation::ALL.iter().map(|operation| operation.action()).collect();
    // It needs no permission: https://docs.aws.amazon.com/STS/latest/APIReference/API_GetCallerIdentity.html
    called.retain(|action| *action != "sts:GetCallerIdentity");
    called.sort_unstable();
    assert_eq!(allowed, called);
}

#[test]
fn the_iam_policies_allow_to_change_our_groups_one_tag_of_instances_and_our_queues_and_nothing_else() {
    let reads = ["Describe", "Get"];
    for statement in policies() {
        let changes =
            |action: &str| !reads.iter().any(|read| action.split(':').nth(1).unwrap().starts_with(read));
        let condition = match actions(&statement).next() {
            _ if !actions(&statement).any(changes) => serde_json::Value::Null,
            Some(action) if action.starts_with("autoscaling:") => serde_json::json!({
                "Null": { "aws:ResourceTag/k8s.io/cluster-autoscaler/enabled": "false" }
            }),
            Some(action) if action.starts_with("sqs:") => {
                assert_eq!(statement["Resource"], "arn:*:sqs:*:*:ebbtide*");
                serde_json::Value::Null
            }
            _ => {
                assert_eq!(statement["Resource"], "arn:*:ec2:*:*:instance/*");
                // Without the second, a call that names no tag would pass, and DeleteTags then deletes them all.
                serde_json::json!({
                    "ForAllValues:StringEquals": { "aws:TagKeys": ebbtide::groups::protection::PROTECTION_TAG },
                    "Null": { "aws:TagKeys": "false" }
                })
            }
        };
        assert_eq!(statement["Condition"], condition, "{statement}");
    }
}

/// All of the program and its tests, as text.
fn sources(folder: &std::path::Path) -> String {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let text = |path: std::path::PathBuf| match path.extension() {
        _ if path.is_dir() => sources(&path),
        Some(ending) if ending == "rs" => std::fs::read_to_string(&path).expect("text"),
        _ => String::new(),
    };
    entries.map(text).collect()
}

/// A document without its fenced blocks, so that each pair of backticks is a word's.
fn without_blocks(document: &str) -> String {
    document.split("```").step_by(2).collect()
}

#[test]
fn every_test_that_the_documents_name_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources = sources(&root.join("src")) + &sources(&root.join("tests"));
    let documents = [
        include_str!("../docs/testing.md"),
        include_str!("../docs/defects.md"),
        include_str!("../docs/how-it-works.md"),
    ]
    .map(without_blocks);
    let words = documents.iter().flat_map(|text| text.split('`').skip(1).step_by(2));
    let is_test = |word: &&str| {
        word.matches('_').count() >= 3 && word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    let named: Vec<&str> = words.filter(is_test).collect();
    assert!(named.len() > 80, "{}", named.len());
    let missing: Vec<_> =
        named.into_iter().filter(|name| !sources.contains(&format!("fn {name}("))).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn every_file_of_ours_that_a_document_names_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let documents: Vec<_> = std::fs::read_dir(root.join("docs"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| without_blocks(&std::fs::read_to_string(path).expect("text")))
        .collect();
    let words = documents.iter().flat_map(|text| text.split('`').skip(1).step_by(2));
    let is_path = |word: &&str| {
        let folders = ["src/", "tests/", "benches/", "docs/", "deploy/", "proto/"];
        folders.iter().any(|folder| word.starts_with(folder)) && !word.contains(['*', '{', ' '])
    };
    let named: Vec<&str> = words.filter(is_path).collect();
    assert!(named.len() > 40, "{}", named.len());
    let missing: Vec<_> = named.into_iter().filter(|name| !root.join(name).exists()).collect();
    assert_eq!(missing, [""; 0]);
}

#[test]
fn every_file_that_contributors_are_sent_to_is_there() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let words = include_str!("../CONTRIBUTING.md").split('`').skip(1).step_by(2);
    let is_path = |word: &&str| word.contains('/') && !word.starts_with('/') && !word.contains(' ');
    let named: Vec<&str> = words.filter(is_path).collect();
    assert!(named.len() > 20, "{}", named.len());
    let missing: Vec<_> = named.into_iter().filter(|name| !root.join(name).exists()).collect();
    assert_eq!(missing, [""; 0]);
}
