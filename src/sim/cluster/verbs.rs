//! What each verb does: get, list, create, update, patch and delete.
//!
//! Invariant: a refused request has no effect.

use std::fmt::Write as _;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::deletion::{DeleteOptions, Deleted};
use super::journal::By;
use super::names::Name;
use super::object::{Object, from_core_event};
use super::requests::Attempt;
use super::resources::{Resource, Shape};
use super::route::{Call, Verb};
use super::rules::prepare_update;
use super::selectors::Selection;
use super::state::State;
use super::status::{Failure, success};
use super::table::table;
use super::watch::Lines;
use super::{discovery, patch, policies};

/// The result of a verb.
pub(super) enum Answer {
    Json(u16, String),
    Stream(Lines),
}

impl State {
    /// Performs a request; `None` if an eviction goes on later.
    pub(super) fn dispatch(
        &mut self,
        call: &Call<'_>,
        attempt: &mut Attempt,
    ) -> Option<Result<Answer, Failure>> {
        let eviction = call.subresource.as_deref() == Some("eviction");
        if self.faults.forbids(&call.verb.to_string(), &call.resource_path()) {
            return Some(Err(discovery::forbidden(call, "ebbtide")));
        }
        if eviction && call.verb == Verb::Create {
            return self.evict(call, attempt).transpose();
        }
        if call.subresource.as_deref() == Some("scale") {
            return Some(self.scale(call));
        }
        Some(self.serve(call, eviction))
    }

    fn serve(&mut self, call: &Call<'_>, eviction: bool) -> Result<Answer, Failure> {
        match call.verb {
            _ if eviction => {
                Err(Failure::new(405, "MethodNotAllowed", "the server does not allow this method"))
            }
            Verb::Get => Ok(Answer::Json(200, shown(&self.find(call)?, call.shape, self.now))),
            Verb::List => self.list(call),
            Verb::Watch => Ok(Answer::Stream(self.watch(call)?)),
            Verb::Create => self.create(call),
            Verb::Update => {
                let new = body(call)?;
                self.update(call, new)
            }
            Verb::Patch => {
                let current = self.find(call)?;
                let new = patched(call, &current)?;
                self.update(call, new)
            }
            Verb::Delete => {
                let options = DeleteOptions::of_call(call)?;
                let deleted = self.delete(call.resource, &call.target(), &options, By::Delete)?;
                Ok(Answer::Json(200, answer_to_delete(call, &deleted)))
            }
            Verb::DeleteCollection => self.delete_collection(call),
        }
    }

    /// Whether the admission policies allow the user to change `old` into `new`.
    fn admit(&self, call: &Call<'_>, old: Option<&Value>, new: &Value) -> Result<(), Failure> {
        match &self.asking {
            Some(user) if self.faults.enforces_policies() => policies::admit(user, call, old, new),
            _ => Ok(()),
        }
    }

    fn find(&self, call: &Call<'_>) -> Result<Arc<Object>, Failure> {
        let name = call.target();
        let found = self.store.get(call.resource, &name);
        found.cloned().ok_or_else(|| Failure::not_found(call.resource, &name.name))
    }

    fn create(&mut self, call: &Call<'_>) -> Result<Answer, Failure> {
        if call.resource.facts().namespaced && call.namespace.is_none() {
            return Err(Failure::new(405, "MethodNotAllowed", "the server does not allow this method"));
        }
        let new = body(call)?;
        let value = self.prepare_create(call, new)?;
        self.admit(call, None, &value)?;
        let stored = if call.dry_run() {
            Arc::new(Object::new(call.resource, self.store.revision, value))
        } else {
            self.put(call.resource, value).ok_or_else(|| Failure::internal("not stored"))?
        };
        Ok(Answer::Json(201, stored.render(call.shape)))
    }

