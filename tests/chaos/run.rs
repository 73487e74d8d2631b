//! The command: which seeds are played, and what is printed.

use std::ops::Range;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use ebbtide::telemetry::{self, LogFormat, LogOptions};

use crate::coverage::{Coverage, ENOUGH};
use crate::history::History;
use crate::invariants::{self, Violation};
use crate::scenario::Scenario;
use crate::{generate, play, shrink, timeline};

/// Played without arguments: about a minute and a half on two cores.
const USUAL: Range<u64> = 0..40;

const USAGE: &str = "usage: cargo test --test chaos [-- OPTIONS]
  --seeds A..B   plays these seeds on all cores (0..40)
  --seed N       plays one, and prints its scenario and its timeline
  --log LEVEL    with --seed: the program's log at this level, on standard error
  --shrink       makes a failing scenario smaller, and prints it
  --counts       prints how many seeds had each shape, cause and fault";

/// What is asked for.
#[derive(Debug, Default)]
struct Options {
    seeds: Option<Range<u64>>,
    seed: Option<u64>,
    log: Option<tracing::Level>,
    shrinks: bool,
    counts: bool,
    /// Only other tests are meant.
    is_for_others: bool,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--seeds" => {
                    let range = args.next()?;
                    let (from, to) = range.split_once("..")?;
                    options.seeds = Some(from.parse().ok()?..to.parse().ok()?);
                }
                "--seed" => options.seed = Some(args.next()?.parse().ok()?),
                "--log" => options.log = Some(args.next()?.parse().ok()?),
                "--shrink" => options.shrinks = true,
                "--counts" => options.counts = true,
                // What `cargo test` passes on to every test: how they are run, and the names of those that are meant.
                "--quiet" | "-q" | "--nocapture" | "--show-output" | "--exact" => {}
                "--test-threads" => drop(args.next()),
                flag if flag.starts_with("--test-threads=") => {}
                "--list" => options.is_for_others = true,
                name if !name.starts_with('-') => options.is_for_others |= !"chaos".contains(name),
                _ => return None,
            }
        }
        Some(options)
    }
}

pub(crate) fn main(args: impl Iterator<Item = String>) -> ExitCode {
    let Some(options) = Options::read(args) else {
        println!("{USAGE}");
        return ExitCode::from(2);
    };
    if options.is_for_others {
        return ExitCode::SUCCESS;
    }
    play::panics::listen();
    let is_sound = invariants::all_can_fail();
    let passed = match options.seed {
        Some(seed) => one(seed, &options),
        None => many(options.seeds.clone().unwrap_or(USUAL), &options),
    };
    if is_sound && passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays a scenario on a thread of its own, so that nothing of another run is left on it.
pub(crate) fn played(scenario: Scenario) -> (History, Vec<(&'static str, Violation)>) {
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
        let history = runtime.expect("a runtime").block_on(play::play(scenario));
        let violations = invariants::violations(&history);
        (history, violations)
    });
    thread.join().expect("the driver does not panic")
}

/// Plays one seed and prints everything. Returns whether it passed.
fn one(seed: u64, options: &Options) -> bool {
    if let Some(level) = options.log {
        telemetry::init(LogOptions { format: LogFormat::Text, level }).expect("the first");
    }
    let scenario = generate::scenario(seed);
    let (mut history, mut violations) = played(scenario.clone());
    if let Some((name, _)) = violations.first().filter(|_| options.shrinks) {
        (history, violations) = played(shrink::shrink(&scenario, name));
    }
    println!("{:#?}", history.scenario);
    timeline::print(&history);
    for (name, violation) in &violations {
        println!("VIOLATED {name}: {} {}", violation.at, violation.what);
    }
    violations.is_empty()
}

/// Plays a range of seeds on all cores. Returns whether all passed, and nothing was left out.
fn many(range: Range<u64>, options: &Options) -> bool {
    let next = AtomicU64::new(range.start);
    let failed = AtomicU64::new(0);
    let coverage = Mutex::new(Coverage::new());
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= range.end {
                        return;
                    }
                    let scenario = generate::scenario(seed);
                    let (history, violations) = played(scenario.clone());
                    coverage.lock().expect("unpoisoned").add(&history);
                    if let Some((name, violation)) = violations.first() {
                        failed.fetch_add(1, Ordering::Relaxed);
                        tell(seed, &scenario, name, violation, options);
                    }
                }
            });
        }
    });
    let (failed, seeds) = (failed.into_inner(), range.end.saturating_sub(range.start));
    let is_covered = covered(&coverage.into_inner().expect("unpoisoned"), seeds, options);
    println!("chaos: {seeds} seeds, {failed} failed");
    failed == 0 && is_covered
}

fn tell(seed: u64, scenario: &Scenario, name: &str, violation: &Violation, options: &Options) {
    println!("seed {seed} violates: {name}\n  {} {}", violation.at, violation.what);
    if options.shrinks {
        println!("{:#?}", shrink::shrink(scenario, name));
    }
    println!("  replay: cargo test --test chaos -- --seed {seed} --shrink");
}

/// Whether everything was exercised that enough seeds have.
fn covered(coverage: &Coverage, seeds: u64, options: &Options) -> bool {
    let mut is_covered = true;
    for (line, count) in coverage.counts() {
        if options.counts {
            println!("{count:>6}  {line}");
        }
        if count == 0 && seeds >= ENOUGH {
            println!("never exercised: {line}");
            is_covered = false;
        }
    }
    is_covered
}
