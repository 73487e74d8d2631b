//! `ebbtide simulate`: the real program against a simulated AWS and a simulated cluster, in one process, on virtual time.
//!
//! Plays the scenes of [`scenario`], prints events as they happen ([`witness`]), and ends with a timeline of each node and a
//! verdict from the worlds' journals. The same seed gives the same output, byte for byte.
//!
//! With `--listen` it keeps worlds up in real time instead, for people and their tools ([`hands`], [`cast`]).

mod cast;
mod hands;
mod scenario;
mod witness;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use scenario::Scenario;
use witness::Witness;

use super::report::{self, Report};
use crate::config::Simulate;

/// Plays the simulation. Returns whether every promise was kept.
pub fn run(options: &Simulate) -> anyhow::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build()?;
    if let Some(folder) = &options.listen {
        return runtime.block_on(hands::serve(folder, options)).map(|()| true);
    }
    let report = runtime.block_on(play(options))?;
    let mut out = std::io::stdout().lock();
    if options.json {
        writeln!(out, "{}", report::json(&report))?;
    } else {
        writeln!(out, "\n{}", report::text(&report, std::io::stdout().is_terminal()))?;
    }
    if let Some(path) = &options.svg {
        draw(&report, path).with_context(|| format!("--svg {}", path.display()))?;
    }
    Ok(report.verdict.passed())
}

/// Draws the report to a file, or each scale-in to a file of its own in a folder.
fn draw(report: &Report, path: &Path) -> std::io::Result<()> {
    if !path.is_dir() {
        return std::fs::write(path, report::svg(report));
    }
    for picture in report::pictures(report) {
        std::fs::write(path.join(picture.name).with_extension("svg"), picture.svg)?;
    }
    Ok(())
}

async fn play(options: &Simulate) -> anyhow::Result<Report> {
    // With JSON only the report goes to standard output.
    let witness = Arc::new(Witness::new(!options.json));
    let mut scenario = Scenario::begin(options.seed, Arc::clone(&witness));
    scenario.play().await?;
    let (aws, cluster) = (scenario.world.aws.journal(), scenario.world.cluster.journal());
    Ok(Report::from(&aws, &cluster, &witness.facts_at_the_end(&scenario.world.cluster)))
}
