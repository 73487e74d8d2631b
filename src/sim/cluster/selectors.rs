//! Label and field selectors, in query strings and in objects.
//!
//! <https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/#label-selectors>: `!=` and `notin` hold
//! for an object without the label too.

use serde_json::Value;

use super::object::{Object, list, map, text};
use super::resources::{Resource, Shape};
use super::route::Call;
use super::status::Failure;

/// The conditions that a list, a watch or a budget puts on objects.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    labels: Vec<Requirement>,
    fields: Vec<FieldTest>,
    nothing: bool,
}

#[derive(Clone, Debug)]
struct Requirement {
    key: String,
    holds: Holds,
}

#[derive(Clone, Debug)]
enum Holds {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    DoesNotExist,
}

#[derive(Clone, Debug)]
struct FieldTest {
    field: String,
    value: String,
    equal: bool,
}

impl Selector {
    /// Reads `labelSelector` and `fieldSelector` of a request.
    pub(super) fn of_query(
        resource: Resource,
        shape: Shape,
        labels: Option<&str>,
        fields: Option<&str>,
    ) -> Result<Self, Failure> {
        let labels = parse_labels(labels.unwrap_or_default())?;
        let fields = parse_fields(resource, shape, fields.unwrap_or_default())?;
        Ok(Self { labels, fields, nothing: false })
    }

    /// Reads a `LabelSelector`: an absent one selects nothing, an empty one everything (policy/v1 and apps/v1).
    pub(super) fn of_object(selector: Option<&Value>) -> Self {
        let Some(selector) = selector.filter(|selector| !selector.is_null()) else {
            return Self { nothing: true, ..Self::default() };
        };
        let equal = map(selector, &["matchLabels"]).into_iter().flatten().map(|(key, value)| Requirement {
            key: key.clone(),
            holds: Holds::In(vec![value.as_str().unwrap_or_default().to_owned()]),
        });
        let expressions = list(selector, &["matchExpressions"]).iter().filter_map(requirement);
        Self { labels: equal.chain(expressions).collect(), ..Self::default() }
    }

    pub(super) fn matches(&self, object: &Object) -> bool {
        !self.nothing
            && self.fields.iter().all(|test| (field(object, &test.field) == test.value) == test.equal)
            && self.labels.iter().all(|required| required.holds(object.label(&required.key)))
    }

    /// A label that all have that it selects, if it names one.
    pub(super) fn label(&self) -> Option<(&str, &str)> {
        self.labels.iter().find_map(|required| match &required.holds {
            Holds::In(values) if values.len() == 1 => Some((required.key.as_str(), values[0].as_str())),
            _ => None,
        })
    }

    /// The node whose pods it selects, if it names one.
    pub(super) fn node(&self) -> Option<&str> {
        let test = self.fields.iter().find(|test| test.field == "spec.nodeName" && test.equal)?;
        Some(&test.value).filter(|node| !node.is_empty()).map(String::as_str)
    }
}

impl Requirement {
    fn holds(&self, value: Option<&str>) -> bool {
        let among = |values: &[String]| value.is_some_and(|value| values.iter().any(|one| one == value));
        match &self.holds {
            Holds::In(values) => among(values),
            Holds::NotIn(values) => !among(values),
            Holds::Exists => value.is_some(),
            Holds::DoesNotExist => value.is_none(),
        }
    }
}

/// What a list or a watch asks for.
pub(super) struct Selection {
    namespace: Option<String>,
    name: Option<String>,
    selector: Selector,
}

impl Selection {
    pub(super) fn of_call(call: &Call<'_>) -> Result<Self, Failure> {
        let (labels, fields) = (call.param("labelSelector"), call.param("fieldSelector"));
        let selector = Selector::of_query(call.resource, call.address, labels, fields)?;
        Ok(Self { namespace: call.namespace.clone(), name: call.name.clone(), selector })
    }

    pub(super) fn selects(&self, object: &Object) -> bool {
        self.namespace.as_ref().is_none_or(|namespace| *namespace == object.name.namespace)
            && self.name.as_ref().is_none_or(|name| *name == object.name.name)
            && self.selector.matches(object)
    }

    /// The one node on which selected pods are, if the selector says so.
    pub(super) fn node(&self) -> Option<&str> {
        self.selector.node()
    }
}

/// Whether one `matchExpressions` entry (of a LabelSelector or a node selector term) holds for `value`.
pub(super) fn expression_holds(expression: &Value, value: Option<&str>) -> bool {
    requirement(expression).is_some_and(|required| required.holds(value))
}

