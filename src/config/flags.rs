//! The flags as clap reads them: values as typed, from the command line or else the environment.
//!
//! Clap stops at the first problem. To report all, each problem is noted and its argument removed, until clap accepts the
//! rest.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write as _;
use std::path::Path;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, CommandFactory as _, FromArgMatches as _};

use super::commands::{Asker, Output, StatusOptions};
use super::problem::Problem;
#[cfg(feature = "simulate")]
use super::values::Simulate;

pub(super) const COMMANDS: &str = if cfg!(feature = "simulate") {
    "serve, status, plan, check, prices, completions or simulate"
} else {
    "serve, status, plan, check, prices or completions"
};

/// What the program is called as a plugin of kubectl.
const PLUGIN: &str = "kubectl ebbtide";

const SERVE: &str = "serve";

/// The commands that look by the flags of `serve`, and read them from the environment as it does.
pub(super) const LOOKS: [&str; 3] = ["plan", "check", "prices"];

/// The cluster-autoscaler cloud provider for EC2 Auto Scaling groups that drains every node before it goes.
#[derive(Debug, clap::Parser)]
#[command(name = "ebbtide", version)]
struct Cli {
    #[command(subcommand)]
    command: Sub,
}

#[derive(Debug, clap::Subcommand)]
pub(super) enum Sub {
    /// Serve cluster-autoscaler over gRPC, and drain nodes before they go.
    Serve(Box<ServeFlags>),
    /// Show the scale-ins under way, by what Nodes and pods tell: needs a kubeconfig only.
    Status(StatusOptions),
    /// Show what a scale-in of a node would do now: who is evicted when, who stays, who blocks, how long at most, how the
    /// instance is released. Changes nothing. Takes the flags of `serve`; without a group's selector, AWS is not asked.
    Plan(PlanFlags),
    /// Show what is missing or wrong in rights, groups, hooks, tags, cluster-autoscaler's flags, certificates and the Lease, each
    /// with its fix. Changes nothing. Takes the flags of `serve`. Exits with 2 for an error, 1 for a warning.
    Check(LookFlags),
    /// Show what a node of each group costs an hour, in all, for each vCPU and for each GiB, and where that is from. Needs AWS only.
    /// Takes the flags of `serve`; unless --prices=table, AWS is asked for its prices.
    Prices(PricesFlags),
    /// Print a script that completes command lines in a shell.
    Completions {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Print the manual page of the program, or of one of its commands (roff).
    #[command(hide = true)]
    Man {
        /// Name of the command.
        command: Option<String>,
    },
    /// Show the program at work on a simulated AWS and cluster: no account, cluster or configuration needed.
    #[cfg(feature = "simulate")]
    Simulate(Simulate),
}

/// The flags of `plan`, as typed.
#[derive(Debug, clap::Args)]
pub(super) struct PlanFlags {
    /// Name of the Node.
    pub(super) node: String,
    /// Who requests the scale-in.
    #[arg(long, value_name = "CAUSE", value_enum, default_value = "autoscaler")]
    pub(super) cause: Asker,
    #[command(flatten)]
    pub(super) look: LookFlags,
}

/// The flags of `prices`, as typed.
#[derive(Debug, clap::Args)]
pub(super) struct PricesFlags {
    /// Say too which of the groups the gRPC expander would grow if each could take the same pods, and why.
    #[arg(long)]
    pub(super) explain: bool,
    #[command(flatten)]
    pub(super) look: LookFlags,
}

/// The flags of `check`, and of `plan` and `prices` besides their own, as typed: those of `serve`, and how a person asks.
#[derive(Debug, clap::Args)]
pub(super) struct LookFlags {
    /// How the answer is written.
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value = "table")]
    pub(super) output: Output,
    /// Context of the kubeconfig. If not given, its current one.
    #[arg(long, value_name = "NAME")]
    pub(super) context: Option<String>,
    /// Namespace of ebbtide's Lease and ConfigMaps. If not given, the context's; in a pod, the pod's.
    #[arg(short, long, value_name = "NAME")]
    pub(super) namespace: Option<String>,
    #[command(flatten)]
    pub(super) flags: Box<ServeFlags>,
}

