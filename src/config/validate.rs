//! From flags as typed to a configuration: every value is checked, even if others are wrong, then values are checked against
//! each other.

use std::collections::BTreeSet;
use std::fs::File;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use super::flags::ServeFlags;
use super::problem::Problem;
use super::read::{
    LOG_FORMATS, LOG_LEVELS, MIXED_INSTANCES, ON_DEADLINE, PRICES, RETAIN, TREATMENTS, address, at_once,
    boolean, duration, is_cluster_name, is_hook_name, is_object_name, is_plain_url, is_region, is_url, named,
    one_of, pods, rate, share,
};
use super::values::Config;
use crate::aws::Proxy;
use crate::clock::Clock;
use crate::cluster::Candidate;
use crate::groups::managed_hooks::Managed;
use crate::groups::selector::Selectors;
use crate::provider::expander::policy::Policy;
use crate::provider::listen::BadListen;
use crate::provider::tls::TlsFile;
use crate::provider::{Listen, Tls, TlsOptions};
use crate::scale_in::{Flush, name_of_queue};
use crate::telemetry::{LogOptions, chain};
use crate::{scale_in, template};

/// Least time of a drain beyond its flush.
const LEAST_DRAIN: Duration = Duration::from_secs(10);

const HOUR: Duration = Duration::from_hours(1);

/// At least: a refresh takes several requests, and AWS throttles at a few a second. At most: somebody else's change of a
/// size must not stay unseen for long.
const REFRESH: RangeInclusive<Duration> = Duration::from_secs(1)..=HOUR;
/// After a day a snapshot says little of AWS.
const MAX_AGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(24);
/// Longer than the interval by this, at least, a snapshot is used, or twice as long where that is less. The next refresh begins an interval
/// after the one that it is of, and may take half a minute; one that fails after as long is followed by another a second later.
const NEXT_REFRESH: Duration = Duration::from_mins(1);
/// A flush is for buffers: more than an hour is a typing error.
const FLUSH: RangeInclusive<Duration> = Duration::ZERO..=HOUR;
/// What AWS allows.
///
/// Source: [PutLifecycleHook](https://docs.aws.amazon.com/autoscaling/ec2/APIReference/API_PutLifecycleHook.html).
const HEARTBEAT: RangeInclusive<Duration> = Duration::from_secs(30)..=Duration::from_hours(2);
/// Longer than any hook can hold an instance (48 h), short enough to catch a wrong unit.
const DRAIN: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(30 * 24);
/// At least: one refresh may leave an instance out, and a kubelet that adopts the Node takes a while to say so.
const LEFT_BEHIND: RangeInclusive<Duration> = Duration::from_mins(2)..=Duration::from_hours(30 * 24);

/// The configuration; `None` if a problem leaves a value missing.
pub(super) fn config(flags: ServeFlags, proxy: Option<Proxy>, problems: &mut Vec<Problem>) -> Option<Config> {
    let addresses = addresses(&flags, problems);
    let tls = tls(&flags, addresses.as_ref().map(|(listen, _)| listen), problems);
    let expander_listen = expander_listen(&flags, tls.as_ref(), problems);
    let expander_policy = expander_policy(flags.expander_policy.as_deref(), problems);
    let expander_events = boolean("--expander-events", &flags.expander_events, problems);
    let election = election(&flags, problems);
    let (region, endpoint_url) = aws(&flags, problems);
    let kubeconfig = kubeconfig(flags.kubeconfig.clone(), problems);
    let selectors = selectors(&flags, problems);
    let polling = polling(&flags, problems);
    let templates = templates(&flags, problems);
    let zero_node_startup_time = boolean("--zero-node-startup-time", &flags.zero_node_startup_time, problems);
    let prices = one_of("--prices", &flags.prices, &PRICES, problems);
    let scale_in = scale_in(&flags, problems);
    let managed_hooks = managed_hooks(&flags, problems);
    check_names(&flags, problems);
    let dry_run = boolean("--dry-run", &flags.dry_run, problems);
    let log = log(&flags, problems);
    let (collector, shape) = (flags.otlp_endpoint.clone(), "it is to be http://HOST:PORT");
    let otlp_endpoint = named("--otlp-endpoint", collector, is_plain_url, shape, problems);

    let (listen, admin_listen) = addresses?;
    let Polling { refresh_interval, snapshot_max_age } = polling?;
    let (scale_in, eviction_pause) = scale_in?;
    Some(Config {
        listen,
        admin_listen,
        tls,
        expander_listen,
        expander_policy,
        expander_events: expander_events?,
        region,
        endpoint_url,
        proxy,
        kubeconfig,
        selectors,
        refresh_interval,
        snapshot_max_age,
        templates: templates?,
        zero_node_startup_time: zero_node_startup_time?,
        prices: prices?,
        scale_in,
        eviction_pause,
        lifecycle_hook: flags.lifecycle_hook,
        managed_hooks: managed_hooks?,
        queue_urls: flags.queue_url,
        templates_config_map: flags.templates_config_map,
        election,
        dry_run: dry_run?,
        otlp_endpoint,
        log: log?,
    })
}

