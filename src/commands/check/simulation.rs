//! Whether AWS would allow writes that cannot be tried: EC2 Auto Scaling and SQS have no dry run. IAM can simulate them, with a right
//! that this program does not otherwise need: people who have it are given the command.

use super::facts::Facts;
use super::finding::{Finding, Severity, add};
use crate::aws::Operation;

/// Tells the commands that simulate the writes of this configuration, on one group and on each queue.
pub(super) fn simulation(facts: &Facts, found: &mut Vec<Finding>) {
    let Some(role) = facts.identity.as_deref().and_then(principal) else { return };
    let (of_groups, of_queues): (Vec<Operation>, Vec<Operation>) =
        facts.writes.iter().partition(|operation| operation.action().starts_with("autoscaling:"));
    let mut tell = |subject: &str, resource: &str, operations: &[Operation], context: &str| {
        let resource = quoted(resource);
        let actions: Vec<_> = operations.iter().map(|operation| operation.action()).collect();
        let fix = format!(
            "aws iam simulate-principal-policy --policy-source-arn {role} --resource-arns {resource} --action-names {}{context} \
             --query 'EvaluationResults[].[EvalActionName,EvalDecision]' --output text",
            actions.join(" ")
        );
        let text = "changes were not tried; IAM simulates whether they are allowed";
        add(found, Severity::Note, "iam", subject, text, fix);
    };
    if let Some(group) = facts.groups.first().filter(|_| !of_groups.is_empty()) {
        let tags = group.asg.tags.iter().filter(|(key, _)| is_condition(key));
        let entries: Vec<_> = tags
            .map(|(key, value)| {
                let (name, values) = (format!("aws:ResourceTag/{key}"), value);
                quoted(&format!("ContextKeyName={name},ContextKeyValues={values},ContextKeyType=string"))
            })
            .collect();
        let context = entries.join(" ");
        let context = if context.is_empty() { context } else { format!(" --context-entries {context}") };
        tell(group.asg.name.as_str(), &group.asg.arn, &of_groups, &context);
    }
    for queue in facts.queues.iter().filter(|_| !of_queues.is_empty()) {
        if let Ok(attributes) = &queue.attributes {
            tell(&queue.url, &attributes.arn, &of_queues, "");
        }
    }
}

/// As one word of a shell: names of groups may have quotes in them.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Whether policies tell groups apart by the tag, as those in `deploy/aws` do.
fn is_condition(key: &str) -> bool {
    let is_plain = key.starts_with("k8s.io/cluster-autoscaler/") && !key.contains("/node-template/");
    is_plain || key.starts_with("kubernetes.io/cluster/")
}

/// Whose policies count: of a role's session, those of the role. Its path is in no session's ARN: most roles have none.
///
/// Source: [IAM identifiers](https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_identifiers.html).
fn principal(identity: &str) -> Option<String> {
    let parts: Vec<&str> = identity.splitn(6, ':').collect();
    let [_, partition, service, _, account, name] = parts[..] else { return None };
    match (service, name.split('/').collect::<Vec<_>>().as_slice()) {
        ("sts", ["assumed-role", role, _]) => Some(format!("arn:{partition}:iam::{account}:role/{role}")),
        ("iam", ["user", ..]) => Some(identity.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policies_of_a_session_are_those_of_its_role() {
        for (identity, expected) in [
            (
                "arn:aws:sts::123456789012:assumed-role/ebbtide/1700000000",
                Some("arn:aws:iam::123456789012:role/ebbtide"),
            ),
            ("arn:aws-cn:iam::123456789012:user/a/jo", Some("arn:aws-cn:iam::123456789012:user/a/jo")),
            ("arn:aws:iam::123456789012:root", None),
            ("nonsense", None),
        ] {
            assert_eq!(principal(identity).as_deref(), expected, "{identity}");
        }
    }
}
