//! EKS managed node groups, through the program's own adapter.

use super::*;
use crate::aws::{Aws as Adapter, AwsError};
use crate::k8s::Taint;

fn adapter(bench: &Bench) -> Adapter {
    Adapter::at(aws_client(Arc::new(bench.aws.clone())))
}

#[tokio::test(start_paused = true)]
async fn a_node_group_is_described_whole() {
    let bench = bench();
    let spec = NodeGroupSpec::named("gpu").cluster("prod").label("team", "ml").spot().disk(80);
    let spec = spec.taint("nvidia.com/gpu", "true", "NO_SCHEDULE").ami_type("AL2023_ARM_64_NVIDIA");
    bench.aws.add_node_group(spec.tag("owner", "ml"));
    let found = adapter(&bench).node_group("prod", "gpu").await.expect("answers").expect("is there");
    assert_eq!(found.labels.into_iter().collect::<Vec<_>>(), [("team".to_owned(), "ml".to_owned())]);
    let taint = Taint { key: "nvidia.com/gpu".into(), value: "true".into(), effect: "NoSchedule".into() };
    assert_eq!(found.taints, [taint]);
    assert_eq!(found.capacity_type.as_deref(), Some("SPOT"));
    assert_eq!(found.ami_type.as_deref(), Some("AL2023_ARM_64_NVIDIA"));
    assert_eq!((found.disk_gib, found.tags["owner"].as_str()), (Some(80), "ml"));
    let asked = |what: &Event| match what {
        Event::Called { operation, arguments, outcome } => {
            *operation == Operation::DescribeNodegroup
                && arguments["name"] == "prod"
                && arguments["nodegroupName"] == "gpu"
                && *outcome == Outcome::Answered
        }
        _ => false,
    };
    assert_eq!(bench.happened(asked), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_group_of_another_cluster_is_none() {
    let bench = bench();
    bench.aws.add_node_group(NodeGroupSpec::named("gpu").cluster("prod"));
    assert_eq!(adapter(&bench).node_group("test", "gpu").await.expect("answers"), None);
    assert_eq!(bench.aws.calls(Operation::DescribeNodegroup), 1, "the answer is final");
}

#[tokio::test(start_paused = true)]
async fn faults_have_the_codes_of_eks() {
    let bench = bench();
    bench.aws.add_node_group(NodeGroupSpec::named("gpu"));
    let adapter = adapter(&bench);
    let ask = || adapter.node_group("main", "gpu");
    bench.aws.throttle_next(Operation::DescribeNodegroup, u32::MAX);
    assert!(matches!(ask().await, Err(AwsError::Throttled { .. })));
    bench.aws.throttle_next(Operation::DescribeNodegroup, 0);
    bench.aws.fail_next(Operation::DescribeNodegroup, u32::MAX);
    assert!(matches!(ask().await, Err(AwsError::ServerError { .. })));
    bench.aws.fail_next(Operation::DescribeNodegroup, 0);
    let before = bench.aws.calls(Operation::DescribeNodegroup);
    bench.aws.deny(Operation::DescribeNodegroup, true);
    let denied = ask().await.expect_err("denied").to_string();
    assert!(denied.starts_with("not allowed to call eks:DescribeNodegroup"), "{denied}");
    assert_eq!(bench.aws.calls(Operation::DescribeNodegroup) - before, 1, "a denial is not tried again");
    bench.aws.deny(Operation::DescribeNodegroup, false);
    assert!(ask().await.expect("answers").is_some());
}