/// The flags of `serve`, as typed.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct ServeFlags {
    /// Address and port, or Unix socket (unix:///PATH), of the gRPC server. Without certificates only a loopback address or
    /// a Unix socket.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8086")]
    pub(super) listen: String,
    /// Address and port of /livez, /readyz, /metrics, /status and /status.json.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9086")]
    pub(super) admin_listen: String,
    /// The server's certificate chain, PEM. Needs --tls-key and --tls-client-ca. All TLS files are read again when they
    /// change.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_cert: Option<String>,
    /// The private key of --tls-cert, PEM.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_key: Option<String>,
    /// Certificate authorities of clients, PEM. Clients without a certificate of theirs are refused.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_client_ca: Option<String>,
    /// Revocation lists of the --tls-client-ca authorities, PEM, one for each. A client whose authority has none is refused.
    #[arg(long, value_name = "FILE")]
    pub(super) tls_client_crl: Option<String>,
    /// Address and port of the gRPC expander (--expander=grpc), beside --listen: cluster-autoscaler wants TLS there and shows no
    /// certificate, not even on loopback. Needs --expander-tls-cert and --expander-tls-key, or --tls-cert and --tls-key.
    #[arg(long, value_name = "ADDRESS")]
    pub(super) expander_listen: Option<String>,
    /// The certificate chain at --expander-listen, PEM. If not given, that of --tls-cert.
    #[arg(long, value_name = "FILE")]
    pub(super) expander_tls_cert: Option<String>,
    /// The private key of --expander-tls-cert, PEM.
    #[arg(long, value_name = "FILE")]
    pub(super) expander_tls_key: Option<String>,
    /// File with the criteria of the expander, most important first, one a line: capacity, price, interruptions, zone-balance,
    /// fewest-nodes, each alone or with a tolerance, as price 5%. Read at each call. If not given, all of them in this order, price
    /// with 5%.
    #[arg(long, value_name = "FILE")]
    pub(super) expander_policy: Option<String>,
    /// Publish the expander's choices as Events too, on the ConfigMap of --templates-config-map, at most one a second: true, false.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub(super) expander_events: String,
    /// Name of a client that is let in: a subject alternative name or the common name of its certificate. Repeatable. If not
    /// given, every client with a certificate of --tls-client-ca.
    #[arg(long, value_name = "NAME")]
    pub(super) allowed_client: Vec<String>,
    /// AWS region. If not given, the AWS SDK's.
    #[arg(long, value_name = "NAME")]
    pub(super) region: Option<String>,
    /// URL of the AWS APIs. If not given, the AWS SDK's (which reads `AWS_ENDPOINT_URL`).
    #[arg(long, value_name = "URL")]
    pub(super) endpoint_url: Option<String>,
    /// Kubeconfig file. If not given, `KUBECONFIG`, ~/.kube/config or the pod's service account.
    #[arg(long, value_name = "FILE")]
    pub(super) kubeconfig: Option<String>,
    /// Groups by tag, in cluster-autoscaler's syntax: `asg:tag=KEY[=VALUE],…`; all tags must match. Repeatable: any may
    /// match.
    #[arg(long, value_name = "SELECTOR")]
    pub(super) node_group_auto_discovery: Vec<String>,
    /// A group by name, in cluster-autoscaler's syntax: `MIN:MAX:NAME`. Repeatable.
    #[arg(long, value_name = "SELECTOR")]
    pub(super) nodes: Vec<String>,
    /// Name of the cluster: groups whose tags name another cluster are left out. If not given, the name in the keys of
    /// --node-group-auto-discovery (`kubernetes.io/cluster/NAME`, `k8s.io/cluster-autoscaler/NAME`).
    #[arg(long, value_name = "NAME")]
    pub(super) cluster_name: Option<String>,
    /// Time between two refreshes of the groups from AWS, 1s to 1h. Refreshes come sooner after a change of ours, and while
    /// something is under way.
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    pub(super) refresh_interval: String,
    /// Age of the last successful refresh above which cluster-autoscaler gets UNAVAILABLE instead of answers, up to 24h; at
    /// least twice --refresh-interval, or 1m longer: the next refresh may be slow, or fail and be repeated.
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    pub(super) snapshot_max_age: String,
    /// Take instance types from the built-in table only, without asking EC2: true, false.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub(super) static_instance_types: String,
    /// Share of an instance's memory that the hypervisor and the kernel keep, 0% to 50%. If not given, 7.5% of the first 32
    /// GiB and 4.5% of the rest.
    #[arg(long, value_name = "SHARE")]
    pub(super) memory_overhead: Option<String>,
    /// Pods per node on an overlay network (Calico, Cilium), 1 to 2000. none: as many as the VPC CNI has addresses for.
    #[arg(long, value_name = "COUNT", default_value = "none")]
    pub(super) max_pods: String,
    /// Resources in the template of a group with several instance types: each one's minimum over the types (min), those of
    /// the first type (first), each one's maximum (max).
    #[arg(long, value_name = "CHOICE", default_value = "min")]
    pub(super) mixed_instances: String,
    /// Answer autoscaling options from groups' tags to cluster-autoscaler 1.35 and later too, although it then takes
    /// MaxNodeStartupTime for 0: true, false.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub(super) zero_node_startup_time: String,
    /// What nodes and pods cost, for cluster-autoscaler's --expander=price: off, table (On-Demand prices by the built-in table), aws
    /// (EC2's spot prices and the Price List; needs deploy/aws/iam/prices.json). With off, that expander picks nothing. See docs/prices.md.
    #[arg(long, value_name = "SOURCE", default_value = "off")]
    pub(super) prices: String,
    /// Time for DaemonSet pods to flush after the last workload has left, 0s to 1h.
    #[arg(long, value_name = "DURATION", default_value = "5s")]
    pub(super) daemonset_flush: String,
    /// Longest time beyond --daemonset-flush that a DaemonSet pod can ask for with its annotation ebbtide/flush-seconds, 0s
    /// to 1h.
    #[arg(long, value_name = "DURATION", default_value = "2m")]
    pub(super) daemonset_flush_beyond: String,
    /// Namespace whose DaemonSet pods can ask for --daemonset-flush-beyond. Repeatable. If not given, all namespaces.
    #[arg(long, value_name = "NAME")]
    pub(super) daemonset_flush_namespace: Vec<String>,
    /// Namespace whose pods can ask for a place in the order of a drain with their annotation ebbtide/drain-order. Repeatable.
    /// If not given, all namespaces.
    #[arg(long, value_name = "NAME")]
    pub(super) drain_order_namespace: Vec<String>,
    /// Keep cluster-autoscaler from evicting DaemonSet pods on nodes that it may drain: true, false.
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub(super) daemonset_guard: String,
    /// How long a drain that cluster-autoscaler did not request (a person's, a rebalance, an instance refresh) waits for
    /// pods that asked not to be disturbed before it evicts them, 1s to 30days. none: no limit.
    #[arg(long, value_name = "DURATION", default_value = "none")]
    pub(super) patience: String,
    /// Longest time from the request of a scale-in to the release, whatever its cause: more than 10s longer than
    /// --daemonset-flush, up to 30days. cluster-autoscaler's request is DeleteNodes: its own drain before that is not covered.
    /// none: no limit but the lifecycle hook's. A group's tag ebbtide/drain-timeout beats it.
    #[arg(long, value_name = "DURATION", default_value = "none")]
    pub(super) drain_timeout: String,
    /// What to do with pods still there when --drain-timeout ends: delete, wait (keep evicting under their budgets, and name them
    /// in an Event). At limits set by AWS (a lifecycle hook's, a spot interruption's) pods are always deleted.
    #[arg(long, value_name = "CHOICE", default_value = "delete")]
    pub(super) on_deadline: String,
    /// Evictions a second over all nodes, 0.01 to 1000; nodes take turns. Deadlines never wait for it. Those of
    /// cluster-autoscaler's own drain, before it calls DeleteNodes, are not covered. none: no limit.
    #[arg(long, value_name = "NUMBER", default_value = "none")]
    pub(super) eviction_qps: String,
    /// How long an instance that was scaled in must have left its group before its Node is deleted, if no cloud controller does it
    /// and the Node is not Ready, 2m to 30days. Needs deploy/rbac-delete-nodes.yaml. none: never.
    #[arg(long, value_name = "DURATION", default_value = "none")]
    pub(super) delete_node_after: String,
    /// Release an instance only when no load balancer reaches it any more, at most for the deregistration delay: true, false.
    /// Needs deploy/aws/iam/load-balancers.json, see docs/scale-in.md.
    #[arg(long, value_name = "BOOL", default_value = "false")]
    pub(super) wait_for_load_balancers: String,
    /// How many scale-ins requested by annotation, for maintenance more than a day away or on rebalance recommendations run at once
    /// in a group: a number, or a share of its instances like 10%; at least one. The others wait.
    #[arg(long, value_name = "NUMBER|SHARE", default_value = "10%")]
    pub(super) max_operator_scale_ins: String,
    /// Name of our lifecycle hook: hooks of this name are completed by ebbtide, others left alone.
    #[arg(long, value_name = "NAME", default_value = "ebbtide")]
    pub(super) lifecycle_hook: String,
    /// Put our lifecycle hook on the groups, and keep it as configured: off (or false), on (or true), retain. With retain,
    /// groups also keep an instance whose hook times out, workloads running, until ebbtide has drained it. Needs permissions
    /// of its own, see docs/lifecycle-hooks.md.
    #[arg(long, value_name = "MODE", default_value = "off", num_args = 0..=1, default_missing_value = "on")]
    pub(super) manage_lifecycle_hooks: String,
    /// Heartbeat time-out of the hooks of --manage-lifecycle-hooks, 30s to 2h: how long an instance is held while no ebbtide
    /// runs. In all, the hook holds it for at most 100 times that, up to 48h.
    #[arg(long, value_name = "DURATION", default_value = "300s")]
    pub(super) hook_heartbeat: String,
    /// URL of an SQS queue with notices from AWS: lifecycle actions, spot interruptions, rebalance recommendations, AWS Health,
    /// state changes. Without one, only refreshes show what happens. Repeatable: each queue has a name of its own.
    #[arg(long, value_name = "URL")]
    pub(super) queue_url: Vec<String>,
    /// What to do on a rebalance recommendation, unless the group has Capacity Rebalancing and a terminating hook: drain (in
    /// turn, and have it replaced), cordon (for an hour), nothing.
    #[arg(long, value_name = "CHOICE", default_value = "cordon")]
    pub(super) on_rebalance: String,
    /// What to do when AWS Health announces maintenance, retirement or reboot of an instance: drain (and have it replaced),
    /// cordon (until it is over), nothing.
    #[arg(long, value_name = "CHOICE", default_value = "drain")]
    pub(super) on_scheduled_event: String,
    /// Name of the ConfigMap, in this program's namespace, that stores what is learned of the groups' nodes.
    #[arg(long, value_name = "NAME", default_value = "ebbtide-templates")]
    pub(super) templates_config_map: String,
    /// Drain and release nodes only while holding a Lease, so that of several processes one does it at a time: true, false.
    #[arg(long, value_name = "BOOL", default_value = "true")]
    pub(super) leader_elect: String,
    /// Name of that Lease, in this program's namespace.
    #[arg(long, value_name = "NAME", default_value = "ebbtide")]
    pub(super) leader_elect_resource_name: String,
    /// Name of this process's pod. If an earlier run of the same pod holds the Lease, this one takes over at once; when the pod's own
    /// node is scaled in, the process hands over first. If not given, neither happens.
    #[arg(long, value_name = "NAME")]
    pub(super) leader_elect_pod: Option<String>,
    /// Answer every read and change nothing, in AWS or in the cluster: what would have been done is in the log, the metrics and on
    /// the status page. Takes no Lease and reads no queue. For a while beside another provider: true, false.
    #[arg(long, value_name = "BOOL", default_value = "false", num_args = 0..=1, default_missing_value = "true")]
    pub(super) dry_run: String,
    /// URL of an OpenTelemetry collector (OTLP over gRPC) that gets a trace of every scale-in once it has ended, like
    /// http://collector:4317. If not given, none is.
    #[arg(long, value_name = "URL")]
    pub(super) otlp_endpoint: Option<String>,
    /// Format of the log: text, json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(super) log_format: String,
    /// Least severe level that is logged: error, warn, info, debug, trace.
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub(super) log_level: String,
}

