//! The worlds' admission policies answer as those of `deploy/base/admission.yaml` do, whose expressions an interpreter of CEL
//! evaluates here.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use cel::extractors::This;
use cel::{Context, Env, Program};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

use super::super::policies::{EBBTIDE, Rights, User, admit};
use super::super::resources::{Resource, Shape};
use super::super::route::{Call, Verb};

/// A policy as it is shipped.
struct Policy {
    matches: Value,
    conditions: Vec<Program>,
    variables: Vec<(String, Program)>,
    /// With what is said where one does not hold.
    validations: Vec<(Program, String)>,
}

impl Policy {
    fn all(env: &Env) -> Vec<Self> {
        let shipped = include_str!("../../../../deploy/base/admission.yaml");
        let documents =
            shipped.split("\n---\n").map(|text| serde_saphyr::from_str::<Value>(text).expect("YAML"));
        let policies = documents.filter(|document| document["kind"] == "ValidatingAdmissionPolicy");
        policies.map(|policy| Self::read(env, &policy["spec"])).collect()
    }

    fn read(env: &Env, spec: &Value) -> Self {
        let text = |of: &Value, key: &str| of[key].as_str().expect("a text").to_owned();
        let program = |of: &Value| env.compile(&text(of, "expression")).expect("CEL");
        Self {
            matches: spec["matchConstraints"]["resourceRules"].clone(),
            conditions: list(&spec["matchConditions"]).map(program).collect(),
            variables: list(&spec["variables"]).map(|of| (text(of, "name"), program(of))).collect(),
            validations: list(&spec["validations"]).map(|of| (program(of), text(of, "message"))).collect(),
        }
    }

    /// What it says of a change, if it is meant.
    fn admit(&self, env: &Arc<Env>, change: &Change) -> Result<(), String> {
        let names = |rule: &Value, key: &str, name: &str| list(&rule[key]).any(|one| one == name);
        let is_meant = |rule| {
            names(rule, "operations", change.operation()) && names(rule, "resources", &change.address())
        };
        let mut context = change.context(env);
        let holds =
            |context: &Context<'_, '_>, of: &Program| of.execute(context).expect("a value") == true.into();
        if !list(&self.matches).any(is_meant) || !self.conditions.iter().all(|of| holds(&context, of)) {
            return Ok(());
        }
        let mut variables: HashMap<String, cel::Value> = HashMap::new();
        for (name, program) in &self.variables {
            variables.insert(name.clone(), program.execute(&context).expect("a value"));
            context.add_variable_from_value("variables", variables.clone());
        }
        let broken = self.validations.iter().find(|(of, _)| !holds(&context, of));
        broken.map_or(Ok(()), |(_, message)| Err(message.clone()))
    }
}

/// A change that a user asks for; a creation if there was nothing before.
#[derive(Clone, Debug)]
struct Change {
    resource: Resource,
    of_status: bool,
    user: &'static str,
    rights: Rights,
    old: Option<Value>,
    new: Value,
}

impl Change {
    fn operation(&self) -> &'static str {
        if self.old.is_some() { "UPDATE" } else { "CREATE" }
    }

    fn subresource(&self) -> Option<String> {
        self.of_status.then(|| "status".to_owned())
    }

    /// The resource as rules name it.
    fn address(&self) -> String {
        let resource = self.resource.facts().plural;
        self.subresource()
            .map_or_else(|| resource.to_owned(), |subresource| format!("{resource}/{subresource}"))
    }

    /// What the worlds answer.
    fn in_the_worlds(&self) -> Result<(), String> {
        let call = Call {
            verb: if self.old.is_some() { Verb::Update } else { Verb::Create },
            resource: self.resource,
            address: Shape::Full,
            shape: Shape::Full,
            namespace: None,
            name: None,
            subresource: self.subresource(),
            query: BTreeMap::new(),
            content_type: "application/json",
            body: &[],
        };
        let user = User { name: self.user.to_owned(), rights: self.rights };
        admit(&user, &call, self.old.as_ref(), &self.new).map_err(|refused| {
            refused.message.split_once("denied request: ").expect("a policy's refusal").1.to_owned()
        })
    }

    /// What an expression can see of a request.
    fn context(&self, env: &Arc<Env>) -> Context<'static, 'static> {
        let mut context = Context::with_env(Arc::clone(env));
        let mut request = json!({ "userInfo": { "username": self.user } });
        if let Some(subresource) = self.subresource() {
            request["subResource"] = subresource.into();
        }
        context.add_variable("request", request).expect("a value");
        context.add_variable("object", &self.new).expect("a value");
        context.add_variable("oldObject", &self.old).expect("a value");
        context.add_variable_from_value("authorizer", "");
        // A question to the authorizer, put together word by word.
        for word in ["group", "resource", "name", "check"] {
            let more = move |This(question): This<Arc<String>>, value: Arc<String>| {
                format!("{question}{word}={value} ")
            };
            context.add_function(word, more).expect("a new function");
        }
        let name = self.new["metadata"]["name"].as_str().expect("a name");
        let right = format!("group= resource=nodes name={name} check=scale-in ");
        let has_it = self.rights == Rights::ScaleIn;
        let allowed = move |This(question): This<Arc<String>>| has_it && *question == right;
        context.add_function("allowed", allowed).expect("a new function");
        context
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// A field of a Node or pod, and what it is set to.
type Edit = (&'static [&'static str], Vec<Value>);

