//! How `serve` ends when it is told to.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

/// An API server and an AWS that nobody can reach.
const NOWHERE: &str = "http://127.0.0.1:1";

/// `serve`, which answers at its admin address. Killed when this is dropped.
struct Serve {
    process: Child,
    admin: String,
    log: BufReader<ChildStderr>,
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.process.kill();
    }
}

fn start(name: &str) -> Serve {
    let file =
        |kind: &str| std::env::temp_dir().join(format!("ebbtide-{name}-{}-{kind}", std::process::id()));
    let kubeconfig = file("kubeconfig");
    let cluster = format!("clusters: [{{name: c, cluster: {{server: '{NOWHERE}'}}}}]");
    let context = "contexts: [{name: c, context: {cluster: c, user: u}}], current-context: c";
    let text =
        format!("{{apiVersion: v1, kind: Config, {cluster}, users: [{{name: u, user: {{}}}}], {context}}}");
    std::fs::write(&kubeconfig, text).expect("written");
    let mut process = Command::new(env!("CARGO_BIN_EXE_ebbtide"))
        .args(["serve", "--nodes", "0:1:web", "--region", "us-east-1", "--endpoint-url", NOWHERE])
        .args(["--admin-listen", "127.0.0.1:0", "--log-format", "json"])
        .arg(format!("--listen=unix://{}", file("socket").display()))
        .env("KUBECONFIG", &kubeconfig)
        .envs([("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")])
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    let log = BufReader::new(process.stderr.take().expect("a pipe"));
    let mut serve = Serve { process, admin: String::new(), log };
    while serve.admin.is_empty() {
        let mut line = String::new();
        serve.log.read_line(&mut line).expect("text");
        let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
        line["admin"].as_str().unwrap_or_default().clone_into(&mut serve.admin);
    }
    serve
}

/// The exit code after these signals, which come while a request is under way, and all that is logged and said until then.
fn ended_by(name: &str, signals: &[Signal]) -> (Option<i32>, String) {
    let mut serve = start(name);
    // A stop waits for it.
    let mut unfinished = TcpStream::connect(&serve.admin).expect("connected");
    unfinished.write_all(b"GET /livez HTTP/1.1\r\n").expect("sent");
    let mut finished = TcpStream::connect(&serve.admin).expect("connected");
    finished.write_all(b"GET /livez HTTP/1.0\r\n\r\n").expect("sent");
    finished.read_to_end(&mut Vec::new()).expect("answered");
    for signal in signals {
        kill_process(Pid::from_child(&serve.process), *signal).expect("sent");
    }
    let mut said = String::new();
    serve.log.read_to_string(&mut said).expect("text");
    (serve.process.wait().expect("ended").code(), said)
}

#[test]
fn a_signal_ends_it_in_good_order_and_a_second_one_is_no_success() {
    for (name, signals, expected) in
        [("one-signal", &[Signal::TERM][..], 0), ("two-signals", &[Signal::TERM, Signal::INT], 1)]
    {
        let (code, said) = ended_by(name, signals);
        let is_cut_short = said.contains("ebbtide: stopped at once by a second signal");
        assert_eq!((code, is_cut_short), (Some(expected), expected == 1), "{said}");
        assert!(said.contains("stopping"), "{said}");
    }
}
