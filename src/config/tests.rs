//! Command lines and environments, valid and not.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use tracing::Level;

use super::*;
use crate::aws::Proxy;
use crate::cluster::Candidate;
use crate::groups::managed_hooks::Managed;
use crate::groups::selector::Selectors;
use crate::provider::Listen;
use crate::scale_in::{self, AtOnce, Flush, OnDeadline};
use crate::telemetry::{LogFormat, LogOptions};
use crate::template::{MixedInstances, Settings};

const GROUPS: &str = "--nodes=1:10:web";

fn parse(args: &[&str], env: &[(&str, &str)]) -> Result<Command, Problems> {
    let env: BTreeMap<_, _> =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let args = ["ebbtide"].iter().chain(args).map(OsString::from);
    Config::parse(args, |name| env.get(name).cloned(), Vec::new)
}

fn serve(args: &[&str], env: &[(&str, &str)]) -> Config {
    let args: Vec<_> = ["serve"].iter().chain(args).copied().collect();
    match parse(&args, env) {
        Ok(Command::Serve(config)) => *config,
        other => panic!("not served: {other:?}"),
    }
}

/// Flags and texts of the problems.
fn problems(args: &[&str], env: &[(&str, &str)]) -> Vec<(String, String)> {
    let Err(problems) = parse(args, env) else { panic!("nothing is wrong with {args:?}") };
    problems.all.into_iter().map(|problem| (problem.flag, problem.text)).collect()
}

fn flags(args: &[&str]) -> Vec<String> {
    problems(args, &[]).into_iter().map(|(flag, _)| flag).collect()
}

fn selectors(nodes: &[&str], discovery: &[&str]) -> Selectors {
    Selectors::parse(nodes, discovery).expect("selectors")
}

fn defaults() -> Config {
    Config {
        queue_urls: Vec::new(),
        listen: "127.0.0.1:8086".parse().expect("an address"),
        admin_listen: "127.0.0.1:9086".parse().expect("an address"),
        tls: None,
        expander_listen: None,
        expander_policy: None,
        expander_events: false,
        region: None,
        endpoint_url: None,
        proxy: None,
        kubeconfig: None,
        selectors: selectors(&["1:10:web"], &[]),
        refresh_interval: Duration::from_mins(1),
        snapshot_max_age: Duration::from_mins(10),
        templates: Settings {
            memory_overhead: None,
            max_pods: None,
            mixed: MixedInstances::Min,
            static_types: false,
        },
        zero_node_startup_time: false,
        prices: None,
        scale_in: scale_in::Settings::default(),
        eviction_pause: None,
        lifecycle_hook: "ebbtide".into(),
        managed_hooks: None,
        templates_config_map: "ebbtide-templates".into(),
        election: Some(Candidate { lease: "ebbtide".into(), pod: None }),
        dry_run: false,
        otlp_endpoint: None,
        log: LogOptions { format: LogFormat::Text, level: Level::INFO },
    }
}

#[test]
fn groups_are_all_that_has_to_be_given() {
    assert_eq!(serve(&[GROUPS], &[]), defaults());
}

