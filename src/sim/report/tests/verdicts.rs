//! Every check fails when its promise is broken, and only then.

use super::*;

/// The names of the checks that failed.
fn failed(scenario: &Scenario) -> Vec<&'static str> {
    let report = scenario.report();
    let failed: Vec<_> = report.verdict.checks.iter().filter(|check| !check.passed).collect();
    assert_eq!(report.verdict.passed(), failed.is_empty());
    failed.iter().map(|check| check.name).collect()
}

fn found(scenario: &Scenario, name: &str) -> Number {
    let report = scenario.report();
    report.verdict.checks.iter().find(|check| check.name == name).expect("that check").found
}

fn detail(scenario: &Scenario, name: &str) -> String {
    let report = scenario.report();
    report.verdict.checks.iter().find(|check| check.name == name).expect("that check").detail.clone()
}

const CUT: &str = "workloads cut short";
const LOST: &str = "log lines lost";
const DAEMONS: &str = "DaemonSet pods gone before last workload";
const EARLY: &str = "instances released before last workload";
const HOOKS: &str = "hooks timed out";
const TERMINATIONS: &str = "surplus terminations or decrements";
const UNASKED: &str = "healthy instances ended unasked";
const UNFINISHED: &str = "scale-ins not finished";
const FLUSH: &str = "slowest: last exit to flush began";
const GETS: &str = "GETs of a pod";

#[test]
fn a_story_in_which_all_goes_well_passes() {
    let scenario = told();
    assert_eq!(failed(&scenario), [""; 0]);
    assert_eq!(found(&scenario, FLUSH), Number::Span(Some(Seconds::milliseconds(50))));
    assert_eq!(detail(&scenario, CUT), "of 2 workload pods");
    assert_eq!(detail(&scenario, LOST), "of 120 written, 120 shipped");
    assert_eq!(detail(&scenario, TERMINATIONS), "1 terminated, 1 decrement of 1");
}

#[test]
fn a_story_in_which_nothing_happens_fails() {
    assert_eq!(failed(&Scenario::default()), [UNFINISHED]);
}

#[test]
fn a_workload_that_is_killed_fails_for_whatever_reason() {
    for by in [Cut::GraceOver, Cut::PowerOff] {
        let mut scenario = told();
        scenario.without(|what| what.starts_with("PodExited") && what.contains("web-7f9c-a"));
        scenario.cut(12_400, "web-7f9c-a", by);
        assert_eq!(failed(&scenario), [CUT]);
    }
}

#[test]
fn a_daemonset_pod_may_be_killed_when_the_workloads_have_left() {
    let mut scenario = told();
    scenario.asked(42_000, AGENT, By::Delete, 1).cut(43_000, AGENT, Cut::GraceOver);
    assert_eq!(failed(&scenario), [""; 0]);
}

#[test]
fn lost_lines_fail_by_the_journal_and_by_the_count() {
    let mut scenario = told();
    scenario.cluster(48_300, cluster::Event::LinesLost { node: NODE.to_owned(), count: 7 });
    assert_eq!((failed(&scenario), found(&scenario, LOST)), (vec![LOST], Number::Count(7)));
    let mut scenario = told();
    scenario.facts.lines.insert("other".to_owned(), Lines { written: 9, shipped: 5, lost: 4 });
    assert_eq!((failed(&scenario), found(&scenario, LOST)), (vec![LOST], Number::Count(4)));
}

#[test]
fn a_daemonset_pod_that_goes_before_the_last_workload_fails_whoever_asks_it() {
    for by in [By::Eviction, By::Delete, By::Controller] {
        let mut scenario = told();
        scenario.asked(41_000, AGENT, by, 30);
        assert_eq!(failed(&scenario), [DAEMONS]);
    }
    let mut scenario = told();
    scenario.exited(20_000, AGENT);
    assert_eq!(failed(&scenario), [DAEMONS]);
}

#[test]
fn a_daemonset_pod_that_was_asked_before_it_ran_counts_and_its_replacement_does_not() {
    let mut scenario = told();
    let pod = Name::from("logging/agent-new");
    scenario.facts.daemons.insert(pod.clone());
    scenario.cluster(20_000, cluster::Event::PodScheduled { pod, node: NODE.to_owned() });
    assert_eq!(failed(&scenario), [""; 0]);
    scenario.asked(20_500, "logging/agent-new", By::Eviction, 30);
    assert_eq!((failed(&scenario), found(&scenario, DAEMONS)), (vec![DAEMONS], Number::Count(1)));
}

#[test]
fn an_instance_released_with_a_workload_on_it_fails() {
    let mut scenario = told();
    scenario.without(|what| what.starts_with("HookCompleted")).completed(30_000);
    assert_eq!(failed(&scenario), [EARLY]);
    // Without a hook, the termination is the release.
    let mut scenario = told();
    scenario.without(|what| ["EnteredWait", "Heartbeat", "HookC"].iter().any(|word| what.starts_with(word)));
    assert_eq!(failed(&scenario), [EARLY]);
}

/// Its load balancers let go of it first, and in that time its node may be drained.
#[test]
fn what_its_group_ends_without_a_hook_is_released_when_its_machine_shuts_down() {
    for (off, expected) in [(30_000, vec![EARLY]), (48_300, Vec::new())] {
        let mut scenario = told();
        let hooked = ["Called", "TerminationStarted", "DesiredChanged", "EnteredWait", "Heartbeat", "HookC"];
        scenario.without(|what| hooked.iter().any(|word| what.starts_with(word)));
        scenario.terminating(100, TerminationCause::Rebalance);
        let (group, instance) = (GROUP.to_owned(), INSTANCE.to_owned());
        scenario.aws(off, aws::Event::Powered { group, instance, power: Power::ShuttingDown });
        assert_eq!(failed(&scenario), expected);
    }
}

