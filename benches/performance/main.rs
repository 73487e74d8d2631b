//! Measures the program on the simulated worlds, over sockets, beside a server that does nothing:
//!
//! ```text
//! cargo bench --bench performance [-- ROWS… [--program=PATH] [--curves=FOLDER] [--divide=N]]
//! ```
//!
//! ROWS: start, memory, rpcs, idle, scale-in, mass, binary, curves; without any, all but the curves. docs/performance.md says what
//! they mean. `--divide` makes all clusters so many times smaller, to try the command. The worlds are in this process, the program and
//! the null server in processes of their own. A row that cannot be measured says why, and the next ones are.
#![expect(clippy::print_stdout, reason = "what is measured is printed")]

mod curves;
mod null;
mod rpcs;
mod scale_in;
mod stage;

use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use ebbtide::sim::cluster::Verb;
use futures::FutureExt as _;
use scale_in::Mass;
use stage::{Memory, Program, Size, Stage};
use tokio::time::{Instant, sleep};

/// The clusters of the table.
const MANY: Size = Size { groups: 200, nodes: 25 };
const MORE: Size = Size { groups: 1_000, nodes: 15 };

/// How long a program is left alone before its memory is read, and watched while it is idle.
const SETTLED: Duration = Duration::from_secs(15);
const IDLE: Duration = Duration::from_mins(1);
/// All Nodes have become Ready with the world, and teach their groups' templates a minute later, once. A program with nothing to do is one
/// that has learned that, and written it down.
const LEARNED: Duration = Duration::from_secs(75);

/// No row takes longer than this, nor the rows of a cluster together.
const LONGEST: Duration = Duration::from_mins(20);

/// Prints a row.
fn row(what: &str, told: &str) {
    println!("| {what} | {told} |");
}

/// Measures rows. Returns whether that worked; if not, it is printed why.
async fn measured(what: &str, rows: impl Future<Output = ()>) -> bool {
    let why = match AssertUnwindSafe(tokio::time::timeout(LONGEST, rows)).catch_unwind().await {
        Ok(Ok(())) => return true,
        Ok(Err(_)) => format!("it took more than {} minutes", LONGEST.as_secs() / 60),
        Err(panic) => match panic.downcast::<String>() {
            Ok(message) => *message,
            Err(panic) => (*panic.downcast::<&str>().unwrap_or_else(|_| Box::new("it panicked"))).to_owned(),
        },
    };
    row(what, &format!("not measured: {why}"));
    false
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    if let [flag, own, program, group] = &arguments[..]
        && flag == "--null-server"
    {
        null::run(own, program, group);
        return ExitCode::SUCCESS;
    }
    let option =
        |name: &str| arguments.iter().find_map(|argument| argument.strip_prefix(name)).map(PathBuf::from);
    let program = option("--program=").unwrap_or_else(|| env!("CARGO_BIN_EXE_ebbtide").into());
    let divide =
        option("--divide=").map_or(1, |n| n.to_string_lossy().parse().expect("--divide=N, a number"));
    let wanted: Vec<&str> = arguments.iter().map(String::as_str).filter(|a| !a.starts_with("--")).collect();
    let is_wanted = |name: &str| wanted.contains(&name) || (wanted.is_empty() && name != "curves");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let all_measured = runtime.block_on(async {
        if is_wanted("binary") {
            let bytes = std::fs::metadata(&program).expect("a program").len();
            row("binary, with the simulated worlds", &format!("{:.1} MB", bytes as f64 / 1e6));
        }
        let mut all = true;
        for size in [MANY, MORE].map(|size| size.divided(divide)) {
            if ["start", "memory", "rpcs", "idle"].into_iter().any(is_wanted) {
                let what = format!("{} groups × {} nodes", size.groups, size.nodes);
                all &= measured(&what, cluster(&program, size, &is_wanted)).await;
            }
        }
        for (name, nodes, pods, budgets) in
            [("scale-in", 40, 5, 0), ("mass", 300, 30, 0), ("budgets", 300, 30, 100)]
        {
            if is_wanted(name) {
                let mass = Mass { nodes: nodes / divide as u32, pods, budgets };
                all &= measured(&mass.told(), scale_in::print(&program, mass)).await;
            }
        }
        if is_wanted("curves") {
            all &= curves::draw(&program, option("--curves=").as_deref(), divide).await;
        }
        all
    });
    if all_measured { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the rows of a cluster of this size.
async fn cluster(program: &Path, size: Size, is_wanted: &impl Fn(&str) -> bool) {
    let stage = Stage::open(size).await;
    let what = format!("{} groups × {} nodes", size.groups, size.nodes);
    let started = start(&stage, program, size).await;
    row(&format!("start to all groups answered, {what}"), &started.told());
    sleep(SETTLED).await;
    let Memory { resident, own, peak } = started.program.process.memory();
    let ratio = peak / resident;
    row(
        &format!("resident, {} Nodes", size.all()),
        &format!("{resident:.0} MB ({own:.0} MB without code), peak {peak:.0} MB: {ratio:.2} ×"),
    );
    if is_wanted("idle") {
        let idle = idle(&started.program).await;
        row(&format!("CPU idle, {} Nodes", size.all()), &format!("{idle:.2} % of a core"));
    }
    if is_wanted("rpcs") {
        rpcs::print(&stage, &started.program, &std::env::current_exe().expect("a path")).await;
    }
    let log = stage.log();
    if !log.is_empty() {
        println!("\nThe program's log:\n{log}");
    }
}

/// A start of the program.
struct Started {
    program: Program,
    took: Duration,
    cpu: Duration,
    calls: usize,
    lists: usize,
}

impl Started {
    fn told(&self) -> String {
        format!(
            "{:.2} s, {} calls to AWS, {} pages of Nodes, {:.2} s CPU",
            self.took.as_secs_f64(),
            self.calls,
            self.lists,
            self.cpu.as_secs_f64()
        )
    }
}

async fn start(stage: &Stage, program: &Path, size: Size) -> Started {
    let (program, took) = stage.start(program, size, &[]).await;
    let is_call =
        |entry: &ebbtide::sim::aws::Entry| matches!(entry.what, ebbtide::sim::aws::Event::Called { .. });
    let calls = stage.world.aws.journal().iter().filter(|entry| is_call(entry)).count();
    let lists = stage.world.cluster.requests(Verb::List, "nodes");
    Started { cpu: program.process.cpu(), program, took, calls, lists }
}

/// Share of a core that an idle program takes, in percent.
async fn idle(program: &Program) -> f64 {
    sleep(LEARNED).await;
    let (began, used) = (Instant::now(), program.process.cpu());
    sleep(IDLE).await;
    100.0 * program.process.cpu().saturating_sub(used).as_secs_f64() / began.elapsed().as_secs_f64()
}