/// A command line as read, with its syntax problems.
pub(super) enum Read {
    Print(String),
    Unclear(Vec<Problem>),
    Command(Box<Sub>, Vec<Problem>),
}

/// The command as it is called, as far as there is such a command: `ebbtide serve`.
pub(super) fn called(args: &[OsString]) -> String {
    let name = if args.first().is_some_and(|name| is_plugin(name)) { PLUGIN } else { "ebbtide" };
    let given = args.get(1).and_then(|arg| arg.to_str());
    let command = given.filter(|given| Cli::command().find_subcommand(given).is_some());
    command.map_or_else(|| name.to_owned(), |command| format!("{name} {command}"))
}

/// Reads the arguments, and the environment for flags of `serve` that are not among them.
pub(super) fn read(mut args: Vec<OsString>, env: &dyn Fn(&str) -> Option<String>) -> Read {
    let mut problems = Vec::new();
    if let Some(name) = args.first_mut().filter(|name| is_plugin(name)) {
        *name = PLUGIN.into();
    }
    let matches = match settle(&mut args, &mut problems) {
        Ok(matches) => matches,
        Err(stop) => return stop,
    };
    let matches = match matches.subcommand() {
        Some((name, given)) if name == SERVE || LOOKS.contains(&name) => {
            args.extend(from_env(given, env));
            match settle(&mut args, &mut problems) {
                Ok(matches) => matches,
                Err(stop) => return stop,
            }
        }
        _ => matches,
    };
    match Cli::from_arg_matches(&matches) {
        Ok(Cli { command: Sub::Completions { shell } }) => Read::Print(completions(shell)),
        Ok(Cli { command: Sub::Man { command } }) => manual(command.as_deref()),
        Ok(Cli { command }) => Read::Command(Box::new(command), problems),
        Err(error) => {
            problems.push(problem(&error));
            Read::Unclear(problems)
        }
    }
}

