//! The command: which seeds are played, and what is printed.

use std::collections::BTreeMap;
use std::ops::Range;
use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

use ebbtide::telemetry::{self, LogFormat, LogOptions};
use jiff::Timestamp;
use parking_lot::Mutex;

use crate::args;
use crate::coverage::{Coverage, ENOUGH};
use crate::history::History;
use crate::invariants::{self, Violation};
use crate::scenario::Scenario;
use crate::{generate, play, shrink, timeline};

/// Played without arguments: about a minute and a half on two cores.
const USUAL: Range<u64> = 0..40;

/// What is violated where the driver itself panics.
const DRIVER: &str = "the driver does not panic";

const USAGE: &str = "usage: cargo test --test chaos [-- OPTIONS]
  --seeds A..B   plays these seeds on all cores (0..40)
  --seed N       plays one, and prints its scenario and its timeline
  --log LEVEL    with --seed: the program's log at this level, on standard error
  --shrink       makes each failing scenario smaller, and prints it
  --times N      plays each until it fails, so often at most (1): who of those that one event wakes goes first differs from run to run
  --counts       prints how many seeds had each shape, cause and fault";

/// What is asked for.
#[derive(Debug)]
struct Options {
    seeds: Option<Range<u64>>,
    seed: Option<u64>,
    log: Option<tracing::Level>,
    shrinks: bool,
    /// How often each is played, unless it fails before.
    times: usize,
    counts: bool,
    /// Only other tests are meant.
    is_for_others: bool,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self {
            seeds: None,
            seed: None,
            log: None,
            shrinks: false,
            times: 1,
            counts: false,
            is_for_others: false,
        };
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
                "--times" => options.times = args.next()?.parse().ok().filter(|times| *times > 0)?,
                "--counts" => options.counts = true,
                other => options.is_for_others |= args::is_for_others("chaos", other, &mut args)?,
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
    let is_sound = invariants::all_can_fail() & facts_hold(shrink::FACTS);
    let passed = match options.seed {
        Some(seed) => one(seed, &options),
        None => many(options.seeds.clone().unwrap_or(USUAL), &options),
    };
    if is_sound && passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Whether what stands here is true. It needs no run.
fn facts_hold(facts: &[shrink::Fact]) -> bool {
    let wrong: Vec<_> = facts.iter().filter(|(_, holds)| !holds()).map(|(fact, _)| fact).collect();
    for fact in &wrong {
        println!("not true: {fact}");
    }
    wrong.is_empty()
}

/// What came of a scenario.
struct Played {
    /// `None` if the driver itself panicked.
    history: Option<History>,
    violations: Vec<(&'static str, Violation)>,
}

/// Plays a scenario until it violates something, so often at most. Returns the last run.
fn played(scenario: &Scenario, times: usize) -> Played {
    let mut run = played_once(scenario.clone());
    for _ in 1..times {
        if !run.violations.is_empty() {
            break;
        }
        run = played_once(scenario.clone());
    }
    run
}

/// Plays a scenario on a thread of its own, so that nothing of another run is left on it.
fn played_once(scenario: Scenario) -> Played {
    let thread = std::thread::spawn(move || {
        let run = AssertUnwindSafe(|| {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
            let history = runtime.expect("a runtime").block_on(play::play(scenario));
            let violations = invariants::violations(&history);
            Played { history: Some(history), violations }
        });
        std::panic::catch_unwind(run).unwrap_or_else(|_| {
            let what = play::panics::taken().join("; ");
            Played { history: None, violations: vec![(DRIVER, Violation { at: Timestamp::MAX, what })] }
        })
    });
    thread.join().expect("panics are caught")
}

/// The smallest scenario found that violates the same.
fn shrunk(scenario: &Scenario, name: &str, times: usize) -> Scenario {
    let fails =
        |smaller: &Scenario| played(smaller, times).violations.iter().any(|(other, _)| *other == name);
    shrink::shrink(scenario, fails)
}

/// Plays one seed and prints everything. Returns whether it passed.
fn one(seed: u64, options: &Options) -> bool {
    if let Some(level) = options.log {
        // Every line, however many a second the worlds' clock lets come.
        let log = telemetry::subscriber(LogOptions { format: LogFormat::Text, level }, std::io::stderr);
        tracing::subscriber::set_global_default(log).expect("the first");
    }
    let mut scenario = generate::scenario(seed);
    let mut run = played(&scenario, options.times);
    if let Some((name, _)) = run.violations.first().filter(|_| options.shrinks) {
        scenario = shrunk(&scenario, name, options.times);
        run = played(&scenario, options.times);
    }
    println!("{scenario:#?}");
    if let Some(history) = &run.history {
        timeline::print(history);
    }
    for (name, violation) in &run.violations {
        println!("VIOLATED {name}: {} {}", violation.at, violation.what);
    }
    run.violations.is_empty()
}

/// Plays a range of seeds, all of them whatever fails. Returns whether all passed, and nothing was left out.
fn many(range: Range<u64>, options: &Options) -> bool {
    let seeds = range.end.saturating_sub(range.start);
    let failed = Mutex::new(BTreeMap::new());
    let coverage = Mutex::new(Coverage::new());
    on_all_cores(range, |seed| {
        let run = played(&generate::scenario(seed), options.times);
        if let Some(history) = &run.history {
            coverage.lock().add(history);
        }
        if let Some((name, violation)) = run.violations.into_iter().next() {
            println!("seed {seed} violates: {name}\n  {} {}", violation.at, violation.what);
            println!("  replay: cargo test --test chaos -- --seed {seed} --shrink");
            failed.lock().insert(seed, name);
        }
    });
    let failed = failed.into_inner();
    if options.shrinks {
        on_all_cores(failed.iter(), |(seed, name)| {
            let least = shrunk(&generate::scenario(*seed), name, options.times);
            println!("seed {seed} violates: {name}, and so does\n{least:#?}");
        });
    }
    let coverage = coverage.into_inner();
    let is_covered = covered(&coverage, seeds, options);
    println!("chaos: {seeds} seeds, {} h of virtual time, {} failed", coverage.hours(), failed.len());
    if !failed.is_empty() {
        println!("failed: {:?}", failed.keys().collect::<Vec<_>>());
    }
    failed.is_empty() && is_covered
}

/// Does something with each of them, on all cores.
fn on_all_cores<T>(all: impl Iterator<Item = T> + Send, work: impl Fn(T) + Sync) {
    let all = Mutex::new(all);
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                loop {
                    let Some(next) = all.lock().next() else { return };
                    work(next);
                }
            });
        }
    });
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
