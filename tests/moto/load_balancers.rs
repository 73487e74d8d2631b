//! Target groups, through the adapter.

use std::time::Duration;

use aws_sdk_elasticloadbalancingv2::types::{
    Action, ActionTypeEnum, LoadBalancerTypeEnum, ProtocolEnum, TargetDescription, TargetGroupAttribute,
    TargetTypeEnum,
};
use ebbtide::aws::TargetGroup;

use crate::account::{Account, From, version};

/// A target group, used by a load balancer or not.
async fn target_group(
    account: &Account,
    name: &str,
    of: TargetTypeEnum,
    balancer: Option<&str>,
) -> TargetGroup {
    let name = account.name(name);
    let create = account.balancing.create_target_group().name(&name).target_type(of);
    let create = create.protocol(ProtocolEnum::Tcp).port(80).vpc_id(&account.vpc);
    let made = create.send().await.expect("a target group");
    let arn = made.target_groups()[0].target_group_arn().expect("its ARN").to_owned();
    if let Some(balancer) = balancer {
        let forward = Action::builder().r#type(ActionTypeEnum::Forward).target_group_arn(&arn).build();
        let port = if name.ends_with("used") { 80 } else { 81 };
        let listen = account.balancing.create_listener().load_balancer_arn(balancer);
        let listen = listen.protocol(ProtocolEnum::Tcp).port(port).default_actions(forward);
        listen.send().await.expect("a listener");
    }
    TargetGroup { arn, name }
}

#[tokio::test]
#[ignore = "needs moto: run tests/moto.sh"]
async fn targets_are_found_whatever_their_port_until_they_are_deregistered() {
    let account = Account::open().await;
    let create = account.balancing.create_load_balancer().name(account.name("nlb"));
    let create = create.r#type(LoadBalancerTypeEnum::Network).subnets(&account.subnet);
    let made = create.send().await.expect("a load balancer");
    let balancer = made.load_balancers()[0].load_balancer_arn().expect("its ARN");
    let used = target_group(&account, "used", TargetTypeEnum::Instance, Some(balancer)).await;
    target_group(&account, "pods", TargetTypeEnum::Ip, Some(balancer)).await;
    target_group(&account, "unused", TargetTypeEnum::Instance, None).await;

    let mut found = account.aws.instance_target_groups().await.expect("answered");
    found.retain(|group| group.name.starts_with(&account.mark));
    assert_eq!(found, std::slice::from_ref(&used));
    let delay = account.aws.deregistration_delay(&used).await.expect("answered");
    assert_eq!(delay, Some(Duration::from_mins(5)));
    let attribute = TargetGroupAttribute::builder().key("deregistration_delay.timeout_seconds").value("45");
    let modify = account.balancing.modify_target_group_attributes().target_group_arn(&used.arn);
    modify.attributes(attribute.build()).send().await.expect("modified");
    let delay = account.aws.deregistration_delay(&used).await.expect("answered");
    assert_eq!(delay, Some(Duration::from_secs(45)));

    let template = account.template("targets", &[("m5.large", 80)]).await;
    let group = account.group("targets", From::Template(version(&template, "1")), 2, &[]).await;
    let ids: Vec<String> = account.truth(&group).await.1.into_iter().map(|(id, _)| id).collect();
    let target = |id: &String| TargetDescription::builder().id(id).port(31_380).build();
    let register = account.balancing.register_targets().target_group_arn(&used.arn);
    register.targets(target(&ids[0])).targets(target(&ids[1])).send().await.expect("registered");
    let targets = account.aws.targets(&used).await.expect("answered");
    assert!(targets.len() == 2 && ids.iter().all(|id| targets.contains(id.as_str())), "{targets:?}");
    let deregister = account.balancing.deregister_targets().target_group_arn(&used.arn);
    deregister.targets(target(&ids[0])).send().await.expect("deregistered");
    let targets = account.aws.targets(&used).await.expect("answered");
    assert!(targets.len() == 1 && targets.contains(ids[1].as_str()), "{targets:?}");

    let gone = TargetGroup { arn: format!("{}0", used.arn), name: String::new() };
    assert!(account.aws.targets(&gone).await.expect("none, and no error").is_empty());
}