/// The script that completes command lines.
fn completions(shell: clap_complete::Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "ebbtide", &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// The manual page of the program or of a command.
fn manual(of: Option<&str>) -> Read {
    let mut command = command();
    command.build();
    let command = match of {
        Some(name) => command.find_subcommand(name).cloned(),
        None => Some(command),
    };
    let mut page = Vec::new();
    match command.map(|command| clap_mangen::Man::new(command).render(&mut page)) {
        Some(Ok(())) => Read::Print(String::from_utf8_lossy(&page).into_owned()),
        _ => Read::Unclear(vec![Problem::new("", format!("there is no such command: {COMMANDS}"))]),
    }
}

/// The command as users see it: the help names each flag's environment variable.
fn command() -> clap::Command {
    let of_serve: BTreeSet<String> = flags_of_serve().iter().filter_map(variable).collect();
    let with_variables = |command: clap::Command| {
        command.mut_args(|arg| {
            let variable = variable(&arg).filter(|variable| of_serve.contains(variable));
            match (variable, arg.get_help().map(StyledStr::to_string)) {
                (Some(variable), Some(help)) => arg.help(format!("{help} [env: {variable}]")),
                _ => arg,
            }
        })
    };
    LOOKS
        .into_iter()
        .chain([SERVE])
        .fold(Cli::command(), |all, name| all.mut_subcommand(name, with_variables))
}

fn flags_of_serve() -> Vec<Arg> {
    let command = Cli::command();
    let flags = command.find_subcommand("serve").into_iter().flat_map(clap::Command::get_arguments);
    flags.cloned().collect()
}

/// The environment variable of a flag of `serve`.
fn variable(arg: &Arg) -> Option<String> {
    arg.get_long().filter(|long| *long != "help").map(variable_of)
}

/// The environment variable of a flag that is written like this.
pub(super) fn variable_of(long: &str) -> String {
    format!("EBBTIDE_{}", long.replace('-', "_").to_uppercase())
}

/// Arguments from the environment, for flags not on the command line.
fn from_env(serve: &ArgMatches, env: &dyn Fn(&str) -> Option<String>) -> Vec<OsString> {
    let mut args = Vec::new();
    for flag in &flags_of_serve() {
        let given = serve.value_source(flag.get_id().as_str()) == Some(ValueSource::CommandLine);
        let Some(value) = variable(flag).filter(|_| !given).and_then(|variable| env(&variable)) else {
            continue;
        };
        let long = flag.get_long().unwrap_or_default();
        if matches!(flag.get_action(), ArgAction::Append) {
            let values = value.split([';', '\n']).map(str::trim).filter(|value| !value.is_empty());
            args.extend(values.map(|value| format!("--{long}={value}").into()));
        } else if !value.trim().is_empty() {
            args.push(format!("--{long}={}", value.trim()).into());
        }
    }
    args
}

/// Whether kubectl finds the program under this name.
///
/// Source: [kubectl plugins](https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/).
fn is_plugin(name: &OsStr) -> bool {
    Path::new(name).file_name().is_some_and(|name| name == "kubectl-ebbtide")
}

/// Notes each problem and removes its argument, until clap accepts the line.
fn settle(args: &mut Vec<OsString>, problems: &mut Vec<Problem>) -> Result<ArgMatches, Read> {
    loop {
        let error = match command().try_get_matches_from(args.iter()) {
            Ok(matches) => return Ok(matches),
            Err(error) => error,
        };
        if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
            return Err(Read::Print(error.render().to_string()));
        }
        let problem = problem(&error);
        let taken_off = take_off(args, &problem.flag);
        problems.push(problem);
        if !taken_off {
            return Err(Read::Unclear(std::mem::take(problems)));
        }
    }
}