fn requirement(expression: &Value) -> Option<Requirement> {
    let values = || {
        let values = list(expression, &["values"]).iter();
        values.filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let holds = match text(expression, &["operator"])? {
        "In" => Holds::In(values()),
        "NotIn" => Holds::NotIn(values()),
        "Exists" => Holds::Exists,
        "DoesNotExist" => Holds::DoesNotExist,
        _ => return None,
    };
    Some(Requirement { key: text(expression, &["key"])?.to_owned(), holds })
}

fn parse_labels(selector: &str) -> Result<Vec<Requirement>, Failure> {
    split_terms(selector).into_iter().map(parse_label_term).collect()
}

/// Splits at the commas that are not inside parentheses.
fn split_terms(selector: &str) -> Vec<&str> {
    let mut depth = 0_i32;
    let terms = selector.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    terms.map(str::trim).filter(|term| !term.is_empty()).collect()
}

fn parse_label_term(term: &str) -> Result<Requirement, Failure> {
    let single = |key: &str, value: &str| (key.trim().to_owned(), vec![value.trim().to_owned()]);
    let (key, holds) = if let Some((key, values)) = term.split_once('(') {
        let values = values.trim_end_matches(')').split(',').map(|value| value.trim().to_owned()).collect();
        match key.trim().rsplit_once(char::is_whitespace) {
            Some((key, "in")) => (key.trim().to_owned(), Holds::In(values)),
            Some((key, "notin")) => (key.trim().to_owned(), Holds::NotIn(values)),
            _ => return Err(unparsable(term)),
        }
    } else if let Some((key, value)) = term.split_once("!=") {
        let (key, values) = single(key, value);
        (key, Holds::NotIn(values))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        let (key, values) = single(key, value);
        (key, Holds::In(values))
    } else if let Some(key) = term.strip_prefix('!') {
        (key.trim().to_owned(), Holds::DoesNotExist)
    } else {
        (term.to_owned(), Holds::Exists)
    };
    if key.is_empty() || key.contains(char::is_whitespace) {
        return Err(unparsable(term));
    }
    Ok(Requirement { key, holds })
}

fn unparsable(term: &str) -> Failure {
    Failure::bad_request(format!("unable to parse requirement: {term}"))
}

fn parse_fields(resource: Resource, shape: Shape, selector: &str) -> Result<Vec<FieldTest>, Failure> {
    let parse = |term: &str| {
        let (field, value, equal) = if let Some((field, value)) = term.split_once("!=") {
            (field, value, false)
        } else if let Some((field, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (field, value, true)
        } else {
            return Err(Failure::bad_request(format!(
                "invalid selector: '{selector}'; can't understand '{term}'"
            )));
        };
        let field = stored_field(resource, shape, field.trim())
            .ok_or_else(|| Failure::bad_request(format!("field label not supported: {field}")))?;
        Ok(FieldTest { field, value: value.trim().to_owned(), equal })
    };
    selector.split(',').map(str::trim).filter(|term| !term.is_empty()).map(parse).collect()
}

/// Path in the stored object of a field label that the resource supports.
fn stored_field(resource: Resource, shape: Shape, field: &str) -> Option<String> {
    if resource == Resource::Events {
        let prefix = if shape == Shape::CoreEvent { "involvedObject." } else { "regarding." };
        if let Some(rest) = field.strip_prefix(prefix) {
            return Some(format!("regarding.{rest}"));
        }
    }
    let supported = match resource {
        Resource::Pods => {
            matches!(field, "spec.nodeName" | "spec.schedulerName" | "spec.restartPolicy" | "status.phase")
        }
        Resource::Nodes => field == "spec.unschedulable",
        Resource::Events => matches!(field, "reason" | "type" | "reportingController"),
        _ => false,
    } || field == "metadata.name"
        || (field == "metadata.namespace" && resource.facts().namespaced);
    supported.then(|| field.to_owned())
}

fn field<'a>(object: &'a Object, field: &str) -> &'a str {
    match field {
        "metadata.name" => &object.name.name,
        "metadata.namespace" => &object.name.namespace,
        "spec.nodeName" => object.pod().node.as_deref().unwrap_or_default(),
        "spec.unschedulable" => {
            let unschedulable = object.value["spec"]["unschedulable"] == Value::Bool(true);
            if unschedulable { "true" } else { "false" }
        }
        path => {
            let path: Vec<&str> = path.split('.').collect();
            text(&object.value, &path).unwrap_or_default()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn selects(selector: &str, labels: &Value) -> bool {
        let value = json!({ "metadata": { "name": "x", "labels": labels } });
        let object = Object::new(Resource::Pods, 1, value);
        Selector::of_query(Resource::Pods, Shape::Full, Some(selector), None).unwrap().matches(&object)
    }

    #[test]
    fn every_kind_of_label_term_is_understood() {
        let labels = json!({ "app": "web", "tier": "front" });
        for selector in
            ["app=web", "app==web,tier", "app in (api, web)", "app notin (api),!gone", "gone!=x", "app!=api"]
        {
            assert!(selects(selector, &labels), "{selector}");
        }
        for selector in ["app=api", "!app", "gone", "app in (api)", "app notin (web)", "tier!=front"] {
            assert!(!selects(selector, &labels), "{selector}");
        }
    }

    #[test]
    fn a_field_the_resource_does_not_support_is_a_bad_request() {
        let refused = Selector::of_query(Resource::Nodes, Shape::Full, None, Some("spec.nodeName=n1"));
        assert_eq!(refused.unwrap_err().code, 400);
    }

    #[test]
    fn no_selector_object_selects_nothing_and_an_empty_one_everything() {
        let pod = Object::new(Resource::Pods, 1, json!({ "metadata": { "name": "x" } }));
        assert!(!Selector::of_object(None).matches(&pod));
        assert!(Selector::of_object(Some(&json!({}))).matches(&pod));
    }
}
