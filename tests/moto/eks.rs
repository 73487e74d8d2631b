//! EKS managed node groups, through the adapter.

use aws_sdk_eks::types::{AmiTypes, CapacityTypes, TaintEffect};
use ebbtide::k8s::Taint;

use crate::account::Account;

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn a_managed_node_group_is_read_with_what_shows_on_its_nodes() {
    let account = Account::open().await;
    let cluster = account.cluster("prod").await;
    account
        .node_group(&cluster, "gpu")
        .labels("team", "ml")
        .taints(
            aws_sdk_eks::types::Taint::builder()
                .key("gpu")
                .value("yes")
                .effect(TaintEffect::NoSchedule)
                .build(),
        )
        .capacity_type(CapacityTypes::Spot)
        .ami_type(AmiTypes::Al2Arm64)
        .disk_size(80)
        .tags("owner", "ml")
        .send()
        .await
        .expect("a node group");
    let found = account.aws.node_group(&cluster, "gpu").await.expect("answers").expect("is there");
    assert_eq!(found.labels["team"], "ml");
    assert_eq!(found.taints, [Taint { key: "gpu".into(), value: "yes".into(), effect: "NoSchedule".into() }]);
    assert_eq!(found.capacity_type.as_deref(), Some("SPOT"));
    assert_eq!((found.is_arm(), found.disk_gib), (Some(true), Some(80)));
    assert_eq!(found.tags["owner"], "ml");
}

#[tokio::test]
#[ignore = "needs moto; see README"]
async fn a_node_group_or_a_cluster_that_is_not_there_is_none() {
    let account = Account::open().await;
    let cluster = account.cluster("prod").await;
    assert_eq!(account.aws.node_group(&cluster, "gone").await.expect("answers"), None);
    assert_eq!(account.aws.node_group("no-such-cluster", "gone").await.expect("answers"), None);
}
