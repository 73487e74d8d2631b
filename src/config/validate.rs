//! From flags as typed to a configuration: every value is looked at, whatever is wrong with the others.

use std::fs::File;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use tracing::Level;

use super::flags::ServeFlags;
use super::problem::Problem;
use super::values::Config;
use crate::aws::{MOST_PODS, Proxy};
use crate::cluster::Candidate;
use crate::groups::selector::Selectors;
use crate::provider::listen::BadListen;
use crate::provider::tls::TlsFile;
use crate::provider::{Listen, Tls, TlsOptions};
use crate::scale_in::AtOnce;
use crate::telemetry::{LogFormat, LogOptions, chain};
use crate::template::{MixedInstances, Settings};

/// What a drain takes without a flush and without workloads that need time, with a margin.
const LEAST_DRAIN: Duration = Duration::from_secs(10);

const HOUR: Duration = Duration::from_hours(1);

/// A look takes AWS some requests, which are throttled from a few a second on; the size of a group that somebody else
/// has changed must not be wrong for long.
const REFRESH: RangeInclusive<Duration> = Duration::from_secs(1)..=HOUR;
/// Past a day what is remembered of AWS has little to do with it.
const MAX_AGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);
/// A flush is for what is left in buffers.
const FLUSH: RangeInclusive<Duration> = Duration::ZERO..=HOUR;
/// Longer than any hook may hold an instance (48 h), short enough to be no slip of the unit.
const DRAIN: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(30 * 24);
/// A hypervisor that keeps more than half of the memory is a slip of the comma.
const SHARE: RangeInclusive<f64> = 0.0..=50.0;

/// The configuration, or none if a problem was added that leaves a hole in it.
pub(super) fn config(flags: ServeFlags, proxy: Option<Proxy>, problems: &mut Vec<Problem>) -> Option<Config> {
    let listen = listen(&flags.listen, problems);
    let admin_listen = address("--admin-listen", &flags.admin_listen, problems);
    if let (Some(Listen::Tcp(listen)), Some(admin)) = (&listen, admin_listen)
        && *listen == admin
        && listen.port() != 0
    {
        problems.push(Problem::new("--admin-listen", format!("{admin} is the address of --listen")));
    }
    let tls = tls(&flags, listen.as_ref(), problems);
    let election = election(&flags, problems);
    let region = named("--region", flags.region, is_region, "a region is like eu-central-1", problems);
    let endpoint_url =
        named("--endpoint-url", flags.endpoint_url, is_url, "it is to be http://… or https://…", problems);
    let kubeconfig = kubeconfig(flags.kubeconfig, problems);
    let selectors = selectors(&flags.node_group_auto_discovery, &flags.nodes, problems);
    let cluster =
        named("--cluster-name", flags.cluster_name, is_cluster_name, "it is the name in tags", problems);
    let selectors = selectors.of_cluster(cluster);
    let refresh_interval = duration("--refresh-interval", &flags.refresh_interval, &REFRESH, problems);
    let snapshot_max_age = duration("--snapshot-max-age", &flags.snapshot_max_age, &MAX_AGE, problems);
    if let (Some(interval), Some(age)) = (refresh_interval, snapshot_max_age)
        && age < interval
    {
        let text = format!("{} is shorter than --refresh-interval", flags.snapshot_max_age);
        problems.push(Problem::new("--snapshot-max-age", text));
    }
    let static_types = boolean("--static-instance-types", &flags.static_instance_types, problems);
    let memory_overhead = share("--memory-overhead", &flags.memory_overhead, problems);
    let max_pods = match flags.max_pods.as_str() {
        "none" => Some(None),
        text => pods("--max-pods", text, problems).map(Some),
    };
    let mixed = mixed_instances("--mixed-instances", &flags.mixed_instances, problems);
    let zero_node_startup_time = boolean("--zero-node-startup-time", &flags.zero_node_startup_time, problems);
    let daemonset_flush = duration("--daemonset-flush", &flags.daemonset_flush, &FLUSH, problems);
    let daemonset_guard = boolean("--daemonset-guard", &flags.daemonset_guard, problems);
    let daemonset_flush_beyond =
        duration("--daemonset-flush-beyond", &flags.daemonset_flush_beyond, &FLUSH, problems);
    let patience = match flags.patience.as_str() {
        "none" => Some(None),
        text => duration("--patience", text, &DRAIN, problems).map(Some),
    };
    let drain_timeout = match flags.drain_timeout.as_str() {
        "none" => Some(None),
        text => duration("--drain-timeout", text, &DRAIN, problems).map(Some),
    };
    if let (Some(flush), Some(Some(timeout))) = (daemonset_flush, drain_timeout)
        && timeout <= flush + LEAST_DRAIN
    {
        let text = format!(
            "{} leaves workloads no time: it has to be more than 10s longer than --daemonset-flush",
            flags.drain_timeout
        );
        problems.push(Problem::new("--drain-timeout", text));
    }
    let max_operator_scale_ins = at_once("--max-operator-scale-ins", &flags.max_operator_scale_ins, problems);
    check_names(
        &flags.lifecycle_hook,
        &flags.templates_config_map,
        &flags.daemonset_flush_namespace,
        problems,
    );
    let format = log_format(&flags.log_format, problems);
    let level = log_level(&flags.log_level, problems);
    Some(Config {
        listen: listen?,
        admin_listen: admin_listen?,
        tls,
        region,
        endpoint_url,
        proxy,
        kubeconfig,
        selectors,
        refresh_interval: refresh_interval?,
        snapshot_max_age: snapshot_max_age?,
        templates: Settings {
            memory_overhead: memory_overhead?,
            max_pods: max_pods?,
            mixed: mixed?,
            static_types: static_types?,
        },
        zero_node_startup_time: zero_node_startup_time?,
        daemonset_flush: daemonset_flush?,
        daemonset_flush_beyond: daemonset_flush_beyond?,
        daemonset_flush_namespaces: flags.daemonset_flush_namespace,
        daemonset_guard: daemonset_guard?,
        patience: patience?,
        drain_timeout: drain_timeout?,
        max_operator_scale_ins: max_operator_scale_ins?,
        lifecycle_hook: flags.lifecycle_hook,
        templates_config_map: flags.templates_config_map,
        election,
        log: LogOptions { format: format?, level: level? },
    })
}