    fn update(&mut self, call: &Call<'_>, new: Value) -> Result<Answer, Failure> {
        let current = self.find(call)?;
        let new = prepare_update(call, &current, new)?;
        self.admit(call, Some(&current.value), &new)?;
        let finalised = Object::new(call.resource, current.revision, new);
        if call.dry_run() {
            return Ok(Answer::Json(200, finalised.render(call.shape)));
        }
        if finalised.deleting() && super::deletion::nothing_holds(&finalised) {
            self.remove(call.resource, &current.name);
            return Ok(Answer::Json(200, finalised.render(call.shape)));
        }
        let stored = self.put(call.resource, finalised.value);
        Ok(Answer::Json(200, stored.unwrap_or(current).render(call.shape)))
    }

    fn delete_collection(&mut self, call: &Call<'_>) -> Result<Answer, Failure> {
        let options = DeleteOptions::of_call(call)?;
        let selected = self.selected(call, self.store.revision, None)?;
        let names: Vec<Name> = selected.map(|object| object.name.clone()).collect();
        for name in &names {
            self.delete(call.resource, name, &options, By::Delete)?;
        }
        Ok(Answer::Json(200, success(200, None).to_string()))
    }

    /// The objects that a list selects as of `revision`, after `after`.
    fn selected<'a>(
        &'a self,
        call: &Call<'_>,
        revision: u64,
        after: Option<&'a Name>,
    ) -> Result<Box<dyn Iterator<Item = &'a Arc<Object>> + 'a>, Failure> {
        let selection = Selection::of_call(call)?;
        let node = selection.node().filter(|_| call.resource == Resource::Pods).map(str::to_owned);
        let here = move |object: &&Arc<Object>| selection.selects(object);
        if let Some(node) = node.filter(|_| revision == self.store.revision) {
            let pods =
                self.store.pods_on(&node).filter(move |pod| after.is_none_or(|after| pod.name > *after));
            return Ok(Box::new(pods.filter(here).collect::<Vec<_>>().into_iter()));
        }
        let objects = self.store.as_of(call.resource, revision, after).ok_or_else(|| {
            Failure::expired(if after.is_some() {
                "The provided continue parameter is too old to display a consistent list result. You can start a \
                 new list without the continue parameter."
            } else {
                "The resourceVersion for the provided list is too old."
            })
        })?;
        Ok(Box::new(objects.filter(here)))
    }

    fn list(&mut self, call: &Call<'_>) -> Result<Answer, Failure> {
        let token = call.param("continue").map(Continue::read).transpose()?;
        let asked = self.asked_revision(call)?;
        let exact = call.param("resourceVersionMatch") == Some("Exact");
        let revision = match (&token, asked) {
            (Some(token), _) => token.revision,
            (None, Some(asked)) if exact => asked,
            _ => self.store.revision,
        };
        let mut selected = self.selected(call, revision, token.as_ref().map(|token| &token.after))?;
        let limit = call.param("limit").and_then(|limit| limit.parse().ok()).filter(|limit| *limit > 0);
        let items: Vec<Arc<Object>> = selected.by_ref().take(limit.unwrap_or(usize::MAX)).cloned().collect();
        let left = match &token {
            Some(token) => token.left.saturating_sub(items.len()),
            None => selected.count(),
        };
        let last = items.last().filter(|_| left > 0);
        let next = last.map(|last| Continue { revision, left, after: last.name.clone() });
        let metadata = list_metadata(call, revision, next.as_ref(), left);
        Ok(Answer::Json(
            200,
            match call.shape {
                Shape::Table(include) => {
                    table(call.resource, &items, &metadata, include, self.now).to_string()
                }
                _ => render_list(call, &metadata, &items),
            },
        ))
    }
}

/// An object in `shape`, as of now.
pub(super) fn shown(object: &Arc<Object>, shape: Shape, now: Timestamp) -> String {
    match shape {
        Shape::Table(include) => {
            let metadata = serde_json::json!({ "resourceVersion": object.revision.to_string() });
            table(object.resource, std::slice::from_ref(object), &metadata, include, now).to_string()
        }
        _ => object.render(shape),
    }
}