/// Region and URL of AWS, if given.
fn aws(flags: &ServeFlags, problems: &mut Vec<Problem>) -> (Option<String>, Option<String>) {
    let region =
        named("--region", flags.region.clone(), is_region, "a region is like eu-central-1", problems);
    let url = flags.endpoint_url.clone();
    (region, named("--endpoint-url", url, is_url, "it is to be http://… or https://…", problems))
}

fn log(flags: &ServeFlags, problems: &mut Vec<Problem>) -> Option<LogOptions> {
    let format = one_of("--log-format", &flags.log_format, &LOG_FORMATS, problems);
    let level = one_of("--log-level", &flags.log_level, &LOG_LEVELS, problems);
    Some(LogOptions { format: format?, level: level? })
}

/// Addresses of gRPC and of the admin endpoints.
fn addresses(flags: &ServeFlags, problems: &mut Vec<Problem>) -> Option<(Listen, SocketAddr)> {
    let listen = listen(&flags.listen, problems);
    let admin = address("--admin-listen", &flags.admin_listen, problems);
    if let (Some(Listen::Tcp(listen)), Some(admin)) = (&listen, admin)
        && *listen == admin
        && listen.port() != 0
    {
        problems.push(Problem::new("--admin-listen", format!("{admin} is the address of --listen")));
    }
    Some((listen?, admin?))
}

/// Where the expander is served besides, and with which certificate.
fn expander_listen(
    flags: &ServeFlags,
    tls: Option<&TlsOptions>,
    problems: &mut Vec<Problem>,
) -> Option<(SocketAddr, TlsOptions)> {
    let Some(text) = flags.expander_listen.as_deref() else {
        let own = [
            ("--expander-tls-cert", &flags.expander_tls_cert),
            ("--expander-tls-key", &flags.expander_tls_key),
        ];
        if let Some((given, _)) = own.iter().find(|(_, file)| file.is_some()) {
            problems.push(Problem::new("--expander-listen", format!("is needed with {given}")));
        }
        return None;
    };
    let address = address("--expander-listen", text, problems)?;
    let own = (flags.expander_tls_cert.as_ref(), flags.expander_tls_key.as_ref());
    let (cert, key) = match (own, tls) {
        ((Some(cert), Some(key)), _) => (cert.into(), key.into()),
        ((None, None), Some(tls)) => (tls.cert.clone(), tls.key.clone()),
        _ => {
            let text = "cluster-autoscaler connects to an expander by TLS alone: it needs --expander-tls-cert and \
                        --expander-tls-key, or --tls-cert and --tls-key";
            problems.push(Problem::new("--expander-listen", text));
            return None;
        }
    };
    let options = TlsOptions { cert, key, client_ca: None, client_crl: None, allowed_clients: Vec::new() };
    // Those of --tls-cert are told where they are read.
    if own.0.is_some() {
        for problem in Tls::load(options.clone(), Clock::system()).err().into_iter().flatten() {
            let is_key = problem.file() == TlsFile::Key;
            let flag = if is_key { "--expander-tls-key" } else { "--expander-tls-cert" };
            problems.push(Problem::new(flag, chain(&problem)));
        }
    }
    Some((address, options))
}

fn expander_policy(file: Option<&str>, problems: &mut Vec<Problem>) -> Option<PathBuf> {
    let file = PathBuf::from(file?);
    let read = std::fs::read_to_string(&file).map_err(|error| error.to_string());
    let policy = read.and_then(|text| text.parse::<Policy>().map_err(|error| error.to_string()));
    if let Err(why) = policy {
        problems.push(Problem::new("--expander-policy", format!("{}: {why}", file.display())));
    }
    Some(file)
}

/// How often AWS is polled, and for how long a snapshot is used.
struct Polling {
    refresh_interval: Duration,
    snapshot_max_age: Duration,
}

fn polling(flags: &ServeFlags, problems: &mut Vec<Problem>) -> Option<Polling> {
    let interval = duration("--refresh-interval", &flags.refresh_interval, &REFRESH, problems);
    let age = duration("--snapshot-max-age", &flags.snapshot_max_age, &MAX_AGE, problems);
    if let (Some(interval), Some(age)) = (interval, age)
        && age < interval + interval.min(NEXT_REFRESH)
    {
        let text = format!(
            "{} leaves no time for the next refresh after --refresh-interval: {} or more",
            flags.snapshot_max_age,
            humantime::format_duration(interval + interval.min(NEXT_REFRESH))
        );
        problems.push(Problem::new("--snapshot-max-age", text));
    }
    Some(Polling { refresh_interval: interval?, snapshot_max_age: age? })
}