/// Where changes are made in Nodes and pods.
fn edits() -> Vec<Edit> {
    let (one, other) = (json!("one"), json!("other"));
    let texts = || vec![Value::Null, json!(""), one.clone(), other.clone()];
    let annotations: [&[&str]; 5] = [
        &["metadata", "annotations", "ebbtide/scale-in"],
        &["metadata", "annotations", "ebbtide/guarded"],
        &["metadata", "annotations", "ebbtide/"],
        &["metadata", "annotations", "cluster-autoscaler.kubernetes.io/enable-ds-eviction"],
        &["metadata", "annotations", "ebbtide.example.com/mine"],
    ];
    let status: [&[&str]; 8] = [
        &["status", "phase"],
        &["status", "reason"],
        &["status", "message"],
        &["status", "nominatedNodeName"],
        &["status", "hostIP"],
        &["status", "podIP"],
        &["status", "startTime"],
        // Nobody asked about it.
        &["status", "qosClass"],
    ];
    let lists: [&[&str]; 5] = [
        &["status", "hostIPs"],
        &["status", "podIPs"],
        &["status", "initContainerStatuses"],
        &["status", "containerStatuses"],
        &["status", "ephemeralContainerStatuses"],
    ];
    let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status });
    let conditions = vec![
        Value::Null,
        json!([]),
        json!([condition("Ready", "True")]),
        json!([condition("Ready", "False")]),
        json!([condition("DisruptionTarget", "True")]),
        json!([condition("Ready", "True"), condition("DisruptionTarget", "True")]),
        json!([condition("DisruptionTarget", "True"), condition("Ready", "True")]),
    ];
    let some = |paths: &[&'static [&'static str]], values: &[Value]| -> Vec<Edit> {
        paths.iter().map(|path| (*path, values.to_vec())).collect()
    };
    let entries = [Value::Null, json!([]), json!([{ "name": "one" }]), json!([{ "name": "other" }])];
    [
        some(&annotations, &texts()),
        some(&status, &texts()),
        some(&lists, &entries),
        some(&[&["metadata", "finalizers"], &["metadata", "ownerReferences"]], &entries),
        some(&[&["metadata", "annotations"]], &[Value::Null, json!({})]),
        some(
            &[&["metadata", "labels"]],
            &[Value::Null, json!({}), json!({ "app": "one" }), json!({ "app": "other" })],
        ),
        some(&[&["spec", "nodeName"], &["metadata", "resourceVersion"]], &texts()),
        some(&[&["status", "conditions"]], &conditions),
    ]
    .concat()
}

/// Sets a field, or takes it away.
fn set(object: &mut Value, path: &[&str], value: Value) {
    let (first, rest) = path.split_first().expect("a path");
    if !rest.is_empty() && (!value.is_null() || object.get(first).is_some()) {
        set(&mut object[*first], rest, value);
    } else if rest.is_empty() && !value.is_null() {
        object[*first] = value;
    } else if let Some(fields) = object.as_object_mut() {
        fields.remove(*first);
    }
}

/// Some edits of an object, one after the other.
fn edited(object: Value, edits: Vec<(Edit, Index)>) -> Value {
    edits.into_iter().fold(object, |mut object, ((path, values), which)| {
        set(&mut object, path, which.get(&values).clone());
        object
    })
}

fn change() -> impl Strategy<Value = Change> {
    let some = |most| prop::collection::vec((select(edits()), any::<Index>()), 0..=most);
    let who = select(vec![EBBTIDE, "system:node:ip-10-0-0-1", "system:serviceaccount:other:ebbtide"]);
    let rights = select(vec![Rights::Write, Rights::ScaleIn]);
    let what = (select(vec![Resource::Nodes, Resource::Pods]), any::<bool>(), prop::bool::weighted(0.1));
    (what, who, rights, some(12), some(2)).prop_map(
        |((resource, of_status, is_new), user, rights, before, after)| {
            let bare = json!({ "metadata": { "name": "ip-10-0-0-1" }, "spec": {}, "status": {} });
            let old = edited(bare, before);
            let new = edited(old.clone(), after);
            let of_status = of_status && !is_new;
            Change { resource, of_status, user, rights, old: (!is_new).then_some(old), new }
        },
    )
}

#[test]
fn the_worlds_policies_answer_as_the_shipped_ones_do() {
    let env = Arc::new(Env::stdlib());
    let policies = Policy::all(&env);
    let config = ProptestConfig { cases: 3_000, failure_persistence: None, ..ProptestConfig::default() };
    let answers = RefCell::new(BTreeSet::new());
    let result = TestRunner::new(config).run(&change(), |change| {
        let shipped: Result<(), String> = policies.iter().try_for_each(|policy| policy.admit(&env, &change));
        prop_assert_eq!(change.in_the_worlds(), shipped.clone());
        answers.borrow_mut().insert(shipped);
        Ok(())
    });
    result.unwrap_or_else(|different| panic!("{different}"));
    let validations: usize = policies.iter().map(|policy| policy.validations.len()).sum();
    assert_eq!(
        answers.into_inner().len(),
        validations + 1,
        "each refuses something, and something is allowed"
    );
}