/// `current` after a patch, in the API version of the request.
fn patched(call: &Call<'_>, current: &Object) -> Result<Value, Failure> {
    if call.address != Shape::CoreEvent {
        return patch::apply(call.content_type, &current.value, call.body);
    }
    let shown = serde_json::from_str(&current.render(Shape::CoreEvent))
        .map_err(|e| Failure::internal(&e.to_string()))?;
    patch::apply(call.content_type, &shown, call.body).map(from_core_event)
}

fn list_metadata(call: &Call<'_>, revision: u64, next: Option<&Continue>, left: usize) -> Value {
    let mut metadata = serde_json::json!({ "resourceVersion": revision.to_string() });
    if let Some(next) = next {
        metadata["continue"] = Value::String(next.write());
        if call.param("labelSelector").is_none() && call.param("fieldSelector").is_none() {
            metadata["remainingItemCount"] = Value::from(left);
        }
    }
    metadata
}

fn render_list(call: &Call<'_>, metadata: &Value, items: &[Arc<Object>]) -> String {
    let (version, kind) = call.resource.type_meta(call.shape);
    let mut out = String::with_capacity(items.len() * 2048 + 128);
    // Writing to a String cannot fail.
    let _ = write!(out, r#"{{"kind":"{kind}List","apiVersion":"{version}","metadata":{metadata},"items":["#);
    for (index, object) in items.iter().enumerate() {
        if index > 0 {
            out.push(',');
        }
        object.render_item(call.shape, &mut out);
    }
    out.push_str("]}");
    out
}

fn answer_to_delete(call: &Call<'_>, deleted: &Deleted) -> String {
    // The strategy of pods returns the deleted object; other kinds do so only while something still holds it.
    if call.resource == Resource::Pods || !deleted.gone {
        return deleted.object.render(call.shape);
    }
    let facts = call.resource.facts();
    let mut details = serde_json::json!({
        "name": deleted.object.name.name,
        "kind": facts.plural,
        "uid": deleted.object.uid(),
    });
    if !facts.group.is_empty() {
        details["group"] = Value::from(facts.group);
    }
    let mut status = success(200, Some(details));
    if let Some(fields) = status.as_object_mut() {
        fields.remove("code");
    }
    status.to_string()
}

/// Where the next page begins, its version, and how many objects are left.
struct Continue {
    revision: u64,
    left: usize,
    after: Name,
}

impl Continue {
    fn write(&self) -> String {
        format!("{}:{}:{}:{}", self.revision, self.left, self.after.namespace, self.after.name)
    }

    fn read(text: &str) -> Result<Self, Failure> {
        let mut parts = text.splitn(4, ':');
        let unreadable = || Failure::bad_request("invalid continue token: continue key is not valid");
        let mut part = || parts.next().ok_or_else(unreadable);
        let (revision, left, namespace, name) = (part()?, part()?, part()?, part()?);
        let number = |text: &str| text.parse().map_err(|_| unreadable());
        let (revision, left) = (number(revision)?, number(left)? as usize);
        Ok(Self { revision, left, after: Name::new(namespace, name) })
    }
}

/// The object in a request's body, in stored form.
pub(super) fn body(call: &Call<'_>) -> Result<Value, Failure> {
    let media_type = call.content_type.split(';').next().unwrap_or_default();
    if !matches!(media_type, "" | "application/json") {
        return Err(Failure::unsupported(media_type));
    }
    let value: Value = serde_json::from_slice(call.body)
        .map_err(|e| Failure::bad_request(format!("the object provided is unrecognized: {e}")))?;
    if !value.is_object() {
        return Err(Failure::bad_request("the object provided is unrecognized (must be of type Object)"));
    }
    Ok(if call.address == Shape::CoreEvent { from_core_event(value) } else { value })
}