#[test]
fn every_flag_is_read_and_so_is_every_variable() {
    let given = [
        ("--listen", "[::1]:1"),
        ("--admin-listen", "0.0.0.0:2"),
        ("--region", "eu-central-1"),
        ("--endpoint-url", "http://localhost:5000"),
        ("--node-group-auto-discovery", "asg:tag=a=b,c"),
        ("--nodes", "0:5:db: main"),
        ("--cluster-name", "prod"),
        ("--refresh-interval", "90s"),
        ("--snapshot-max-age", "1h 30m"),
        ("--static-instance-types", "true"),
        ("--memory-overhead", "12.25%"),
        ("--max-pods", "110"),
        ("--mixed-instances", "max"),
        ("--zero-node-startup-time", "true"),
        ("--prices", "aws"),
        ("--daemonset-flush", "0s"),
        ("--daemonset-flush-beyond", "90s"),
        ("--daemonset-flush-namespace", "logging"),
        ("--drain-order-namespace", "mesh"),
        ("--patience", "24h"),
        ("--drain-timeout", "48h"),
        ("--on-deadline", "wait"),
        ("--eviction-qps", "2.5"),
        ("--delete-node-after", "15m"),
        ("--wait-for-load-balancers", "true"),
        ("--max-operator-scale-ins", "2.5%"),
        ("--lifecycle-hook", "my/hook_1-a"),
        ("--manage-lifecycle-hooks", "retain"),
        ("--hook-heartbeat", "90s 500ms"),
        ("--templates-config-map", "seen.by-1"),
        ("--leader-elect", "true"),
        ("--leader-elect-resource-name", "ebbtide.two"),
        ("--leader-elect-pod", "ebbtide-1"),
        ("--otlp-endpoint", "http://collector:4317"),
        ("--log-format", "json"),
        ("--log-level", "debug"),
    ];
    let expected = Config {
        listen: Listen::Tcp((IpAddr::V6(Ipv6Addr::LOCALHOST), 1).into()),
        admin_listen: "0.0.0.0:2".parse().expect("an address"),
        region: Some("eu-central-1".into()),
        otlp_endpoint: Some("http://collector:4317".into()),
        endpoint_url: Some("http://localhost:5000".into()),
        selectors: selectors(&["0:5:db: main"], &["asg:tag=a=b,c"]).of_cluster(Some("prod".into())),
        refresh_interval: Duration::from_secs(90),
        snapshot_max_age: Duration::from_mins(90),
        templates: Settings {
            memory_overhead: Some(1225),
            max_pods: Some(110),
            mixed: MixedInstances::Max,
            static_types: true,
        },
        zero_node_startup_time: true,
        prices: Some(PriceSource::Aws),
        scale_in: scale_in::Settings {
            flush: Flush {
                default: Duration::ZERO,
                longest: Duration::from_secs(90),
                namespaces: ["logging".into()].into(),
            },
            order_namespaces: ["mesh".into()].into(),
            patience: Some(Duration::from_hours(24)),
            drain_timeout: Some(Duration::from_hours(48)),
            on_deadline: OnDeadline::Wait,
            delete_node_after: Some(Duration::from_mins(15)),
            wait_for_load_balancers: true,
            operator_at_once: AtOnce::Share(250),
            ..scale_in::Settings::default()
        },
        eviction_pause: Some(Duration::from_millis(400)),
        lifecycle_hook: "my/hook_1-a".into(),
        managed_hooks: Some(Managed { heartbeat: Duration::from_secs(90), retain: true }),
        templates_config_map: "seen.by-1".into(),
        election: Some(Candidate { lease: "ebbtide.two".into(), pod: Some("ebbtide-1".into()) }),
        log: LogOptions { format: LogFormat::Json, level: Level::DEBUG },
        ..defaults()
    };
    let joined: Vec<_> = given.iter().map(|(flag, value)| format!("{flag}={value}")).collect();
    assert_eq!(serve(&joined.iter().map(String::as_str).collect::<Vec<_>>(), &[]), expected);
    let apart: Vec<_> = given.iter().flat_map(|(flag, value)| [*flag, *value]).collect();
    assert_eq!(serve(&apart, &[]), expected);
    let variables: Vec<_> = given
        .iter()
        .map(|(flag, value)| {
            let name = flag.trim_start_matches('-').replace('-', "_").to_uppercase();
            (format!("EBBTIDE_{name}"), *value)
        })
        .collect();
    let variables: Vec<_> = variables.iter().map(|(name, value)| (name.as_str(), *value)).collect();
    assert_eq!(serve(&[], &variables), expected);
}

