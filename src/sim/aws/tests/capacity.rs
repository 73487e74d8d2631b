//! Sizes: what is refused, which instance is chosen, what a termination costs.

use super::*;

async fn set(bench: &Bench, desired: i32) -> Result<(), (String, String)> {
    let call = bench.asg.set_desired_capacity().auto_scaling_group_name("web").desired_capacity(desired);
    call.send().await.map(drop).map_err(|error| refusal(&error))
}

async fn terminate(bench: &Bench, id: &str, decrement: bool) -> Result<(), (String, String)> {
    let call = bench.asg.terminate_instance_in_auto_scaling_group().instance_id(id);
    let answer = call.should_decrement_desired_capacity(decrement).send().await;
    let activity = answer.map_err(|error| refusal(&error))?.activity.expect("an activity");
    assert!(activity.description().is_some_and(|text| text.ends_with(id)));
    Ok(())
}

fn validation(message: &str) -> Result<(), (String, String)> {
    Err(("ValidationError".to_owned(), message.to_owned()))
}

#[tokio::test(start_paused = true)]
async fn a_group_that_wants_more_launches_it_in_its_own_time() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 10, 0));
    let start = bench.clock.now();
    set(&bench, 3).await.expect("in range");
    assert_eq!(bench.aws.group("web").expect("the group").launches, 3);
    let pending = |aws: &Aws| aws.group("web").expect("it").in_state(LifecycleState::Pending).len();
    bench.until("three are pending", |aws| pending(aws) == 3).await;
    bench.settled("web", 3).await;
    assert_eq!(bench.clock.now().duration_since(start).as_secs(), 22, "launch and boot");
}

#[tokio::test(start_paused = true)]
async fn desired_capacity_outside_of_min_and_max_is_refused() {
    let bench = bench();
    bench.aws.add_group(web().size(1, 10, 2));
    let above = "New SetDesiredCapacity value 11 is above max value 10 for the AutoScalingGroup.";
    assert_eq!(set(&bench, 11).await, validation(above));
    let below = "New SetDesiredCapacity value 0 is below min value 1 for the AutoScalingGroup.";
    assert_eq!(set(&bench, 0).await, validation(below));
    assert_eq!(bench.desired("web"), 2);
    assert_eq!(bench.happened(|e| matches!(e, Event::DesiredChanged { .. })), 0);
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_blocks_only_calls_honouring_it() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 10, 0).cooldown(60));
    set(&bench, 1).await.expect("in range");
    bench.settled("web", 1).await;
    let honouring = || {
        let call = bench.asg.set_desired_capacity().auto_scaling_group_name("web");
        call.desired_capacity(2).honor_cooldown(true).send()
    };
    assert_eq!(refusal(&honouring().await.expect_err("cooling down")).0, "ScalingActivityInProgress");
    bench.pass(60).await;
    honouring().await.expect("cooled down");
}

#[tokio::test(start_paused = true)]
async fn a_termination_with_decrement_brings_no_replacement() {
    let bench = bench();
    bench.aws.add_group(web());
    let [gone, stays] = <[String; 2]>::try_from(bench.in_service("web")).expect("two");
    terminate(&bench, &gone, true).await.expect("above min");
    assert_eq!(bench.state(&gone), LifecycleState::Terminating);
    bench.settled("web", 1).await;
    assert_eq!((bench.in_service("web"), bench.desired("web")), (vec![stays], 1));
    assert_eq!(bench.state(&gone), LifecycleState::Terminated);
}

#[tokio::test(start_paused = true)]
async fn a_termination_without_decrement_brings_a_replacement() {
    let bench = bench();
    bench.aws.add_group(web().size(2, 2, 2));
    let gone = bench.in_service("web").remove(0);
    terminate(&bench, &gone, false).await.expect("always allowed");
    bench.settled("web", 2).await;
    assert_eq!(bench.desired("web"), 2);
    assert!(!bench.in_service("web").contains(&gone));
}

