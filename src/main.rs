//! The `ebbtide` binary.

use std::io::{IsTerminal as _, Write as _};
use std::process::ExitCode;

use ebbtide::clock::Clock;
use ebbtide::cluster::Cluster;
use ebbtide::commands::status::{self, Told};
use ebbtide::commands::{self, CommandError, Style};
use ebbtide::config::{
    Command, Config, FIRST_PROCESS, LookOptions, PlanOptions, PricesOptions, StatusOptions,
};
use ebbtide::{app, telemetry};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Exit code of a command line that cannot be used, as most programs have it.
const USAGE: u8 = 2;

/// Exit code of a check that could not be made, and of one that found an error.
const NOT_CHECKED: u8 = 2;

#[expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what is asked of a command line is answered there"
)]
#[expect(clippy::disallowed_methods, reason = "this is the one place that hands the environment on")]
fn main() -> ExitCode {
    let first = || std::fs::read(FIRST_PROCESS).unwrap_or_default();
    match Config::parse(std::env::args_os(), |name| std::env::var(name).ok(), first) {
        Ok(Command::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(Command::Serve(config)) => ended(serve(&config)),
        Ok(Command::Status(options)) => ended(show_status(&options)),
        Ok(Command::Plan(options)) => ended(plan(&options)),
        Ok(Command::Prices(options)) => ended(prices(&options)),
        Ok(Command::Check(options)) => match check(&options) {
            Ok(code) => ExitCode::from(code),
            Err(error) => {
                eprintln!("ebbtide: {error:#}");
                ExitCode::from(NOT_CHECKED)
            }
        },
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
            telemetry::at_last(move || eprintln!("ebbtide: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Colours are for terminals, and not for those who do not want them (<https://no-color.org>).
#[expect(clippy::disallowed_methods, reason = "a terminal's wish, no option of the program's")]
fn style() -> Style {
    let is_unwanted = std::env::var("NO_COLOR").is_ok_and(|value| !value.is_empty());
    Style { colour: std::io::stdout().is_terminal() && !is_unwanted }
}

/// Moves a terminal's cursor to the top and clears what is below.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// Writes an answer. A reader that has gone (`| head`) wants no more of it.
fn write(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().write_all(text.as_bytes()).and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        written => Ok(written?),
    }
}

#[expect(clippy::print_stderr, reason = "a watch goes on after a look that failed")]
fn show_status(options: &StatusOptions) -> anyhow::Result<()> {
    app::block_on(async {
        let clock = Clock::system();
        let cluster =
            Cluster::connect_to(options.kubeconfig.as_deref(), options.context.as_deref(), None).await?;
        let cluster = cluster.telling(&clock);
        let render = |told: &Told| status::render(told, options.output, style(), clock.cluster());
        if !options.watch {
            return write(&render(&status::look(&cluster, &clock).await?));
        }
        let clear = if std::io::stdout().is_terminal() { CLEAR } else { "" };
        let show = |told: Result<Told, CommandError>| match told {
            Ok(told) => write(&format!("{clear}{}", render(&told))),
            Err(error) => {
                eprintln!("ebbtide: {:#} (looking again)", anyhow::Error::from(error));
                Ok(())
            }
        };
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::select! {
            ended = status::watch(&cluster, &clock, show) => match ended? {},
            _ = interrupt.recv() => Ok(()),
        }
    })?
}

async fn connect(look: &LookOptions, clock: &Clock) -> anyhow::Result<Cluster> {
    let (context, namespace) = (look.context.as_deref(), look.namespace.as_deref());
    Ok(Cluster::connect_to(look.config.kubeconfig.as_deref(), context, namespace).await?.telling(clock))
}

fn check(options: &LookOptions) -> anyhow::Result<u8> {
    app::block_on(async {
        let (clock, config) = (Clock::system(), &options.config);
        let cluster = connect(options, &clock).await?;
        let aws = app::connect_aws(config).await?;
        let facts = commands::check::gather(&cluster, &aws, config, &clock).await;
        let report = commands::check::Report::of(&facts);
        write(&report.render(options.output, style()))?;
        anyhow::Ok(report.exit_code())
    })?
}

fn prices(PricesOptions { explain, look: options }: &PricesOptions) -> anyhow::Result<()> {
    app::block_on(async {
        let aws = app::connect_aws(&options.config).await?;
        let report = commands::prices::look(&aws, &options.config, *explain, &Clock::system()).await?;
        write(&commands::prices::render(&report, options.output, style()))
    })?
}

fn plan(options: &PlanOptions) -> anyhow::Result<()> {
    app::block_on(async {
        let (clock, look) = (Clock::system(), &options.look);
        let config = &look.config;
        let cluster = connect(look, &clock).await?;
        let aws = if config.selectors.is_empty() { None } else { Some(app::connect_aws(config).await?) };
        let preview = commands::plan::look(&cluster, aws.as_ref(), options, &clock).await?;
        write(&commands::plan::render(&preview, look.output, style(), clock.cluster()))
    })?
}

fn serve(config: &Config) -> anyhow::Result<()> {
    let _logs = telemetry::init(config.log)?;
    app::raise_open_files();
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
            // The first signal stops in good order, the second at once, which is no success.
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
            () = signals => Err(anyhow::anyhow!("stopped at once by a second signal")),
        }
    })?
}