/// Clap's problem in a few words.
fn problem(error: &clap::Error) -> Problem {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(ContextValue::Strings(texts)) => texts.first().map(String::as_str),
        _ => None,
    };
    let flag = context(ContextKind::InvalidArg).map(name_of);
    let text = match error.kind() {
        ErrorKind::UnknownArgument if flag.is_some_and(|flag| !flag.starts_with('-')) => {
            "nothing is expected here but flags, which begin with --".to_owned()
        }
        ErrorKind::UnknownArgument => match context(ContextKind::SuggestedArg) {
            Some(similar) => format!("there is no such flag; is it {similar}?"),
            None => "there is no such flag".to_owned(),
        },
        ErrorKind::InvalidValue => {
            match (context(ContextKind::InvalidValue), error.get(ContextKind::ValidValue)) {
                (Some(given), Some(ContextValue::Strings(known))) if !given.is_empty() => {
                    format!("{given:?} is none of {}", known.join(", "))
                }
                _ => "needs a value".to_owned(),
            }
        }
        ErrorKind::MissingRequiredArgument => "is missing".to_owned(),
        ErrorKind::NoEquals => "needs a value".to_owned(),
        ErrorKind::TooManyValues => "takes no value".to_owned(),
        ErrorKind::ArgumentConflict => match context(ContextKind::PriorArg).map(name_of) {
            Some(other) if Some(other) != flag => format!("cannot be given together with {other}"),
            _ => "is given more than once".to_owned(),
        },
        ErrorKind::ValueValidation => {
            let value = context(ContextKind::InvalidValue).unwrap_or_default();
            let why = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            format!("{value:?} is not good: {why}")
        }
        ErrorKind::InvalidSubcommand => {
            let given = context(ContextKind::InvalidSubcommand).unwrap_or_default();
            format!("there is no command {given:?}: {COMMANDS}")
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("a command is needed: {COMMANDS}")
        }
        kind => kind.to_string(),
    };
    Problem::new(flag.unwrap_or_default(), text)
}