#[tokio::test(start_paused = true)]
async fn a_decrement_below_min_is_refused_in_the_words_of_aws() {
    let bench = bench();
    bench.aws.add_group(web().size(2, 10, 2));
    let id = bench.in_service("web").remove(0);
    let text = "Currently, desiredSize equals minSize (2). Terminating instance without replacement will violate \
                group's min size constraint. Either set shouldDecrementDesiredCapacity flag to false or lower \
                group's min size.";
    assert_eq!(terminate(&bench, &id, true).await, validation(text));
    assert_eq!(bench.state(&id), LifecycleState::InService);
    let text = "Instance Id not found - No managed instance found for instance ID: i-1";
    assert_eq!(terminate(&bench, "i-1", true).await, validation(text));
}

#[tokio::test(start_paused = true)]
async fn instances_with_weights_fill_units_and_take_theirs_along() {
    let bench = bench();
    let types = MixedSpec::weighing([("m5.xlarge", 4), ("m5.large", 3)]);
    bench.aws.add_group(web().size(3, 20, 9).mixed(types));
    let answer = bench.asg.describe_auto_scaling_groups().send().await.expect("described");
    let group = &answer.auto_scaling_groups()[0];
    let weights: Vec<_> = group.instances().iter().filter_map(|i| i.weighted_capacity()).collect();
    assert_eq!(weights, ["4", "4", "4"], "4 + 4 + as little as does");
    let launch = group.mixed_instances_policy().and_then(|policy| policy.launch_template());
    let weights: Vec<_> =
        launch.expect("one").overrides().iter().filter_map(|o| o.weighted_capacity()).collect();
    assert_eq!(weights, ["4", "3"]);

    // Three units are too many, but without any one instance there would be too few.
    bench.pass(600).await;
    assert_eq!((bench.desired("web"), bench.in_service("web").len()), (9, 3));
    let id = bench.in_service("web").remove(0);
    terminate(&bench, &id, true).await.expect("above min");
    bench.settled("web", 2).await;
    bench.pass(600).await;
    assert_eq!((bench.desired("web"), bench.in_service("web").len()), (5, 2), "and it stays so");
    let id = bench.in_service("web").remove(0);
    assert!(terminate(&bench, &id, true).await.is_err(), "one unit would be left");
    set(&bench, 4).await.expect("in range");
    // Units are lowered, and a node goes.
    bench.settled("web", 1).await;
}