#[test]
fn a_flag_beats_its_variable_and_an_empty_variable_is_none() {
    let env = [("EBBTIDE_LOG_LEVEL", "trace"), ("EBBTIDE_NODES", "0:1:b"), ("EBBTIDE_LISTEN", " ")];
    let config = serve(&[GROUPS, "--log-level", "error"], &env);
    assert_eq!(config, Config { log: LogOptions { level: Level::ERROR, ..config.log }, ..defaults() });
}

#[test]
fn a_variable_has_many_values_of_a_repeatable_flag() {
    let env = [
        ("EBBTIDE_NODES", "1:2:a; 3:4:b\n5:6:c;"),
        ("EBBTIDE_NODE_GROUP_AUTO_DISCOVERY", "asg:tag=a,b;asg:tag=c"),
    ];
    let config = serve(&[], &env);
    let both = selectors(&["1:2:a", "3:4:b", "5:6:c"], &["asg:tag=a,b", "asg:tag=c"]);
    assert_eq!(config.selectors, both);
}

#[test]
fn every_problem_of_a_command_line_is_reported_at_once_with_its_flag() {
    let args = [
        "serve",
        "--lisen",
        "127.0.0.1:1",
        "--listen=nowhere",
        "--admin-listen",
        "1.2.3.4",
        "--frobnicate=yes",
        "stray",
        "--tls-cert",
        "cert.pem",
        "--region=Mars!",
        "--endpoint-url=localhost:5000",
        "--kubeconfig=/nonexistent/kubeconfig",
        "--nodes=5:1:web",
        "--nodes=web",
        "--node-group-auto-discovery=tag=a",
        "--refresh-interval=500ms",
        "--snapshot-max-age=10",
        "--static-instance-types=maybe",
        "--memory-overhead=51%",
        "--max-pods=2001",
        "--mixed-instances=average",
        "--daemonset-flush=2h",
        "--drain-timeout=never",
        "--on-deadline=hope",
        "--eviction-qps=0",
        "--delete-node-after=0s",
        "--lifecycle-hook=",
        "--manage-lifecycle-hooks=perhaps",
        "--hook-heartbeat=29s",
        "--templates-config-map=Not_a_name",
        "--leader-elect=perhaps",
        "--leader-elect-resource-name=-",
        "--leader-elect-pod=$(POD_NAME)",
        "--otlp-endpoint=https://collector:4317",
        "--log-format=xml",
        "--log-level=loud",
        "--log-level=info",
        "--verbose",
        "--tls-key",
    ];
    assert_eq!(
        flags(&args),
        [
            "--lisen",
            "--frobnicate",
            "stray",
            "--log-level",
            "--verbose",
            "--tls-key",
            "--listen",
            "--admin-listen",
            "--tls-key",
            "--tls-client-ca",
            "--leader-elect",
            "--leader-elect-resource-name",
            "--leader-elect-pod",
            "--region",
            "--endpoint-url",
            "--kubeconfig",
            "--nodes",
            "--nodes",
            "--node-group-auto-discovery",
            "--refresh-interval",
            "--snapshot-max-age",
            "--static-instance-types",
            "--memory-overhead",
            "--max-pods",
            "--mixed-instances",
            "--daemonset-flush",
            "--drain-timeout",
            "--on-deadline",
            "--eviction-qps",
            "--delete-node-after",
            "--hook-heartbeat",
            "--manage-lifecycle-hooks",
            "--lifecycle-hook",
            "--templates-config-map",
            "--log-format",
            "--otlp-endpoint",
        ]
    );
}