fn templates(flags: &ServeFlags, problems: &mut Vec<Problem>) -> Option<template::Settings> {
    let static_types = boolean("--static-instance-types", &flags.static_instance_types, problems);
    let memory_overhead = match &flags.memory_overhead {
        Some(text) => share("--memory-overhead", text, problems).map(Some),
        None => Some(None),
    };
    let max_pods = unless_none(&flags.max_pods, |text| pods("--max-pods", text, problems));
    let mixed = one_of("--mixed-instances", &flags.mixed_instances, &MIXED_INSTANCES, problems);
    Some(template::Settings {
        memory_overhead: memory_overhead?,
        max_pods: max_pods?,
        mixed: mixed?,
        static_types: static_types?,
    })
}

/// How nodes go, and the time between two evictions.
fn scale_in(
    flags: &ServeFlags,
    problems: &mut Vec<Problem>,
) -> Option<(scale_in::Settings, Option<Duration>)> {
    let default = duration("--daemonset-flush", &flags.daemonset_flush, &FLUSH, problems);
    let guard = boolean("--daemonset-guard", &flags.daemonset_guard, problems);
    let beyond = duration("--daemonset-flush-beyond", &flags.daemonset_flush_beyond, &FLUSH, problems);
    let patience = unless_none(&flags.patience, |text| duration("--patience", text, &DRAIN, problems));
    let drain_timeout =
        unless_none(&flags.drain_timeout, |text| duration("--drain-timeout", text, &DRAIN, problems));
    if let (Some(flush), Some(Some(timeout))) = (default, drain_timeout)
        && timeout <= flush + LEAST_DRAIN
    {
        let text = format!(
            "{} leaves workloads no time: it has to be more than 10s longer than --daemonset-flush",
            flags.drain_timeout
        );
        problems.push(Problem::new("--drain-timeout", text));
    }
    let on_deadline = one_of("--on-deadline", &flags.on_deadline, &ON_DEADLINE, problems);
    let eviction_pause = unless_none(&flags.eviction_qps, |text| rate("--eviction-qps", text, problems));
    let delete_node_after = unless_none(&flags.delete_node_after, |text| {
        duration("--delete-node-after", text, &LEFT_BEHIND, problems)
    });
    let wait_for_load_balancers =
        boolean("--wait-for-load-balancers", &flags.wait_for_load_balancers, problems);
    let operator_at_once = at_once("--max-operator-scale-ins", &flags.max_operator_scale_ins, problems);
    let on_rebalance = one_of("--on-rebalance", &flags.on_rebalance, &TREATMENTS, problems);
    let on_scheduled_event = one_of("--on-scheduled-event", &flags.on_scheduled_event, &TREATMENTS, problems);
    let default = default?;
    let namespaces = flags.daemonset_flush_namespace.iter().cloned().collect();
    let settings = scale_in::Settings {
        installation: None,
        flush: Flush { default, longest: default + beyond?, namespaces },
        patience: patience?,
        drain_timeout: drain_timeout?,
        on_deadline: on_deadline?,
        order_namespaces: flags.drain_order_namespace.iter().cloned().collect(),
        delete_node_after: delete_node_after?,
        wait_for_load_balancers: wait_for_load_balancers?,
        on_rebalance: on_rebalance?,
        on_scheduled_event: on_scheduled_event?,
        guard: guard?,
        operator_at_once: operator_at_once?,
    };
    Some((settings, eviction_pause?))
}

/// `Some(None)` if hooks are left as they are.
#[expect(
    clippy::option_option,
    reason = "the outer says whether the texts were good, the inner what they say"
)]
fn managed_hooks(flags: &ServeFlags, problems: &mut Vec<Problem>) -> Option<Option<Managed>> {
    let heartbeat = duration("--hook-heartbeat", &flags.hook_heartbeat, &HEARTBEAT, problems);
    let retain = one_of("--manage-lifecycle-hooks", &flags.manage_lifecycle_hooks, &RETAIN, problems)?;
    // AWS has whole seconds.
    let heartbeat = Duration::from_secs(heartbeat?.as_secs());
    Some(retain.map(|retain| Managed { heartbeat, retain }))
}