#[test]
fn a_workload_that_goes_down_with_its_instance_fails_all_that_it_breaks() {
    let mut scenario = told();
    scenario.without(|what| what.starts_with("PodExited") && what.contains("web-7f9c-b"));
    scenario.cut(48_300, "web-7f9c-b", Cut::PowerOff);
    assert_eq!(failed(&scenario), [CUT, EARLY]);
}

#[test]
fn a_release_in_the_very_moment_of_the_last_exit_is_not_early() {
    let mut scenario = told();
    scenario.without(|what| what.starts_with("HookCompleted")).completed(41_200);
    assert_eq!(failed(&scenario), [""; 0]);
}

#[test]
fn a_hook_of_somebody_else_that_still_holds_the_instance_is_no_release() {
    let mut scenario = told();
    let (group, instance) = (GROUP.to_owned(), INSTANCE.to_owned());
    let (hook, token) = ("theirs".to_owned(), "u".to_owned());
    let transition = Transition::Terminating;
    scenario.aws(100, aws::Event::EnteredWait { group, instance, hook, token, transition });
    scenario.without(|what| what.starts_with("HookCompleted")).completed(30_000);
    assert_eq!(failed(&scenario), [""; 0]);
}

#[test]
fn a_hook_that_times_out_fails() {
    let mut scenario = told();
    scenario.without(|what| what.starts_with("HookCompleted")).timed_out(46_300);
    assert_eq!(failed(&scenario), [HOOKS]);
    let mut scenario = told();
    scenario.without(|what| what.starts_with("HookCompleted")).timed_out(30_000);
    assert_eq!(failed(&scenario), [EARLY, HOOKS]);
}

#[test]
fn a_second_termination_fails_and_a_refused_or_lost_try_does_not() {
    let mut scenario = told();
    scenario.terminate_called(50, Outcome::Refused("Throttling")).terminate_called(60, Outcome::LostBefore);
    assert_eq!(failed(&scenario), [""; 0]);
    scenario.terminate_called(150, Outcome::Answered);
    assert_eq!((failed(&scenario), found(&scenario, TERMINATIONS)), (vec![TERMINATIONS], Number::Count(1)));
}

#[test]
fn decrements_must_be_as_many_as_were_asked_for() {
    let mut scenario = told();
    scenario.desired(150, 2, 1);
    assert_eq!(failed(&scenario), [TERMINATIONS]);
    let mut scenario = told();
    scenario.without(|what| what.starts_with("DesiredChanged"));
    assert_eq!(failed(&scenario), [TERMINATIONS]);
}

#[test]
fn an_instance_that_the_group_chose_by_itself_fails_unless_a_scene_asked_for_it() {
    let mut scenario = told();
    let (group, instance) = (GROUP.to_owned(), "i-0other".to_owned());
    let cause = TerminationCause::ScaleIn;
    scenario.aws(9_000, aws::Event::TerminationStarted { group, instance, cause, decrement: false });
    assert_eq!(failed(&scenario), [UNASKED]);
    scenario.facts.asked_for.insert("i-0other".to_owned());
    assert_eq!(failed(&scenario), [""; 0]);
}

#[test]
fn a_termination_without_a_scale_in_on_record_fails() {
    let mut scenario = told();
    scenario.without(|what| what.starts_with("NodeChanged"));
    assert_eq!(failed(&scenario), [UNASKED]);
}

#[test]
fn a_scale_in_that_does_not_end_fails_and_one_that_is_called_off_does_not() {
    let mut scenario = told();
    scenario.without(|what| what.starts_with("Terminated"));
    assert_eq!(failed(&scenario), [UNFINISHED]);
    scenario.changed(47_000, vec![NodeChange::AnnotationRemoved(names::RECORD.to_owned())]);
    assert_eq!(failed(&scenario), [""; 0]);
}

#[test]
fn a_slow_flush_fails_unless_the_program_was_down() {
    let mut scenario = told();
    scenario.without(|what| what.contains("Flushing") && what.starts_with("NodeChanged"));
    scenario.recorded(41_500, Phase::Flushing, Release::LeftToGroup);
    assert_eq!(
        (failed(&scenario), found(&scenario, FLUSH)),
        (vec![FLUSH], Number::Span(Some(Seconds::milliseconds(300))))
    );
    scenario.facts.program = vec![(at(30_000), Program::Killed), (at(41_400), Program::Restarted)];
    assert_eq!(failed(&scenario), [""; 0]);
    assert_eq!(detail(&scenario, FLUSH), "0 nodes, 1 not counted: ebbtide was down");
    scenario.facts.program = vec![(at(30_000), Program::Killed), (at(32_000), Program::Restarted)];
    assert_eq!(failed(&scenario), [FLUSH]);
}

#[test]
fn a_get_of_a_pod_fails_and_a_list_or_an_eviction_does_not() {
    let mut scenario = told();
    let request = |verb, subresource: Option<&str>| cluster::Event::Request {
        verb,
        resource: "pods",
        subresource: subresource.map(str::to_owned),
        name: "web-7f9c-a".into(),
        code: 200,
        by: None,
    };
    scenario.cluster(1, request(cluster::Verb::List, None));
    scenario.cluster(2, request(cluster::Verb::Create, Some("eviction")));
    assert_eq!(failed(&scenario), [""; 0]);
    scenario.cluster(3, request(cluster::Verb::Get, None));
    assert_eq!((failed(&scenario), detail(&scenario, GETS)), (vec![GETS], "of 3 requests".to_owned()));
}