#[test]
fn a_problem_says_what_would_be_right() {
    let text = |args: &[&str]| {
        let mut problems = problems(&[&["serve", GROUPS], args].concat(), &[]);
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems.remove(0).1
    };
    assert_eq!(text(&["--lisen", "x"]), "there is no such flag; is it --listen?");
    assert_eq!(text(&["--listen"]), "needs a value");
    assert_eq!(text(&["--region=a", "--region=b"]), "is given more than once");
    assert_eq!(text(&["stray"]), "nothing is expected here but flags, which begin with --");
    assert_eq!(text(&["--refresh-interval=1ms"]), "1ms is not between 1s and 1h");
    // Between two refreshes the age comes to the interval, and the time that the second one takes.
    for (age, interval, least) in
        [("5s", "5s", "10s"), ("60s", "60s", "2m"), ("119s", "60s", "2m"), ("1h", "1h", "1h 1m")]
    {
        assert_eq!(
            text(&["--snapshot-max-age", age, "--refresh-interval", interval]),
            format!("{age} leaves no time for the next refresh after --refresh-interval: {least} or more")
        );
    }
    assert_eq!(text(&["--admin-listen=127.0.0.1:8086"]), "127.0.0.1:8086 is the address of --listen");
    assert_eq!(text(&["--nodes=3:2:x"]), "\"3:2:x\": the maximum is below the minimum");
    assert_eq!(
        text(&["--daemonset-flush=5"]),
        "\"5\" is no duration like 90s, 10m or 48h: time unit needed, for example 5sec or 5ms"
    );
    assert_eq!(
        text(&["--lifecycle-hook=a b"]),
        "\"a b\" is no name of a lifecycle hook: 1 to 255 of A-Z a-z 0-9 - _ /"
    );
}

#[test]
fn hooks_are_left_alone_unless_the_flag_is_given_bare_or_with_a_mode() {
    let read = |args: &[&str]| serve(&[&[GROUPS], args].concat(), &[]).managed_hooks;
    let managed = |retain| Some(Managed { heartbeat: Duration::from_mins(5), retain });
    let flag = "--manage-lifecycle-hooks";
    assert_eq!((read(&[]), read(&[flag, "--nodes=0:1:db"])), (None, managed(false)));
    let table = [("off", None), ("false", None), ("on", managed(false)), ("true", managed(false))];
    for (mode, expected) in table.into_iter().chain([("retain", managed(true))]) {
        assert_eq!(read(&[flag, mode]), expected, "{mode}");
        assert_eq!(serve(&[GROUPS], &[("EBBTIDE_MANAGE_LIFECYCLE_HOOKS", mode)]).managed_hooks, expected);
    }
}

#[test]
fn a_share_is_a_percentage_up_to_a_half() {
    for (text, expected) in [("0%", 0), ("7.5%", 750), ("50%", 5000), ("3%", 300), ("7.255%", 726)] {
        let config = serve(&[GROUPS, "--memory-overhead", text], &[]);
        assert_eq!(config.templates.memory_overhead, Some(expected), "{text}");
    }
    for text in ["7.5", "0.075", "-1%", "50.1%", "%", "NaN%", "7,5%", "many"] {
        let found = problems(&["serve", GROUPS, &format!("--memory-overhead={text}")], &[]);
        let why = format!("{text:?} is no share from 0% to 50%, like 7.5%");
        assert_eq!(found, [("--memory-overhead".into(), why)]);
    }
}

#[test]
fn pods_are_a_number_or_as_many_as_there_are_addresses() {
    for (text, expected) in [("none", None), ("1", Some(1)), ("110", Some(110)), ("2000", Some(2000))] {
        let config = serve(&[GROUPS, "--max-pods", text], &[]);
        assert_eq!(config.templates.max_pods, expected, "{text}");
    }
    for text in ["0", "-1", "2001", "1.5", "many", "99999999999999999999"] {
        let found = problems(&["serve", GROUPS, &format!("--max-pods={text}")], &[]);
        let why = format!("{text:?} is neither none nor a number from 1 to 2000");
        assert_eq!(found, [("--max-pods".into(), why)]);
    }
}

#[test]
fn a_problem_of_a_variable_is_one_of_its_flag() {
    assert_eq!(
        problems(&["serve", GROUPS], &[("EBBTIDE_DRAIN_TIMEOUT", "0s")]),
        [("--drain-timeout".into(), "0s is not between 1s and 30days".into())]
    );
}