/// The flag itself of one that clap names with its value, as in `--listen <ADDRESS>` or `--listen [<FOLDER>]`.
fn name_of(arg: &str) -> &str {
    arg.split([' ', '=']).next().unwrap_or(arg)
}

/// Removes a flag's first occurrence and its value, if one follows. False if the flag is not there.
fn take_off(args: &mut Vec<OsString>, flag: &str) -> bool {
    if flag.is_empty() {
        return false;
    }
    let with_value = format!("{flag}=");
    let is_flag = |arg: &OsStr| arg.to_string_lossy().starts_with("--");
    let starts = |arg: &OsStr| arg.to_string_lossy().starts_with(&with_value);
    // The first argument is the program's name, not a flag.
    let Some(at) = (1..args.len()).find(|&at| args[at] == flag || starts(&args[at])) else {
        return false;
    };
    let removed = args.remove(at);
    let value_follows = args.get(at).is_some_and(|next| !is_flag(next));
    if removed == flag && is_flag(&removed) && value_follows {
        args.remove(at);
    }
    true
}

/// The flags of `serve` as a Markdown table. `docs/flags.md` adds a column: when to change each.
pub fn flags_table() -> String {
    let mut table = String::from("| flag | default | meaning |\n| --- | --- | --- |\n");
    for flag in &flags_of_serve() {
        let (Some(long), Some(_)) = (flag.get_long(), variable(flag)) else { continue };
        let default = flag.get_default_values().first().map(|value| value.to_string_lossy().into_owned());
        let default = default.map(|value| format!("`{value}`")).unwrap_or_default();
        let help = flag.get_help().map(StyledStr::to_string).unwrap_or_default();
        let help = help.trim_end_matches('.').replace('|', "\\|");
        let _ = writeln!(table, "| `--{long}` | {default} | {help} |");
    }
    table
}
