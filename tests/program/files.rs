//! How many files may be open.

use std::process::Command;

/// What `serve` logs under this limit, as a shell sets it, until it finds no cluster.
fn logged(limit: &str) -> String {
    let missing = std::env::temp_dir().join("ebbtide-no-such-kubeconfig");
    let socket = std::env::temp_dir().join(format!("ebbtide-files-{}", std::process::id()));
    let output = Command::new("sh")
        .args([
            "-c",
            &format!("ulimit {limit} && exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_ebbtide"),
            "serve",
        ])
        .args(["--nodes", "0:1:web", "--region", "us-east-1", "--admin-listen", "127.0.0.1:0"])
        .arg(format!("--listen=unix://{}", socket.display()))
        .env("KUBECONFIG", missing)
        .output()
        .expect("started");
    let _ = std::fs::remove_file(&socket);
    let logged = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&logged).into_owned()
}

/// Whether the hard limit of whoever runs the tests is itself too low.
fn is_low_here() -> bool {
    let output = Command::new("sh").args(["-c", "ulimit -H -n"]).output().expect("started");
    String::from_utf8_lossy(&output.stdout).trim().parse::<u64>().is_ok_and(|hard| hard < 4_096)
}

/// Containers of some runtimes start with a low soft limit under a high hard one, which every program may raise.
#[test]
fn as_many_files_may_be_open_as_the_hard_limit_allows_and_a_low_one_is_told() {
    let (soft, hard) = (logged("-S -n 256"), logged("-n 256"));
    assert_eq!(soft.contains("few files"), is_low_here(), "{soft}");
    assert!(hard.contains("few files") && hard.contains("256"), "{hard}");
}
