//! A node's timeline, and how it is folded.

use super::*;

fn only(scenario: &Scenario) -> NodeReport {
    let mut nodes = scenario.report().nodes;
    assert_eq!(nodes.len(), 1);
    nodes.remove(0)
}

fn lines(scenario: &Scenario, kind: Kind) -> Vec<String> {
    let node = only(scenario);
    let lines = node.lines.iter().filter(|line| line.kind == kind);
    lines.map(|line| format!("{} {}", line.at, line.text)).collect()
}

#[test]
fn moments_are_counted_from_the_nodes_own_start() {
    let node = only(&told());
    assert_eq!(node.start.to_string(), "100.0");
    assert_eq!(node.took.map(|took| took.to_string()).as_deref(), Some("48.3"));
    assert_eq!(node.last_exit, Some(Seconds::milliseconds(41_200)));
    assert_eq!(node.exit_to_flush, Some(Seconds::milliseconds(50)));
    assert_eq!(node.scene.as_deref(), Some("A slow workload <and> a tight budget"));
    let phases = node.phases.iter().map(|span| format!("{} {}-{}", span.phase, span.from, span.to));
    assert_eq!(
        phases.collect::<Vec<_>>(),
        ["Draining 0.0-41.3", "Flushing 41.3-46.3", "Releasing 46.3-48.3"]
    );
}

#[test]
fn seconds_have_one_decimal_and_no_negative_nought() {
    let shown =
        [0, -40, 49, 50, 1_249, 1_250, -1_250, 87_400].map(|ms| Seconds::milliseconds(ms).to_string());
    assert_eq!(shown, ["0.0", "0.0", "0.0", "0.1", "1.2", "1.3", "-1.3", "87.4"]);
    assert_eq!(format!("{:>6}|", Seconds::milliseconds(1_000)), "   1.0|");
}

#[test]
fn refusals_are_folded_by_budget_with_the_pods_they_met() {
    assert_eq!(lines(&told(), Kind::Refused), ["0.2 web-7f9c-b refused 4 times by budget web until 12.3 s"]);
    let mut scenario = told();
    scenario.refused(9_000, "web-7f9c-a", "web").refused(10_000, "web-7f9c-a", "other");
    assert_eq!(
        lines(&scenario, Kind::Refused),
        [
            "0.2 web-7f9c-b and web-7f9c-a refused 5 times by budget web until 12.3 s",
            "10.0 web-7f9c-a refused by budget other"
        ]
    );
}

#[test]
fn what_others_suffer_is_not_told_here() {
    let mut scenario = told();
    let (pod, node) = (Name::from("api-1"), "ip-10-0-0-6".to_owned());
    scenario.cluster(-9, cluster::Event::PodScheduled { pod: pod.clone(), node: node.clone() });
    scenario.cluster(-8, cluster::Event::PodRunning { pod: pod.clone(), node: node.clone() });
    scenario.refused(5_000, "api-1", "api").asked(6_000, "api-1", By::Eviction, 5);
    scenario.cluster(7_000, cluster::Event::PodExited { pod, node });
    assert_eq!(only(&scenario), only(&told()));
}

#[test]
fn heartbeats_failed_calls_and_events_are_folded() {
    let mut scenario = told();
    scenario.terminate_called(20, Outcome::Refused("Throttling"));
    scenario.terminate_called(60, Outcome::Refused("Throttling"));
    assert_eq!(lines(&scenario, Kind::Heartbeats), ["15.0 2 heartbeats of hook ebbtide until 30.0 s"]);
    assert_eq!(
        lines(&scenario, Kind::CallFailed),
        ["0.0 TerminateInstanceInAutoScalingGroup refused with Throttling 2 times until 0.1 s"]
    );
    assert_eq!(
        lines(&scenario, Kind::Said),
        ["0.2 ScaleInBlocked (4 times): disruption budget default/web: needs 1"]
    );
}

