//! What one refresh sees.

use std::time::Duration;

use ebbtide::aws::{Hook, Lifecycle};
use ebbtide::groups::hooks::HookState;
use ebbtide::sim::aws::{
    GroupSpec, HookSpec, LaunchFailure, LifecycleState, Lose, Operation, Refusal, Trouble, Which,
};
use tokio::time::Instant;

use crate::world::{INTERVAL, by_tag, ours, selectors, world};

#[tokio::test(start_paused = true)]
async fn groups_are_found_by_tag_and_by_name_and_no_others() {
    let world = world([
        ours("tagged").size(0, 9, 2).tag("team", "blue"),
        ours("other-team").size(0, 9, 1).tag("team", "red"),
        GroupSpec::named("named").size(1, 20, 3),
        ours("both").size(0, 9, 1).tag("team", "blue"),
        GroupSpec::named("foreign").size(0, 9, 1),
    ])
    .await;
    let tag = format!("asg:tag={},team=blue", crate::world::TAG);
    let discovery = world.discovery(selectors(&["2:10:named", "3:5:both", "0:1:gone"], &[&tag]));
    let snapshot = discovery.refresh().await.expect("sees");
    let bounds: Vec<_> = snapshot
        .groups
        .values()
        .map(|g| (g.asg.name.as_str(), g.asg.min, g.asg.max, g.asg.desired))
        .collect();
    assert_eq!(bounds, [("both", 3, 5, 1), ("named", 2, 10, 3), ("tagged", 0, 9, 2)]);
    assert_eq!(snapshot.taken_at, world.clock.now());
    assert_eq!(snapshot.by_instance.len(), 6);
}