/// `Some(None)` for the text `none`, otherwise the value that `read` gives.
#[expect(clippy::option_option, reason = "the outer says whether the text was good, the inner what it says")]
fn unless_none<T>(text: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<Option<T>> {
    if text == "none" { Some(None) } else { read(text).map(Some) }
}

/// The proxy in the environment's usual variables, in upper or lower case.
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

/// Checks the names of Kubernetes objects and of the lifecycle hook.
fn check_names(flags: &ServeFlags, problems: &mut Vec<Problem>) {
    let hook = &flags.lifecycle_hook;
    if !is_hook_name(hook) {
        let text = format!("{hook:?} is no name of a lifecycle hook: 1 to 255 of A-Z a-z 0-9 - _ /");
        problems.push(Problem::new("--lifecycle-hook", text));
    }
    object_name("--templates-config-map", "a ConfigMap", &flags.templates_config_map, problems);
    check_queues(&flags.queue_url, problems);
    let namespaces = [
        ("--daemonset-flush-namespace", &flags.daemonset_flush_namespace),
        ("--drain-order-namespace", &flags.drain_order_namespace),
    ];
    for (flag, names) in namespaces {
        for name in names.iter().filter(|name| !is_object_name(name)) {
            problems.push(Problem::new(flag, format!("{name:?} is no name of a namespace")));
        }
    }
}

/// Checks the queues. Each has an inbox and series of metrics of its own, told apart by its name.
fn check_queues(urls: &[String], problems: &mut Vec<Problem>) {
    let mut names = BTreeSet::new();
    for url in urls {
        let name = name_of_queue(url);
        let text = if !is_url(url) {
            format!(
                "{url:?} is not good: it is like https://sqs.eu-central-1.amazonaws.com/123456789012/name"
            )
        } else if !names.insert(name) {
            format!(
                "a queue {name:?} is named more than once: each needs a name of its own, which metrics tell it by"
            )
        } else {
            continue;
        };
        problems.push(Problem::new("--queue-url", text));
    }
}

fn object_name(flag: &str, of: &str, name: &str, problems: &mut Vec<Problem>) {
    if !is_object_name(name) {
        let text = format!(
            "{name:?} is no name of {of}: 1 to 253 of a-z 0-9 - . with a letter or digit at both ends"
        );
        problems.push(Problem::new(flag, text));
    }
}

fn tls(flags: &ServeFlags, listen: Option<&Listen>, problems: &mut Vec<Problem>) -> Option<TlsOptions> {
    let files = [
        ("--tls-cert", &flags.tls_cert),
        ("--tls-key", &flags.tls_key),
        ("--tls-client-ca", &flags.tls_client_ca),
    ];
    if let [Some(cert), Some(key), client_ca @ Some(_)] =
        files.map(|(_, file)| file.as_ref().map(PathBuf::from))
    {
        let client_crl = flags.tls_client_crl.as_ref().map(PathBuf::from);
        let allowed_clients = flags.allowed_client.clone();
        let options = TlsOptions { cert, key, client_ca, client_crl, allowed_clients };
        for problem in Tls::load(options.clone(), Clock::system()).err().into_iter().flatten() {
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
        ("--allowed-client", !flags.allowed_client.is_empty()),
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

fn election(flags: &ServeFlags, problems: &mut Vec<Problem>) -> Option<Candidate> {
    let elect = boolean("--leader-elect", &flags.leader_elect, problems);
    let (lease, pod) = (flags.leader_elect_resource_name.clone(), flags.leader_elect_pod.clone());
    object_name("--leader-elect-resource-name", "a Lease", &lease, problems);
    if let Some(pod) = &pod {
        object_name("--leader-elect-pod", "a pod", pod, problems);
    }
    // With a problem, no configuration is used at all.
    elect?.then_some(Candidate { lease, pod })
}

fn kubeconfig(path: Option<String>, problems: &mut Vec<Problem>) -> Option<PathBuf> {
    let path = PathBuf::from(path?);
    if let Err(error) = File::open(&path) {
        let text = format!("{} cannot be read: {error}", path.display());
        problems.push(Problem::new("--kubeconfig", text));
    }
    Some(path)
}

/// Notes that there is nothing to manage.
pub(super) fn needs_groups(flags: &ServeFlags, problems: &mut Vec<Problem>) {
    if flags.nodes.is_empty() && flags.node_group_auto_discovery.is_empty() {
        let text = "there are no node groups: give this or --nodes";
        problems.push(Problem::new("--node-group-auto-discovery", text));
    }
}

fn selectors(flags: &ServeFlags, problems: &mut Vec<Problem>) -> Selectors {
    let (by_name, by_tags) = (&flags.nodes, &flags.node_group_auto_discovery);
    let selectors = Selectors::parse(by_name, by_tags).unwrap_or_else(|errors| {
        problems.extend(errors.iter().map(|error| Problem::new(error.flag, error.to_string())));
        Selectors::default()
    });
    let cluster = flags.cluster_name.clone();
    selectors.of_cluster(named(
        "--cluster-name",
        cluster,
        is_cluster_name,
        "it is the name in tags",
        problems,
    ))
}