#[test]
fn without_groups_there_is_nothing_to_serve() {
    assert_eq!(flags(&["serve"]), ["--node-group-auto-discovery"]);
}

#[test]
fn plaintext_is_for_loopback_addresses() {
    for address in ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "[::ffff:127.0.0.1]:1"] {
        serve(&[GROUPS, "--listen", address], &[]);
    }
    for address in ["0.0.0.0:1", "[::]:1", "10.0.0.1:1"] {
        assert_eq!(flags(&["serve", GROUPS, "--listen", address]), ["--listen"], "{address}");
    }
}

#[test]
fn a_unix_socket_needs_no_certificates() {
    let at = |listen: &str| serve(&[GROUPS, listen], &[]).listen;
    assert_eq!(at("--listen=unix:///run/ebbtide/grpc.sock"), Listen::Unix("/run/ebbtide/grpc.sock".into()));
    assert_eq!(at("--listen=unix:/run/ebbtide/grpc.sock"), at("--listen=unix:///run/ebbtide/grpc.sock"));
    let long = format!("--listen=unix:///{}", "x".repeat(100));
    for bad in ["--listen=unix://run/x", "--listen=unix:///run/", "--listen=unix:", &long] {
        assert_eq!(flags(&["serve", GROUPS, bad]), ["--listen"], "{bad}");
    }
}

#[test]
fn a_proxy_is_the_environments_in_either_case() {
    let proxy = |env: &[(&str, &str)]| serve(&[GROUPS], env).proxy;
    let expected = Proxy::new("http://proxy.example:3128", ".internal").expect("a URL");
    for env in [
        [("HTTPS_PROXY", "http://proxy.example:3128"), ("NO_PROXY", ".internal")],
        [("https_proxy", "http://proxy.example:3128"), ("no_proxy", ".internal")],
        [("HTTPS_PROXY", "proxy.example:3128"), ("no_proxy", ".internal")],
    ] {
        assert_eq!(proxy(&env), Some(expected.clone()), "{env:?}");
    }
    assert_eq!(proxy(&[("HTTPS_PROXY", " "), ("HTTP_PROXY", "http://proxy.example")]), None);
    let [(flag, _)] = &problems(&["serve", GROUPS], &[("HTTPS_PROXY", "http://")])[..] else {
        panic!("one problem")
    };
    assert_eq!(flag, "HTTPS_PROXY");
}

#[test]
fn certificates_go_together_and_have_to_be_there() {
    let given = ["--tls-cert=/nonexistent/1", "--tls-key=/nonexistent/2", "--tls-client-ca=/nonexistent/3"];
    let all = ["--tls-cert", "--tls-key", "--tls-client-ca"];
    assert_eq!(flags(&[&["serve", GROUPS, "--listen=0.0.0.0:1"], &given[..]].concat()), all);
    for (flag, given) in all.into_iter().zip(given) {
        let others: Vec<_> = all.into_iter().filter(|other| *other != flag).collect();
        let found = problems(&["serve", GROUPS, "--listen=0.0.0.0:1", given], &[]);
        assert_eq!(found.iter().map(|(flag, _)| flag.as_str()).collect::<Vec<_>>(), others);
        assert!(found.iter().all(|(_, text)| *text == format!("is needed with {flag}")), "{found:?}");
    }
}

#[test]
fn a_certificate_of_the_expander_needs_the_address_where_it_is_shown() {
    for flag in ["--expander-tls-cert", "--expander-tls-key"] {
        let found = problems(&["serve", GROUPS, &format!("{flag}=/nonexistent/1")], &[]);
        assert_eq!(found, [("--expander-listen".to_owned(), format!("is needed with {flag}"))]);
    }
}