#[test]
fn a_flush_that_begins_with_workloads_left_says_so() {
    let mut scenario = told();
    scenario.without(|what| what.starts_with("PodExited") && what.contains("web-7f9c-b"));
    scenario.cut(44_000, "web-7f9c-b", Cut::GraceOver);
    assert_eq!(
        lines(&scenario, Kind::Phase)[0],
        "41.3 time is up with 1 workload pod left; DaemonSet pods have 5.0 s"
    );
    assert_eq!(lines(&scenario, Kind::CutShort), ["44.0 web-7f9c-b CUT SHORT: its grace was over"]);
}

#[test]
fn volumes_that_stay_attached_are_told_from_the_event() {
    let mut scenario = told();
    let note =
        "DaemonSet pods have had their time, 2 volumes still attached: instance i-0abc is to be released";
    scenario.said(46_250, "ScaleInReleasing", note);
    assert_eq!(lines(&scenario, Kind::Volumes), ["46.3 2 volumes still attached"]);
}

#[test]
fn the_groups_own_decision_is_the_beginning() {
    let mut scenario = told();
    scenario.without(|what| what.starts_with("TerminationStarted") || what.starts_with("Called"));
    scenario.without(|what| what.starts_with("EnteredWait"));
    scenario.terminating(-3_000, TerminationCause::Rebalance).held(-3_000);
    let node = only(&scenario);
    assert_eq!(node.start.to_string(), "97.0");
    assert_eq!(node.lines[0].text, "the group terminates the instance: zone rebalance");
    assert!(node.held_by_hook);
}

#[test]
fn an_instance_that_went_without_a_scale_in_has_a_timeline_too() {
    let mut scenario = told();
    scenario.without(|what| what.starts_with("NodeChanged") || what.starts_with("TerminationStarted"));
    scenario.terminating(90, TerminationCause::HealthCheck);
    assert_eq!(only(&scenario).cause, "failed health check (no scale-in of ours)");
}

#[test]
fn deaths_of_the_program_are_marked_on_the_nodes_they_meet() {
    let mut scenario = told();
    scenario.facts.program =
        vec![(at(20_000), Program::Killed), (at(22_000), Program::Restarted), (at(60_000), Program::Killed)];
    assert_eq!(lines(&scenario, Kind::Program), ["20.0 ebbtide killed", "22.0 ebbtide started again"]);
    assert_eq!(only(&scenario).program.len(), 2);
}

#[test]
fn pods_are_bars_with_the_workloads_first() {
    let node = only(&told());
    let bars = node.pods.iter().map(|bar| {
        let shown = |at: Option<Seconds>| at.map_or("-".to_owned(), |at| at.to_string());
        format!("{} {} {} {} {:?}", bar.pod, bar.from, shown(bar.asked), shown(bar.gone), bar.end)
    });
    assert_eq!(
        bars.collect::<Vec<_>>(),
        [
            "web-7f9c-a -40.0 0.2 12.4 Some(Exited)",
            "web-7f9c-b -40.0 12.5 41.2 Some(Exited)",
            "logging/agent-2xk9p -45.0 - 48.3 Some(WithInstance)",
        ]
    );
}

#[test]
fn a_node_that_came_up_is_told_in_short() {
    let report = told().report();
    let [arrival] = report.arrivals.as_slice() else { panic!("one node came up") };
    assert_eq!(arrival.node.as_deref(), Some(NODE));
    let moments = [arrival.in_service, arrival.registered, arrival.first_workload];
    assert_eq!(moments.map(|at| at.map(|at| at.to_string()).unwrap_or_default()), ["30.0", "40.0", "50.0"]);
}

#[test]
fn a_scale_in_that_is_called_off_ends_its_phases() {
    let mut scenario = told();
    scenario
        .without(|what| what.contains("Flushing") || what.contains("Releasing") || what.starts_with("HookC"));
    scenario.without(|what| what.starts_with("Terminated") || what.starts_with("PoweredOff"));
    scenario.without(|what| what.starts_with("NodeRemoved"));
    scenario.changed(30_000, vec![NodeChange::AnnotationRemoved(names::RECORD.to_owned())]);
    let node = only(&scenario);
    assert_eq!(node.phases.iter().map(|span| span.to.to_string()).collect::<Vec<_>>(), ["30.0"]);
    assert_eq!(lines(&scenario, Kind::Cancelled), ["30.0 scale-in called off"]);
    assert_eq!(node.took, None);
}