/// AWS leaves out what is not there; others may refuse the call.
#[tokio::test(start_paused = true)]
async fn a_named_group_that_is_refused_as_unknown_is_missing_and_no_other() {
    for (code, message) in [
        ("ValidationError", "AutoScalingGroup name not found - AutoScalingGroup gone not found"),
        ("ValidationError", "There is no gone"),
        ("ResourceNotFound", "gone"),
    ] {
        let world = world([ours("web").size(0, 9, 2), ours("api").size(0, 9, 1)]).await;
        let described = || Which::of(&[Operation::DescribeAutoScalingGroups]).lasting(INTERVAL);
        let refused = || Trouble::Refused(Refusal { code, status: 400, message }, Lose::BeforeEffect);
        world.sim.trouble(described().about("gone"), refused());
        let discovery = world.discovery(selectors(&["0:9:web", "0:9:gone", "0:9:api"], &[]));
        let snapshot = discovery.refresh().await.expect("sees");
        assert_eq!(snapshot.groups.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["api", "web"]);
        if !message.contains("not found") {
            world.sim.trouble(described(), refused());
            discovery.refresh().await.expect_err("that none is there, nobody has said");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_that_is_named_is_ours_whatever_cluster_its_tags_name() {
    let theirs = |name: &str| ours(name).tag("kubernetes.io/cluster/theirs", "owned");
    let found = "k8s.io/cluster-autoscaler/found";
    let world = world([theirs("named"), theirs("tagged").tag(found, ""), theirs("theirs")]).await;
    let by_tags = [format!("asg:tag={}", crate::world::TAG), format!("asg:tag={found}")];
    let discovery = world.discovery(selectors(&["0:9:named"], &by_tags.each_ref().map(String::as_str)));
    let snapshot = discovery.refresh().await.expect("sees");
    assert_eq!(snapshot.groups.keys().map(|name| name.as_str()).collect::<Vec<_>>(), ["named", "tagged"]);
}

#[tokio::test(start_paused = true)]
async fn an_aws_that_takes_twenty_seconds_is_waited_for_and_a_connection_that_is_dead_is_not() {
    let describe = || Which::of(&[Operation::DescribeAutoScalingGroups]);
    let late = Trouble::Late(Duration::from_secs(20));
    for (which, trouble, within) in
        [(describe(), late, 21), (describe().times(1), Trouble::Silent(Lose::BeforeEffect), 11)]
    {
        let world = world([ours("web")]).await;
        world.sim.trouble(which, trouble);
        let began = Instant::now();
        let snapshot = world.discovery(by_tag()).refresh().await.expect("sees");
        assert_eq!(snapshot.groups.len(), 1);
        let took = began.elapsed();
        assert!(took <= Duration::from_secs(within), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_group_is_seen_whole() {
    let world = world([ours("web")
        .size(0, 9, 3)
        .zones(["us-east-1b", "us-east-1c"])
        .suspended("AZRebalance")
        .tag("k8s.io/cluster-autoscaler/node-template/autoscaling-options/scaledownunneededtime", "5m")
        .tag("k8s.io/cluster-autoscaler/node-template/autoscaling-options/scaledownunreadytime", "soon")])
    .await;
    let warm = world.sim.add_instance("web", LifecycleState::WarmedStopped).expect("added");
    let standby = world.sim.add_instance("web", LifecycleState::Standby).expect("added");
    let snapshot = world.discovery(by_tag()).refresh().await.expect("sees");
    let group = &snapshot.groups["web"];
    assert_eq!(group.asg.zones, ["us-east-1b", "us-east-1c"]);
    assert!(group.asg.suspended.contains("AZRebalance"));
    assert_eq!(group.options.scale_down_unneeded_time.map(|time| time.as_secs()), Some(300));
    assert_eq!(group.options.scale_down_unready_time, None, "a bad tag is left out");
    assert_eq!(group.asg.live().count(), 3);
    assert!(snapshot.instance(&warm).is_none(), "an instance of a warm pool is no node");
    let (_, found) = snapshot.instance(&standby).expect("is seen");
    assert_eq!(found.lifecycle, Lifecycle::Standby);
    assert_eq!(group.failure, None);
}

#[tokio::test(start_paused = true)]
async fn a_failed_launch_explains_exactly_the_groups_that_are_short() {
    let mut world = world([ours("dry").size(0, 9, 1), ours("fine").size(0, 9, 1)]).await;
    world.run();
    world.until(|snapshot| snapshot.groups.len() == 2).await;
    assert_eq!(world.sim.calls(Operation::DescribeScalingActivities), 0, "nobody is short");
    world.sim.fail_launches("dry", LaunchFailure::VcpuLimit, 100);
    world.aws.set_desired(&"dry".into(), 3).await.expect("is within its bounds");
    world.groups.refresh_soon();
    let asked_at = world.clock.now();
    let snapshot = world.until(|snapshot| snapshot.groups["dry"].failure.is_some()).await;
    let failure = snapshot.groups["dry"].failure.as_ref().expect("is known");
    assert_eq!((failure.code.as_str(), failure.out_of_resources), ("VcpuLimitExceeded", true));
    assert_eq!(snapshot.groups["dry"].asg.missing(), 2);
    assert_eq!(snapshot.groups["fine"].failure, None);
    let took = world.clock.now().duration_since(asked_at);
    assert!(took.as_secs() <= 20, "it took {took:#}");
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_forgotten_when_the_launch_works_after_all() {
    let mut world = world([ours("dry").size(0, 9, 0)]).await;
    world.run();
    world.until(|snapshot| snapshot.groups.len() == 1).await;
    world.sim.fail_launches("dry", LaunchFailure::InsufficientCapacity, 2);
    world.aws.set_desired(&"dry".into(), 1).await.expect("is within its bounds");
    world.groups.refresh_soon();
    world.until(|snapshot| snapshot.groups["dry"].failure.is_some()).await;
    let snapshot = world.until(|snapshot| snapshot.groups["dry"].asg.live().count() == 1).await;
    assert_eq!(snapshot.groups["dry"].failure, None);
}

#[tokio::test(start_paused = true)]
async fn only_a_terminating_hook_of_our_name_is_ours() {
    let world = world([
        ours("ours").hook(HookSpec::terminating("ebbtide").heartbeat(90)),
        ours("theirs").hook(HookSpec::terminating("Terminate-LC-Hook").heartbeat(30)),
        ours("launching").hook(HookSpec::launching("ebbtide").heartbeat(30)),
    ])
    .await;
    let hook = world.hooks.of_now(&"ours".into()).await.expect("asks").ours.expect("has one");
    assert_eq!((hook.name.as_str(), hook.group.as_str()), ("ebbtide", "ours"));
    assert_eq!((hook.heartbeat_timeout.as_secs(), hook.global_timeout.as_secs()), (90, 9000));
    assert_eq!(world.hooks.of_now(&"theirs".into()).await.expect("asks").ours, None);
    assert_eq!(world.hooks.of_now(&"launching".into()).await.expect("asks").ours, None);
}

#[tokio::test(start_paused = true)]
async fn a_look_up_of_hooks_that_is_refused_breaks_off_no_other() {
    let group = |name| ours(name).hook(HookSpec::terminating("ebbtide"));
    let world = world([group("refused"), group("slow")]).await;
    let discovery = world.discovery(by_tag());
    let snapshot = discovery.refresh().await.expect("sees");
    let hooks = [Operation::DescribeLifecycleHooks];
    let denied = Refusal { code: "AccessDenied", status: 403, message: "is not authorized to perform" };
    world.sim.trouble(Which::of(&hooks).about("refused"), Trouble::Refused(denied, Lose::BeforeEffect));
    world.sim.trouble(Which::of(&hooks).about("slow"), Trouble::Late(Duration::from_secs(4)));
    assert!(world.hooks.refresh(&snapshot, 2, world.clock.now()).await.is_err());
    let slow = world.hooks.last_seen(&"slow".into());
    assert_eq!(slow.map(|hook| hook.name), Some("ebbtide".to_owned()));
}

#[tokio::test(start_paused = true)]
async fn groups_whose_hooks_nobody_can_read_keep_no_other_from_being_looked_up_again() {
    let group = |name| ours(name).hook(HookSpec::terminating("ebbtide"));
    let world = world([group("a-refused"), group("b-refused"), group("fine")]).await;
    let snapshot = world.discovery(by_tag()).refresh().await.expect("sees");
    let hooks = Which::of(&[Operation::DescribeLifecycleHooks]).about("refused");
    let denied = Refusal { code: "AccessDenied", status: 403, message: "is not authorized to perform" };
    world.sim.trouble(hooks, Trouble::Refused(denied, Lose::BeforeEffect));
    let mut looks = Vec::new();
    for round in 0..10 {
        let _ = world.hooks.refresh(&snapshot, 2, world.clock.now()).await;
        tokio::time::sleep(INTERVAL).await;
        looks.push(world.hooks.last_seen(&"fine".into()).is_some());
        if round == 3 {
            world.sim.delete_hook("fine", "ebbtide");
        }
    }
    assert_eq!(looks[..3], [false, true, true], "{looks:?}");
    assert_eq!(looks.last(), Some(&false), "it was deleted: {looks:?}");
}

#[tokio::test(start_paused = true)]
async fn a_wanted_hook_is_looked_up_until_aws_answers_and_presumed_meanwhile() {
    let world = world([ours("web").hook(HookSpec::terminating("ebbtide").heartbeat(90))]).await;
    let (hooks, asked) = (&world.hooks, || world.sim.calls(Operation::DescribeLifecycleHooks));
    let mut versions = hooks.versions();
    world.sim.deny(Operation::DescribeLifecycleHooks, true);
    let wanting = async {
        assert_eq!((hooks.state(&"web".into()), asked()), (HookState::Unknown, 0), "a read asks nobody");
        hooks.want(&"web".into(), world.clock.now());
        versions.changed().await.expect("there");
        let presumed = Hook::new("ebbtide", "web", Duration::from_secs(30));
        assert_eq!(hooks.state(&"web".into()), HookState::Presumed(presumed));
        assert_eq!(asked(), 2, "once failed is not enough");
        world.sim.deny(Operation::DescribeLifecycleHooks, false);
        versions.changed().await.expect("there");
        let told = hooks.state(&"web".into()).ours().map(|hook| hook.heartbeat_timeout);
        assert_eq!((told, asked()), (Some(Duration::from_secs(90)), 3));
        hooks.want(&"web".into(), world.clock.now());
        tokio::time::sleep(Duration::from_mins(5)).await;
        assert_eq!(asked(), 3, "it is known");
        hooks.want(&"web".into(), world.clock.now());
        world.sim.until(|_| asked() == 4).await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(!versions.has_changed().expect("there"), "it may have changed, and has not");
    };
    tokio::select! {
        () = hooks.run() => panic!("it ended"),
        () = wanting => {}
    }
}

#[tokio::test(start_paused = true)]
async fn many_callers_that_ask_for_a_hook_make_one_call() {
    const FRESH: Duration = Duration::from_secs(10);
    let world = world([ours("web").hook(HookSpec::terminating("ebbtide"))]).await;
    let web = "web".into();
    let all = futures::future::join_all((0..10).map(|_| world.hooks.seen_within(FRESH, &web))).await;
    assert!(all.into_iter().all(|answer| answer.expect("asks").ours.is_some()));
    assert_eq!(world.sim.calls(Operation::DescribeLifecycleHooks), 1);
}

#[tokio::test(start_paused = true)]
async fn many_who_wait_for_a_hook_that_aws_does_not_tell_share_the_failure_and_no_refresh_waits_with_them() {
    let world = world([ours("web").size(0, 9, 1).hook(HookSpec::terminating("ebbtide"))]).await;
    let discovery = world.discovery(selectors(&["0:9:web"], &[]));
    let snapshot = discovery.refresh().await.expect("sees");
    world.sim.hang(&[Operation::DescribeLifecycleHooks], true);
    let web = "web".into();
    let began = Instant::now();
    let asked = async {
        let answers = futures::future::join_all((0..20).map(|_| world.hooks.of_now(&web))).await;
        (answers, began.elapsed())
    };
    let refreshed = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        world.hooks.refresh(&snapshot, 2, world.clock.now()).await.expect("asks nothing");
        began.elapsed()
    };
    let ((answers, asked), refreshed) = tokio::join!(asked, refreshed);
    assert!(answers.iter().all(Result::is_err));
    assert!(asked <= Duration::from_secs(6), "{asked:?}");
    assert_eq!(refreshed, Duration::from_millis(1));
    // Whoever asks after that asks AWS.
    world.sim.hang(&[Operation::DescribeLifecycleHooks], false);
    world.hooks.of_now(&web).await.expect("asks");
}

#[tokio::test(start_paused = true)]
async fn callers_that_need_a_hook_as_it_is_now_share_the_next_answer() {
    let world = world([ours("web").hook(HookSpec::terminating("ebbtide"))]).await;
    let web = "web".into();
    world.sim.delay(Duration::from_millis(100), Duration::ZERO);
    let first = world.hooks.of_now(&web);
    let meanwhile = async {
        tokio::time::sleep(Duration::from_millis(1)).await;
        futures::future::join_all((0..10).map(|_| world.hooks.of_now(&web))).await
    };
    let (first, others) = tokio::join!(first, meanwhile);
    assert!(others.into_iter().chain([first]).all(|answer| answer.expect("asks").ours.is_some()));
    // The call under way when they asked may show what was before.
    assert_eq!(world.sim.calls(Operation::DescribeLifecycleHooks), 2);
    tokio::time::sleep(Duration::from_millis(1)).await;
    world.hooks.of_now(&web).await.expect("asks");
    assert_eq!(world.sim.calls(Operation::DescribeLifecycleHooks), 3, "no older answer does");
}