#[tokio::test(start_paused = true)]
async fn terminating_twice_with_decrement_costs_a_healthy_instance() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 10, 3).hook(HookSpec::terminating("ebbtide")));
    let id = bench.in_service("web").remove(0);
    terminate(&bench, &id, true).await.expect("above min");
    terminate(&bench, &id, true).await.expect("not refused");
    assert_eq!((bench.desired("web"), bench.in_service("web").len()), (1, 1));
    assert_eq!(bench.ids("web", LifecycleState::TerminatingWait).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_fullest_zone_loses_first_and_there_the_oldest_template() {
    let bench = bench();
    bench.aws.add_template(TemplateSpec::named("shared").version(TemplateData::of("m5.large")));
    let spec = web().size(0, 10, 4).zones(["us-east-1a", "us-east-1b", "us-east-1c"]);
    bench.aws.add_group(spec.launch_template("shared", "$Latest"));
    let zones = |bench: &Bench| {
        let group = bench.aws.group("web").expect("the group");
        let in_zone = |zone: &str| group.instances.iter().filter(|i| i.zone.ends_with(zone)).count();
        (in_zone("1a"), in_zone("1b"), in_zone("1c"))
    };
    assert_eq!(zones(&bench), (2, 1, 1));
    bench.aws.add_template_version("shared", TemplateData::of("m5.xlarge"));
    set(&bench, 5).await.expect("in range");
    set(&bench, 6).await.expect("in range");
    bench.settled("web", 6).await;
    assert_eq!(zones(&bench), (2, 2, 2));
    set(&bench, 3).await.expect("in range");
    bench.settled("web", 3).await;
    assert_eq!(zones(&bench), (1, 1, 1));
    let group = bench.aws.group("web").expect("the group");
    let newer = group.instances.iter().filter(|i| i.instance_type == "m5.xlarge").count();
    assert_eq!(newer, 2, "the newer of two in a zone stays");
}

#[tokio::test(start_paused = true)]
async fn protected_and_standby_instances_are_never_chosen() {
    let bench = bench();
    bench.aws.add_group(web().size(0, 10, 3));
    let ids = bench.in_service("web");
    let protect = |ids: Vec<String>, on: bool| {
        let call = bench.asg.set_instance_protection().auto_scaling_group_name("web");
        call.set_instance_ids(Some(ids)).protected_from_scale_in(on).send()
    };
    protect(ids[..2].to_vec(), true).await.expect("in service");
    let standby = bench.aws.add_instance("web", LifecycleState::Standby).expect("an instance");
    set(&bench, 0).await.expect("in range");
    bench.pass(3600).await;
    assert_eq!(bench.in_service("web"), ids[..2]);
    assert_eq!(bench.state(&standby), LifecycleState::Standby);
    let activities = bench.asg.describe_scaling_activities().send().await.expect("activities");
    let said = activities.activities().iter().any(|a| {
        a.description()
            .is_some_and(|text| text.starts_with("Could not scale to desired capacity because all"))
    });
    assert!(said, "the group says why it keeps them");

    protect(ids[..1].to_vec(), false).await.expect("in service");
    assert_eq!(bench.in_service("web"), ids[1..2]);
    let error = protect(ids[..1].to_vec(), true).await.expect_err("on its way out");
    let text = format!("The instance {} is not in InService or EnteringStandby or Standby.", ids[0]);
    assert_eq!(refusal(&error), ("ValidationError".to_owned(), text));
    let error = protect(vec![ids[1].clone(), "i-1".to_owned()], false).await.expect_err("unknown");
    assert_eq!(refusal(&error).1, "The instance i-1 is not part of Auto Scaling group web.");
    assert!(bench.aws.instance(&ids[1]).expect("the instance").protected, "all or none");
}

#[tokio::test(start_paused = true)]
async fn suspended_processes_neither_launch_nor_choose() {
    let bench = bench();
    bench.aws.add_group(web());
    let suspend = |process: &'static str| {
        bench.asg.suspend_processes().auto_scaling_group_name("web").scaling_processes(process).send()
    };
    suspend("Launch").await.expect("suspended");
    set(&bench, 3).await.expect("in range");
    bench.pass(600).await;
    assert_eq!(bench.in_service("web").len(), 2);
    bench.asg.resume_processes().auto_scaling_group_name("web").send().await.expect("all resumed");
    bench.settled("web", 3).await;
    suspend("Terminate").await.expect("suspended");
    set(&bench, 1).await.expect("in range");
    bench.pass(600).await;
    assert_eq!(bench.in_service("web").len(), 3);
    let resume = bench.asg.resume_processes().auto_scaling_group_name("web").scaling_processes("Terminate");
    resume.send().await.expect("resumed");
    bench.settled("web", 1).await;
    let error = suspend("Nonsense").await.expect_err("no such process");
    assert_eq!(refusal(&error).0, "ValidationError");
}

#[tokio::test(start_paused = true)]
async fn new_limits_move_desired_capacity_as_far_as_they_must() {
    let bench = bench();
    bench.aws.add_group(web());
    let update = || bench.asg.update_auto_scaling_group().auto_scaling_group_name("web");
    update().min_size(4).send().await.expect("updated");
    assert_eq!(bench.desired("web"), 4);
    update().min_size(0).max_size(1).send().await.expect("updated");
    assert_eq!(bench.desired("web"), 1);
    let error = update().desired_capacity(2).send().await.expect_err("above max");
    assert_eq!(
        refusal(&error).1,
        "Desired capacity:2 must be between the specified min size:0 and max size:1"
    );
    update().max_size(5).desired_capacity(2).send().await.expect("updated");
    assert_eq!(bench.desired("web"), 2);
}
