//! What the program needs the right to do at AWS.

use std::collections::BTreeSet;

use ebbtide::config::{Config, PriceSource};
use ebbtide::sim::aws::{
    Event, GroupSpec, LaunchConfigurationSpec, LaunchFailure, NodeGroupSpec, Outcome, QueueSpec,
    Requirements, TargetGroupSpec, TemplateData, TerminationCause, WarmPoolSpec,
};
use ebbtide::sim::cluster::{Fault, Verb, pod};
use ebbtide::sim::program::TAG;
use ebbtide::sim::world::World;
use serde_json::Value;

use crate::check::checked_with;
use crate::managed_hooks::managed;
use crate::scene::{Cause, Machine, Scene, group, seconds};

/// All policies that are shipped.
const POLICIES: [&str; 8] = [
    include_str!("../../deploy/aws/iam/hooks.json"),
    include_str!("../../deploy/aws/iam/load-balancers.json"),
    include_str!("../../deploy/aws/iam/manage-hooks.json"),
    include_str!("../../deploy/aws/iam/prices.json"),
    include_str!("../../deploy/aws/iam/queue.json"),
    include_str!("../../deploy/aws/iam/read.json"),
    include_str!("../../deploy/aws/iam/retention.json"),
    include_str!("../../deploy/aws/iam/size.json"),
];

/// AWS's codes for a call that no policy allows.
const DENIED: [&str; 3] = ["AccessDenied", "AccessDeniedException", "UnauthorizedOperation"];

/// The operations that the policies allow, by AWS's names.
fn allowed() -> BTreeSet<String> {
    let mut allowed = BTreeSet::new();
    for policy in POLICIES {
        let policy: Value = serde_json::from_str(policy).expect("JSON");
        for statement in policy["Statement"].as_array().expect("statements") {
            for action in statement["Action"].as_array().expect("actions") {
                let (_, operation) =
                    action.as_str().and_then(|action| action.split_once(':')).expect("an action");
                allowed.insert(operation.to_owned());
            }
        }
    }
    allowed
}

/// The operations that were called, and the calls that were denied.
fn called(world: &World) -> (BTreeSet<String>, Vec<String>) {
    let (mut called, mut denied) = (BTreeSet::new(), Vec::new());
    for entry in world.aws.journal() {
        if let Event::Called { operation, arguments, outcome } = entry.what {
            // A batch of SQS has the action of a single one.
            called.insert(operation.name().trim_end_matches("Batch").to_owned());
            if matches!(outcome, Outcome::Refused(code) if DENIED.contains(&code)) {
                denied.push(format!("{operation} {arguments:?}"));
            }
        }
    }
    (called, denied)
}

/// A group at zero, tagged for the program.
fn at_zero(name: &str) -> GroupSpec {
    GroupSpec::named(name).size(0, 2, 0).tag(TAG, "true")
}

/// One group of each kind that there is something to look up for, and one of somebody else's.
fn groups() -> [GroupSpec; 5] {
    let wanted = TemplateData::meeting(Requirements::at_least(4, 8192));
    [
        at_zero("configuration").launch_configuration("old"),
        at_zero("attributes").template_data(wanted),
        at_zero("managed")
            .template("m5.large")
            .tag("eks:cluster-name", "prod")
            .tag("eks:nodegroup-name", "managed"),
        at_zero("pooled").template("m5.large").warm_pool(WarmPoolSpec::stopped().reusing()),
        GroupSpec::named("others").size(0, 2, 0).template("m5.large"),
    ]
}

#[tokio::test(start_paused = true)]
async fn the_program_calls_all_that_its_policies_allow_and_nothing_else() {
    let world = World::new(1);
    world.aws.permit(POLICIES);
    let queue = world.aws.add_queue(QueueSpec::named("ebbtide-prod"));
    world.aws.send_events_to(&queue);
    world.aws.add_launch_configuration(LaunchConfigurationSpec::named("old", "t3.medium"));
    world.aws.add_node_group(NodeGroupSpec::named("managed").cluster("prod"));
    for group in groups() {
        world.aws.add_group(group);
    }
    world.aws.add_target_group(TargetGroupSpec::named("k8s-web").delay(60));
    let prices = Some(PriceSource::Aws);
    let mut config = Config { queue_urls: vec![queue], prices, ..managed(true) };
    config.scale_in.wait_for_load_balancers = true;
    let scene = Scene::on(world, group(4), config.clone()).await;
    let web = scene.world.aws.group("web").expect("the group");
    let is_webs = |machine: &Machine| web.instances.iter().any(|instance| instance.id == machine.instance);
    let machines: Vec<_> = scene.machines().into_iter().filter(is_webs).collect();
    let [first, second, third, _] = &machines[..] else { panic!("{machines:?}") };
    // The hook and the policy are put before anything leaves.
    scene.pass_some(seconds(120)).await;
    // One that cannot be launched is asked for and given up.
    scene.world.aws.fail_launches("web", LaunchFailure::InsufficientCapacity, u32::MAX);
    scene.increase(1).await.expect("grown");
    scene.pass_some(seconds(120)).await;
    let never =
        scene.listed().await.into_iter().find(|id| id.contains("placeholder")).expect("a placeholder");
    scene.delete(&[Machine::that_never_came(&never)]).await.expect("given up");
    // One that the group takes out, for longer than half its hook's time-out.
    scene.run([pod("slow").on(first.name.as_str()).grace(600).exits_after(400)]).await;
    scene.scale_in(first, Cause::Group).await;
    scene.until_gone(first).await;
    // One that cluster-autoscaler wants gone, and one whose capacity ends.
    scene.scale_in(second, Cause::Autoscaler).await;
    scene.until_gone(second).await;
    scene.world.aws.reserve(&third.instance, "cr-0123456789abcdef0");
    // Its record cannot be written for a while: the notice is kept hidden meanwhile.
    scene.world.cluster.fail_next(30, Verb::Patch, "nodes", Fault::RequestLost);
    scene.world.aws.end_capacity_block("cr-0123456789abcdef0");
    scene.until_gone(third).await;
    // An end that is none of its business.
    scene.world.aws.set_desired("others", 1);
    scene.pass_some(seconds(300)).await;
    let others = scene.world.aws.group("others").expect("the group").instances[0].id.clone();
    scene.world.aws.terminate(&others, TerminationCause::Rebalance);
    scene.pass_some(seconds(600)).await;
    // Some reads are for people who check.
    checked_with(&scene, &config).await;
    let (called, denied) = called(&scene.world);
    assert_eq!(denied, [""; 0]);
    assert_eq!(called, allowed());
}
