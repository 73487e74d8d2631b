//! The `ebbtide` binary.

use std::process::ExitCode;

use ebbtide::config::{Command, Config};
use ebbtide::{app, telemetry};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a command line that cannot be used, as most programs have it.
const USAGE: u8 = 2;

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what is asked of a command line is answered there"
)]
#[expect(clippy::disallowed_methods, reason = "this is the one place that hands the environment on")]
fn main() -> ExitCode {
    match Config::parse(std::env::args_os(), |name| std::env::var(name).ok()) {
        Ok(Command::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Command::Serve(config)) => ended(serve(&config)),
        #[cfg(feature = "simulate")]
        Ok(Command::Simulate(simulate)) => match ebbtide::sim::simulate::run(&simulate) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => ended(Err(error)),
        },
        Err(problems) => {
            eprintln!("{problems}");
            ExitCode::from(USAGE)
        }
    }
}

#[expect(clippy::print_stderr, reason = "the last words of a program")]
fn ended(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ebbtide: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(config: &Config) -> anyhow::Result<()> {
    telemetry::init(config.log)?;
    app::block_on(async {
        let stop = CancellationToken::new();
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let outside = tokio::select! {
            outside = app::connect(config) => outside?,
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        };
        let running = app::run(config, outside, stop.clone());
        let signals = async {
            // The first signal stops in good order, the second at once.
            for _ in 0..2 {
                tokio::select! {
                    _ = terminate.recv() => {}
                    _ = interrupt.recv() => {}
                }
                if !stop.is_cancelled() {
                    tracing::info!("stopping");
                    stop.cancel();
                }
            }
        };
        tokio::select! {
            ended = running => Ok(ended?),
            () = signals => {
                tracing::warn!("stopped at once");
                Ok(())
            }
        }
    })?
}