#[cfg(feature = "simulate")]
#[test]
fn simulate_needs_nothing_and_takes_a_seed() {
    let simulate = |args: &[&str]| parse(&[&["simulate"], args].concat(), &[]);
    let plain = Simulate { seed: 1, json: false, svg: None, listen: None };
    assert_eq!(simulate(&[]), Ok(Command::Simulate(plain.clone())));
    let all = Simulate { seed: 7, json: true, svg: Some("out.svg".into()), listen: None };
    assert_eq!(simulate(&["--seed", "7", "--json", "--svg=out.svg"]), Ok(Command::Simulate(all)));
    assert_eq!(flags(&["simulate", "--seed=x", "--json=1", "--svgg", "f"]), ["--seed", "--json", "--svgg"]);
    let listening =
        |folder: &str| Ok(Command::Simulate(Simulate { listen: Some(folder.into()), ..plain.clone() }));
    assert_eq!(simulate(&["--listen"]), listening(".ebbtide"));
    assert_eq!(simulate(&["--listen", "there"]), listening("there"));
    let both = problems(&["simulate", "--json", "--listen"], &[]);
    assert_eq!(both, [("--json".into(), "cannot be given together with --listen".into())]);
}

#[test]
fn a_command_is_needed_and_help_is_no_problem() {
    let commands = flags::COMMANDS;
    assert_eq!(problems(&[], &[]), [(String::new(), format!("a command is needed: {commands}"))]);
    let wrong = problems(&["server"], &[]);
    assert_eq!(wrong, [(String::new(), format!("there is no command \"server\": {commands}"))]);
    let Ok(Command::Print(help)) = parse(&["serve", "--help"], &[]) else { panic!("no help") };
    assert!(help.contains("EBBTIDE_SNAPSHOT_MAX_AGE]") && help.contains("10m]"), "{help}");
    // Only what is read is promised.
    let variables = |help: &str| help.matches("[env: EBBTIDE_").count();
    for command in ["plan", "check", "prices"] {
        let Ok(Command::Print(of_command)) = parse(&[command, "--help"], &[]) else { panic!("no help") };
        assert_eq!(variables(&of_command), variables(&help), "{command}");
    }
    assert!(matches!(parse(&["--version"], &[]), Ok(Command::Print(_))));
}

#[test]
fn problems_are_printed_one_a_line() {
    let Err(problems) = parse(&["serve", "--log-format=xml"], &[]) else { panic!("two problems") };
    assert_eq!(
        problems.to_string(),
        "--node-group-auto-discovery: there are no node groups: give this or --nodes\n\
         --log-format: \"xml\" is none of text, json\n\
         see ebbtide serve --help"
    );
    let told = |args: &[&str]| {
        let args = args.iter().map(OsString::from);
        let told = Config::parse(args, |_| None, Vec::new).expect_err("problems").to_string();
        told.lines().last().unwrap_or_default().to_owned()
    };
    assert_eq!(told(&["ebbtide", "simulate", "--no-such"]), "see ebbtide simulate --help");
    assert_eq!(told(&["ebbtide", "no-such"]), "see ebbtide --help");
    assert_eq!(told(&["kubectl-ebbtide", "status", "--no-such"]), "see kubectl ebbtide status --help");
}

#[cfg(unix)]
#[test]
fn an_argument_that_is_no_text_is_a_problem_and_no_panic() {
    use std::os::unix::ffi::OsStringExt as _;
    let args =
        ["ebbtide", "serve", GROUPS].iter().map(OsString::from).chain([OsString::from_vec(vec![0xff])]);
    assert!(Config::parse(args, |_| None, Vec::new).is_err());
}

#[test]
fn plan_takes_the_flags_and_variables_of_serve_and_needs_no_groups() {
    let plan = |args: &[&str], env: &[(&str, &str)]| match parse(args, env) {
        Ok(Command::Plan(options)) => *options,
        other => panic!("not planned: {other:?}"),
    };
    let options = plan(&["plan", "n-1", "-o", "json"], &[("EBBTIDE_DRAIN_TIMEOUT", "10m")]);
    assert_eq!((options.node.as_str(), options.look.output), ("n-1", Output::Json));
    assert_eq!(options.look.config.scale_in.drain_timeout, Some(Duration::from_mins(10)));
    assert!(options.look.config.selectors.is_empty());
    assert!(!plan(&["plan", GROUPS, "n-1", "--cause=operator"], &[]).look.config.selectors.is_empty());
    assert_eq!(
        flags(&["plan", "n-1", "--drain-timeout=soon", "--no-such"]),
        ["--no-such", "--drain-timeout"]
    );
    let text = problems(&["status", "--output", "xml"], &[]).remove(0).1;
    assert_eq!(text, "\"xml\" is none of table, wide, json, yaml");
}

