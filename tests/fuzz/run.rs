//! The command: which targets are fed how much, and what is printed.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::process::ExitCode;

use fastrand::Rng;
use tokio::time::Instant;

use crate::MEMORY;
use crate::args;
use crate::mutate::mutated;
use crate::targets::{TARGETS, Target};

/// What a pod of ours can spare for one message, in bytes.
pub(crate) const MOST_MEMORY: usize = 64 << 20;
/// Inputs of a new outcome that are kept to be changed further.
const MOST_KEPT: usize = 4_096;

const USAGE: &str = "usage: cargo test --test fuzz [-- OPTIONS]
  --cases N      changed inputs for each target (2000, or 200 of a slow one)
  --target NAME  only this one
  --seed N       another sequence of changes (0)";

/// What a target made of an input.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// Whether it was taken for something valid.
    pub(crate) accepted: bool,
    /// What somebody is told of it, line by line.
    pub(crate) lines: Vec<String>,
}

#[derive(Debug, Default)]
struct Options {
    cases: Option<u64>,
    target: Option<String>,
    seed: u64,
    is_for_others: bool,
}

impl Options {
    fn read(mut args: impl Iterator<Item = String>) -> Option<Self> {
        let mut options = Self::default();
        while let Some(arg) = args.next() {
            match arg.as_str() {
                "--cases" => options.cases = Some(args.next()?.parse().ok()?),
                "--target" => options.target = Some(args.next()?),
                "--seed" => options.seed = args.next()?.parse().ok()?,
                other => options.is_for_others |= args::is_for_others("fuzz", other, &mut args)?,
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
    std::panic::set_hook(Box::new(|panic| println!("{panic}")));
    let wanted = |target: &&Target| options.target.as_deref().is_none_or(|name| name == target.name);
    let mut failed = 0;
    println!(
        "{:<14} {:>9} {:>9} {:>9} {:>10} {:>8} {:>8}",
        "target", "cases", "accepted", "outcomes", "peak KiB", "line", "µs/case"
    );
    for target in TARGETS.iter().filter(wanted) {
        failed += fuzz(target, options.cases.unwrap_or(target.usual), options.seed);
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Inputs that are kept for a target, in `tests/fuzz/corpus/NAME`.
fn corpus(target: &Target) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(target.name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.iter().map(|path| std::fs::read(path).expect("a file")).collect()
}

/// As many values as fit: a tiny object in JSON can take a hundred times its text.
fn widest(largest: usize) -> [Vec<u8>; 3] {
    let fill = |open: &str, each: &str, close: &str| {
        let times = largest.saturating_sub(open.len() + close.len() + each.len()) / each.len();
        format!("{open}{}{}{close}", each.repeat(times), each.trim_end_matches(',')).into_bytes()
    };
    [
        fill("{\"detail-type\":\"x\",\"a\":[", "{\"\":0},", "]}"),
        fill("{\"node\":{\"metadata\":{\"a\":", "{\"a\":", "}}}"),
        fill("{", "\"a\":{},", "}"),
    ]
}

#[derive(Debug, Default)]
struct Figures {
    cases: u64,
    accepted: u64,
    outcomes: HashSet<u64>,
    peak: usize,
    line: usize,
}

/// Feeds a target. Returns how many inputs it failed on.
fn fuzz(target: &Target, cases: u64, seed: u64) -> u64 {
    let mut rng = Rng::with_seed(seed);
    let mut kept = corpus(target);
    assert!(!kept.is_empty(), "{} has no corpus", target.name);
    kept.extend([target.largest, target.largest / 4].into_iter().flat_map(widest));
    let mut pool = kept.clone();
    let mut figures = Figures::default();
    let begun = Instant::now();
    let mut failed = 0;
    for number in 0..kept.len() as u64 + cases {
        let input = match kept.get(usize::try_from(number).unwrap_or(usize::MAX)) {
            Some(input) => input.clone(),
            None => mutated(&pool, target.words, target.largest, &mut rng),
        };
        match case(target, &input, &mut figures) {
            Ok(is_new) if is_new && pool.len() < MOST_KEPT && input.len() < 1 << 14 => pool.push(input),
            Ok(_) => {}
            Err(what) => {
                failed += 1;
                tell(target, number, seed, &input, &what);
                if failed == 10 {
                    break;
                }
            }
        }
    }
    let each = begun.elapsed().as_micros() / u128::from(figures.cases.max(1));
    println!(
        "{:<14} {:>9} {:>9} {:>9} {:>10} {:>8} {:>8}",
        target.name,
        figures.cases,
        figures.accepted,
        figures.outcomes.len(),
        figures.peak >> 10,
        figures.line,
        each
    );
    failed
}

/// One input. Returns whether its outcome is new, or what does not hold.
fn case(target: &Target, input: &[u8], figures: &mut Figures) -> Result<bool, String> {
    let before = MEMORY.current_usage();
    MEMORY.reset_peak_usage();
    let told = catch_unwind(AssertUnwindSafe(|| (target.feed)(input)));
    let peak = MEMORY.peak_usage().saturating_sub(before);
    let told = told.map_err(|_| "it panics".to_owned())??;
    figures.cases += 1;
    figures.accepted += u64::from(told.accepted);
    figures.peak = figures.peak.max(peak);
    if peak > MOST_MEMORY {
        return Err(format!("it takes {} MiB", peak >> 20));
    }
    for line in &told.lines {
        let length = line.chars().count();
        figures.line = figures.line.max(length);
        if length > target.line {
            return Err(format!("a line of {length} characters: {line:.200}"));
        }
        if line.chars().any(char::is_control) {
            return Err(format!("a line with control characters: {line:?}"));
        }
    }
    Ok(figures.outcomes.insert(shape(&told)))
}

/// What kind of outcome it is: figures and quoted parts of lines do not make another one.
fn shape(told: &Told) -> u64 {
    let mut hasher = DefaultHasher::new();
    told.accepted.hash(&mut hasher);
    for line in told.lines.iter().take(3) {
        let plain = line.split('"').step_by(2).flat_map(str::chars).filter(char::is_ascii_alphabetic);
        plain.take(60).for_each(|letter| letter.hash(&mut hasher));
    }
    hasher.finish()
}

/// Prints what an input did, and writes the input where it can be looked at.
fn tell(target: &Target, number: u64, seed: u64, input: &[u8], what: &str) {
    let path = std::env::temp_dir().join(format!("ebbtide-fuzz-{}-{seed}-{number}", target.name));
    let written = std::fs::write(&path, input);
    println!("{}: {what}\n  an input of {} bytes: {} {written:?}", target.name, input.len(), path.display());
    println!(
        "  once the defect is found: make the input small, and keep it in tests/fuzz/corpus/{}",
        target.name
    );
}
