//! What the caller may do: IAM policies, held against the resources and tags of each request.
//!
//! Without policies the caller may do anything. Of the language only what `deploy/aws/iam` uses is known; anything else is
//! no policy, so that no condition is passed over in silence. A resource that is not there has no tags.
//!
//! <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_evaluation-logic.html>

use std::collections::BTreeMap;

use serde_json::Value;

use super::operation::{Operation, Service};
use super::query::Form;
use super::state::{ACCOUNT, REGION, State};

/// Prefix of the condition keys with the tags of the resource.
const RESOURCE_TAG: &str = "aws:ResourceTag/";

/// Condition key with the keys of the tags in the request.
const TAG_KEYS: &str = "aws:TagKeys";

/// Statements that allow something.
#[derive(Debug)]
pub(super) struct Permissions(Vec<Statement>);

#[derive(Debug)]
struct Statement {
    actions: Vec<String>,
    resource: String,
    tests: Vec<Test>,
}

/// A condition: operator, key, and the values that it names.
#[derive(Debug)]
struct Test {
    operator: Operator,
    key: String,
    values: Vec<String>,
}

/// <https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_elements_condition_operators.html>
#[derive(Clone, Copy, Debug)]
enum Operator {
    /// The key is not there.
    Null,
    /// It is there, with one of the values.
    StringEquals,
    /// All values of the key are among these, or it has none.
    ForAllValuesStringEquals,
}

/// A resource that a request is about: its ARN, and the condition keys with what they have.
struct Target {
    arn: String,
    keys: BTreeMap<String, Vec<String>>,
}

impl Permissions {
    /// Reads policies as they are given to IAM; the error says what is not known here.
    pub(super) fn read<'a>(policies: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut statements = Vec::new();
        for policy in policies {
            let policy: Value = serde_json::from_str(policy).map_err(|error| error.to_string())?;
            for statement in policy["Statement"].as_array().into_iter().flatten() {
                statements.push(Statement::read(statement)?);
            }
        }
        Ok(Self(statements))
    }

    fn allow(&self, action: &str, target: &Target) -> bool {
        self.0.iter().any(|statement| {
            statement.actions.iter().any(|allowed| allowed == action)
                && matches(&statement.resource, &target.arn)
                && statement.tests.iter().all(|test| test.holds(target))
        })
    }
}

impl Statement {
    fn read(statement: &Value) -> Result<Self, String> {
        let known = ["Sid", "Effect", "Action", "Resource", "Condition"];
        let fields = statement.as_object().ok_or("a statement is an object")?;
        if let Some(field) = fields.keys().find(|field| !known.contains(&field.as_str())) {
            return Err(format!("{field} is not known here"));
        }
        if statement["Effect"] != "Allow" {
            return Err(format!("the effect {} is not known here", statement["Effect"]));
        }
        let mut tests = Vec::new();
        for (operator, keys) in statement["Condition"].as_object().into_iter().flatten() {
            let operator = match operator.as_str() {
                "Null" => Operator::Null,
                "StringEquals" => Operator::StringEquals,
                "ForAllValues:StringEquals" => Operator::ForAllValuesStringEquals,
                other => return Err(format!("the operator {other} is not known here")),
            };
            for (key, values) in keys.as_object().into_iter().flatten() {
                tests.push(Test { operator, key: key.clone(), values: texts(values) });
            }
        }
        let [resource] = &texts(&statement["Resource"])[..] else {
            return Err("one resource a statement is known here".to_owned());
        };
        Ok(Self { actions: texts(&statement["Action"]), resource: resource.clone(), tests })
    }
}

impl Test {
    fn holds(&self, target: &Target) -> bool {
        let found = target.keys.get(&self.key);
        let is_named = |value: &String| self.values.contains(value);
        match self.operator {
            Operator::Null => self.values.iter().all(|absent| (absent == "true") == found.is_none()),
            Operator::StringEquals => found.is_some_and(|found| found.iter().any(is_named)),
            Operator::ForAllValuesStringEquals => found.into_iter().flatten().all(is_named),
        }
    }
}