#[test]
fn plan_and_check_look_by_the_flags_of_the_serve_whose_container_they_are_in() {
    let serve = "/ebbtide\0serve\0--node-group-auto-discovery=asg:tag=x\0--drain-timeout=10m\0--flush=1\0";
    let parse = |args: &[&str]| {
        let variables = |name: &str| match name {
            "EBBTIDE_PATIENCE" => Some("5m".to_owned()),
            "EBBTIDE_DRAIN_TIMEOUT" => Some("1m".to_owned()),
            _ => None,
        };
        Config::parse(args.iter().map(OsString::from), variables, || serve.as_bytes().to_vec())
    };
    let Ok(Command::Check(options)) = parse(&["ebbtide", "check", "-n", "ops", "--drain-timeout=20m"]) else {
        panic!("not checked")
    };
    assert_eq!(options.namespace.as_deref(), Some("ops"));
    let minutes = |minutes| Some(Duration::from_mins(minutes));
    assert!(!options.config.selectors.is_empty());
    let scale_in = &options.config.scale_in;
    assert_eq!((scale_in.drain_timeout, scale_in.patience), (minutes(20), minutes(5)));
    let Ok(Command::Plan(options)) = parse(&["ebbtide", "plan", "n-1"]) else { panic!("not planned") };
    assert_eq!(options.look.config.scale_in.drain_timeout, minutes(10));
    assert!(parse(&["ebbtide", "serve"]).is_err(), "another serve takes nothing over");
}

#[test]
fn completions_and_manual_pages_know_every_command() {
    for (args, parts) in [
        (&["completions", "bash"][..], ["--node-group-auto-discovery", "plan"]),
        (&["completions", "zsh"], ["--drain-timeout", "status"]),
        (&["man"], ["serve", "plan"]),
        (&["man", "plan"], ["drain\\-timeout", "EBBTIDE_"]),
    ] {
        let Ok(Command::Print(text)) = parse(args, &[]) else { panic!("printed: {args:?}") };
        for part in parts {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
    assert!(parse(&["man", "nonsense"], &[]).is_err());
}

#[test]
fn as_a_plugin_of_kubectl_it_works_and_calls_itself_so() {
    let args = ["/usr/local/bin/kubectl-ebbtide", "status", "--help"].map(OsString::from);
    let Ok(Command::Print(help)) = Config::parse(args, |_| None, Vec::new) else { panic!("help") };
    assert!(help.contains("Usage: kubectl ebbtide status"), "{help}");
    let args = ["kubectl-ebbtide", "status"].map(OsString::from);
    assert!(matches!(Config::parse(args, |_| None, Vec::new), Ok(Command::Status(_))));
}

#[test]
fn a_queue_is_named_once_and_two_have_two_names() {
    let queue = |account: &str, name: &str| {
        format!("--queue-url=https://sqs.us-east-1.amazonaws.com/{account}/{name}")
    };
    let (one, other) = (queue("1", "one"), queue("1", "other"));
    assert_eq!(serve(&[GROUPS, &one, &other], &[]).queue_urls.len(), 2);
    for again in [one.clone(), queue("2", "one"), format!("{one}/")] {
        let found = problems(&["serve", GROUPS, &one, &other, &again], &[]);
        assert!(
            matches!(&found[..], [(flag, text)] if flag == "--queue-url" && text.contains("\"one\"")),
            "{found:?}"
        );
    }
}