/// The proxy that the environment names as most programs have it, in either case.
pub(super) fn proxy(env: &dyn Fn(&str) -> Option<String>, problems: &mut Vec<Problem>) -> Option<Proxy> {
    let read = |upper: &str| {
        let named = |name: &str| env(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        named(upper).or_else(|| named(&upper.to_lowercase()))
    };
    let url = read("HTTPS_PROXY")?;
    let proxy = Proxy::new(&url, &read("NO_PROXY").unwrap_or_default());
    proxy.map_err(|error| problems.push(Problem::new("HTTPS_PROXY", error.to_string()))).ok()
}

fn listen(text: &str, problems: &mut Vec<Problem>) -> Option<Listen> {
    text.parse().map_err(|error: BadListen| problems.push(Problem::new("--listen", error.to_string()))).ok()
}

/// Names that others go by have the form that they take.
fn check_names(hook: &str, config_map: &str, namespaces: &[String], problems: &mut Vec<Problem>) {
    if !is_hook_name(hook) {
        let text = format!("{hook:?} is no name of a lifecycle hook: 1 to 255 of A-Z a-z 0-9 - _ /");
        problems.push(Problem::new("--lifecycle-hook", text));
    }
    if !is_object_name(config_map) {
        let text = format!(
            "{config_map:?} is no name of a ConfigMap: 1 to 253 of a-z 0-9 - . with a letter or digit at both ends"
        );
        problems.push(Problem::new("--templates-config-map", text));
    }
    for name in namespaces.iter().filter(|name| !is_object_name(name)) {
        let text = format!("{name:?} is no name of a namespace");
        problems.push(Problem::new("--daemonset-flush-namespace", text));
    }
}

fn address(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<SocketAddr> {
    let address = text.parse();
    if address.is_err() {
        let text = format!("{text:?} is no address and port, like 127.0.0.1:8086 or [::1]:8086");
        problems.push(Problem::new(flag, text));
    }
    address.ok()
}

fn tls(flags: &ServeFlags, listen: Option<&Listen>, problems: &mut Vec<Problem>) -> Option<TlsOptions> {
    let files = [
        ("--tls-cert", &flags.tls_cert),
        ("--tls-key", &flags.tls_key),
        ("--tls-client-ca", &flags.tls_client_ca),
    ];
    if let [Some(cert), Some(key), Some(client_ca)] = files.map(|(_, file)| file.as_ref().map(PathBuf::from))
    {
        let client_crl = flags.tls_client_crl.as_ref().map(PathBuf::from);
        let client_names = flags.tls_client_name.clone();
        let options = TlsOptions { cert, key, client_ca, client_crl, client_names };
        for problem in Tls::load(options.clone()).err().into_iter().flatten() {
            let flag = match problem.file() {
                TlsFile::Cert => "--tls-cert",
                TlsFile::Key => "--tls-key",
                TlsFile::ClientCa => "--tls-client-ca",
                TlsFile::ClientCrl => "--tls-client-crl",
            };
            problems.push(Problem::new(flag, chain(&problem)));
        }
        return Some(options);
    }
    let about_clients = [
        ("--tls-client-crl", flags.tls_client_crl.is_some()),
        ("--tls-client-name", !flags.tls_client_name.is_empty()),
    ];
    let given = files.map(|(flag, file)| (flag, file.is_some())).into_iter().chain(about_clients);
    let given: Vec<_> = given.filter(|(_, is_given)| *is_given).map(|(flag, _)| flag).collect();
    if let Some(first) = given.first() {
        for (flag, _) in files.iter().filter(|(_, file)| file.is_none()) {
            problems.push(Problem::new(*flag, format!("is needed with {first}")));
        }
    } else if let Some(Listen::Tcp(address)) = listen
        && !address.ip().to_canonical().is_loopback()
    {
        let text = format!(
            "{address} is no loopback address: it needs --tls-cert, --tls-key and --tls-client-ca, or anybody who \
             reaches it can delete nodes"
        );
        problems.push(Problem::new("--listen", text));
    }
    None
}

fn boolean(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<bool> {
    let read = text.parse().ok();
    if read.is_none() {
        problems.push(Problem::new(flag, format!("{text:?} is neither true nor false")));
    }
    read
}

fn election(flags: &ServeFlags, problems: &mut Vec<Problem>) -> Option<Candidate> {
    let elect = boolean("--leader-elect", &flags.leader_elect, problems);
    let lease = flags.leader_elect_resource_name.clone();
    if !is_object_name(&lease) {
        let text = format!(
            "{lease:?} is no name of a Lease: 1 to 253 of a-z 0-9 - . with a letter or digit at both ends"
        );
        problems.push(Problem::new("--leader-elect-resource-name", text));
    }
    let pod = flags.leader_elect_pod.clone();
    if let Some(pod) = pod.as_ref().filter(|pod| !is_object_name(pod)) {
        let text = format!(
            "{pod:?} is no name of a pod: 1 to 253 of a-z 0-9 - . with a letter or digit at both ends"
        );
        problems.push(Problem::new("--leader-elect-pod", text));
    }
    // A problem that was added leaves no configuration at all.
    elect?.then_some(Candidate { lease, pod })
}

fn named(
    flag: &str,
    value: Option<String>,
    good: fn(&str) -> bool,
    shape: &str,
    problems: &mut Vec<Problem>,
) -> Option<String> {
    let value = value?;
    if !good(&value) {
        problems.push(Problem::new(flag, format!("{value:?} is not good: {shape}")));
    }
    Some(value)
}

fn is_region(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
}

/// Of the key of a tag, which has 128 characters, `kubernetes.io/cluster/` takes 22.
fn is_cluster_name(text: &str) -> bool {
    (1..=106).contains(&text.chars().count()) && !text.contains(char::is_whitespace) && !text.contains('/')
}

fn is_url(text: &str) -> bool {
    text.parse::<http::Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    })
}

fn kubeconfig(path: Option<String>, problems: &mut Vec<Problem>) -> Option<PathBuf> {
    let path = PathBuf::from(path?);
    if let Err(error) = File::open(&path) {
        let text = format!("{} cannot be read: {error}", path.display());
        problems.push(Problem::new("--kubeconfig", text));
    }
    Some(path)
}

fn selectors(by_tags: &[String], by_name: &[String], problems: &mut Vec<Problem>) -> Selectors {
    if by_tags.is_empty() && by_name.is_empty() {
        let text = "there are no node groups: give this or --nodes";
        problems.push(Problem::new("--node-group-auto-discovery", text));
    }
    Selectors::parse(by_name, by_tags).unwrap_or_else(|errors| {
        problems.extend(errors.iter().map(|error| Problem::new(error.flag(), error.to_string())));
        Selectors::default()
    })
}

fn duration(
    flag: &str,
    text: &str,
    range: &RangeInclusive<Duration>,
    problems: &mut Vec<Problem>,
) -> Option<Duration> {
    let duration = match humantime::parse_duration(text) {
        Ok(duration) if range.contains(&duration) => return Some(duration),
        Ok(_) => {
            let [least, most] = [range.start(), range.end()].map(|bound| humantime::format_duration(*bound));
            format!("{text} is not between {least} and {most}")
        }
        Err(error) => format!("{text:?} is no duration like 90s, 10m or 48h: {error}"),
    };
    problems.push(Problem::new(flag, duration));
    None
}

/// A share like `7.5%`, in hundredths of a percent.
fn share(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<i64> {
    let percent = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    let read = percent.filter(|percent| SHARE.contains(percent));
    if read.is_none() {
        problems.push(Problem::new(flag, format!("{text:?} is no share from 0% to 50%, like 7.5%")));
    }
    read.map(|percent| (percent * 100.0).round() as i64)
}

fn pods(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<i64> {
    let read = text.parse().ok().filter(|pods| (1..=MOST_PODS).contains(pods));
    if read.is_none() {
        let text = format!("{text:?} is neither none nor a number from 1 to {MOST_PODS}");
        problems.push(Problem::new(flag, text));
    }
    read
}

/// A number from 1 on, or a share up to all.
fn at_once(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<AtOnce> {
    let read = match text.strip_suffix('%') {
        Some(percent) => percent
            .parse::<f64>()
            .ok()
            .filter(|percent| (0.0..=100.0).contains(percent))
            .map(|percent| AtOnce::Share((percent * 100.0).round() as u32)),
        None => text.parse().ok().filter(|number| *number > 0).map(AtOnce::Number),
    };
    if read.is_none() {
        let text = format!("{text:?} is neither a number from 1 on nor a share from 0% to 100%");
        problems.push(Problem::new(flag, text));
    }
    read
}

fn mixed_instances(flag: &str, text: &str, problems: &mut Vec<Problem>) -> Option<MixedInstances> {
    match text {
        "min" => return Some(MixedInstances::Min),
        "first" => return Some(MixedInstances::First),
        "max" => return Some(MixedInstances::Max),
        _ => problems.push(Problem::new(flag, format!("{text:?} is not min, first or max"))),
    }
    None
}

/// Source: `LifecycleHookName` in
/// [PutLifecycleHook](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html).
fn is_hook_name(text: &str) -> bool {
    (1..=255).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'/'))
}

/// Source: [DNS subdomain
/// names](https://kubernetes.io/docs/concepts/overview/working-with-objects/names/#dns-subdomain-names).
fn is_object_name(text: &str) -> bool {
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    };
    text.len() <= 253 && text.split('.').all(is_part)
}

fn log_format(text: &str, problems: &mut Vec<Problem>) -> Option<LogFormat> {
    match text {
        "text" => return Some(LogFormat::Text),
        "json" => return Some(LogFormat::Json),
        _ => problems.push(Problem::new("--log-format", format!("{text:?} is not text or json"))),
    }
    None
}

fn log_level(text: &str, problems: &mut Vec<Problem>) -> Option<Level> {
    match text {
        "error" => return Some(Level::ERROR),
        "warn" => return Some(Level::WARN),
        "info" => return Some(Level::INFO),
        "debug" => return Some(Level::DEBUG),
        "trace" => return Some(Level::TRACE),
        _ => {
            let text = format!("{text:?} is not error, warn, info, debug or trace");
            problems.push(Problem::new("--log-level", text));
        }
    }
    None
}