/// One text, or a list of them.
fn texts(value: &Value) -> Vec<String> {
    let one = value.as_str().map(str::to_owned).into_iter();
    one.chain(value.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)))
        .collect()
}

/// Whether `text` is as `pattern` says, in which `*` stands for anything.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((start, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(text) = text.strip_prefix(start) else { return false };
    (0..=text.len()).any(|at| text.get(at..).is_some_and(|text| matches(rest, text)))
}

impl State {
    /// Whether the caller's policies allow a request, on each resource that it is about.
    pub(super) fn permits(&self, service: Service, operation: Operation, form: &Form) -> bool {
        let Some(permissions) = &self.permissions else { return true };
        let action = operation.action(service);
        self.targets(service, operation, form).iter().all(|target| permissions.allow(&action, target))
    }

    /// What a request is about. What only describes has no resource in IAM.
    ///
    /// <https://docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2autoscaling.html> and its likes
    fn targets(&self, service: Service, operation: Operation, form: &Form) -> Vec<Target> {
        let anything = || vec![Target { arn: "*".to_owned(), keys: BTreeMap::new() }];
        let name = operation.name();
        match service {
            Service::Sqs => {
                let queue = form.get("QueueUrl").and_then(|url| url.rsplit('/').next()).unwrap_or_default();
                vec![Target { arn: format!("arn:aws:sqs:{REGION}:{ACCOUNT}:{queue}"), keys: BTreeMap::new() }]
            }
            _ if name.starts_with("Describe") || name.starts_with("Get") => anything(),
            Service::AutoScaling => vec![self.group_target(form)],
            Service::Ec2 => {
                let tags: Vec<String> = form
                    .structures("Tag")
                    .iter()
                    .filter_map(|tag| tag.get("Key").map(str::to_owned))
                    .collect();
                let keys: BTreeMap<_, _> =
                    (!tags.is_empty()).then(|| (TAG_KEYS.to_owned(), tags)).into_iter().collect();
                let arn = |id: &str| format!("arn:aws:ec2:{REGION}:{ACCOUNT}:instance/{id}");
                let ids = form.list("ResourceId").into_iter();
                ids.map(|id| Target { arn: arn(id), keys: keys.clone() }).collect()
            }
            Service::Eks | Service::LoadBalancing | Service::Pricing => anything(),
        }
    }

    /// The group that a request names, or that has the instance that it names.
    fn group_target(&self, form: &Form) -> Target {
        let by_instance = || {
            let id = form.get("InstanceId")?;
            self.groups
                .values()
                .find(|group| group.instances.contains_key(id))
                .map(|group| group.name.as_str())
        };
        let name = form.get("AutoScalingGroupName").or_else(by_instance).unwrap_or_default();
        let tags = self.groups.get(name).into_iter().flat_map(|group| &group.tags);
        Target {
            arn: format!(
                "arn:aws:autoscaling:{REGION}:{ACCOUNT}:autoScalingGroup:*:autoScalingGroupName/{name}"
            ),
            keys: tags
                .map(|(key, (value, _))| (format!("{RESOURCE_TAG}{key}"), vec![value.clone()]))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        assert!(matches("*", "") && matches("*", "*"));
        assert!(matches("arn:*:sqs:*:*:ebbtide*", "arn:aws:sqs:us-east-1:1:ebbtide-prod"));
        assert!(!matches("arn:*:sqs:*:*:ebbtide*", "arn:aws:sqs:us-east-1:1:other"));
        assert!(!matches("a*b", "abc"));
    }

    #[test]
    fn what_is_not_known_is_no_policy() {
        for statement in [
            r#"{"Effect": "Deny", "Action": "a:B", "Resource": "*"}"#,
            r#"{"Effect": "Allow", "NotAction": "a:B", "Resource": "*"}"#,
            r#"{"Effect": "Allow", "Action": "a:B", "Resource": "*", "Condition": {"Bool": {"a": "true"}}}"#,
            r#"{"Effect": "Allow", "Action": "a:B"}"#,
        ] {
            let policy = format!(r#"{{"Statement": [{statement}]}}"#);
            assert!(Permissions::read([policy.as_str()]).is_err(), "{statement}");
        }
    }
}
