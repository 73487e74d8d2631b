//! Target groups, and who is in them.

use super::*;
use crate::aws::{Aws as Adapter, TargetGroup};

fn adapter(bench: &Bench) -> Adapter {
    Adapter::at(aws_client(Arc::new(bench.aws.clone())))
}

async fn targets(adapter: &Adapter, group: &TargetGroup) -> Vec<String> {
    let targets = adapter.targets(group).await.expect("answered");
    targets.iter().map(ToString::to_string).collect()
}

#[tokio::test(start_paused = true)]
async fn connections_through_a_target_live_for_the_delay_after_it_is_deregistered() {
    let bench = bench();
    bench.aws.add_group(GroupSpec::named("web").size(0, 9, 2).already_running());
    let arn = bench.aws.add_target_group(TargetGroupSpec::named("k8s-web").delay(60));
    bench.aws.add_target_group(TargetGroupSpec::named("pods").of_pods());
    let (adapter, ids) = (adapter(&bench), bench.in_service("web"));
    for id in &ids {
        bench.aws.balance(id, true);
    }
    let groups = adapter.instance_target_groups().await.expect("answered");
    assert_eq!(groups, [TargetGroup { arn, name: "k8s-web".into() }], "of instances");
    let delay = adapter.deregistration_delay(&groups[0]).await.expect("answered");
    assert_eq!(delay, Some(Duration::from_mins(1)));
    assert_eq!(targets(&adapter, &groups[0]).await, ids);
    bench.aws.balance(&ids[0], false);
    tokio::time::sleep(Duration::from_secs(59)).await;
    assert_eq!(targets(&adapter, &groups[0]).await, ids, "it drains");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(targets(&adapter, &groups[0]).await, ids[1..]);
    let gone = TargetGroup { arn: format!("{}x", groups[0].arn), name: "gone".into() };
    assert_eq!(targets(&adapter, &gone).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_target_groups_of_a_group_let_go_of_what_it_ends() {
    let bench = bench();
    let hook = HookSpec::terminating("ebbtide").heartbeat(600);
    let group = GroupSpec::named("web").size(0, 9, 2).hook(hook).deregistering_for(60);
    bench.aws.add_group(group.already_running());
    let arn = bench.aws.add_target_group(TargetGroupSpec::named("own").attached_to("web"));
    let (adapter, ids) = (adapter(&bench), bench.in_service("web"));
    let described = adapter.describe_groups(&["web".into()]).await.expect("answered");
    assert_eq!(described[0].target_groups, [arn.clone()].into());
    let own = TargetGroup { arn, name: "own".into() };
    assert_eq!(targets(&adapter, &own).await, ids);
    bench.aws.terminate(&ids[0], TerminationCause::Rebalance);
    assert!(targets(&adapter, &own).await.contains(&ids[0]), "it drains");
    bench
        .until("a hold", |aws| {
            aws.instance(&ids[0]).is_some_and(|i| i.state == LifecycleState::TerminatingWait)
        })
        .await;
    assert!(!targets(&adapter, &own).await.contains(&ids[0]));
}
