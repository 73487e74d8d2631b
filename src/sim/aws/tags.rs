//! Tags of EC2 resources; here only instances have any.
//!
//! A call does all it names or nothing. Deleting an absent tag is no error. Tags that begin with `aws:` are AWS's own.

use super::ec2::invalid_value;
use super::error::ApiError;
use super::query::{Filter, Form, page, page_size};
use super::state::State;
use super::xml::Xml;

/// Resources per call.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateTags.html>
const RESOURCES_A_CALL: usize = 1000;

/// Least tags on a page of DescribeTags.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeTags.html>
const SMALLEST_PAGE: usize = 5;
const LARGEST_PAGE: usize = 1000;

/// Most tags on a resource, without AWS's own.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html#tag-restrictions>
const TAGS_A_RESOURCE: usize = 50;

/// Prefix of AWS's own tags.
const RESERVED: &str = "aws:";

/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateTags.html>
pub(super) fn create(state: &mut State, form: &Form) -> Result<Xml, ApiError> {
    let ids = resources(state, form)?;
    let mut tags = Vec::new();
    for tag in form.structures("Tag") {
        let key = tag.get("Key").filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| invalid_value("Tag key cannot be null or empty."))?;
        if key.starts_with(RESERVED) {
            return Err(invalid_value(format!("Tag keys starting with 'aws:' are reserved: {key}")));
        }
        tags.push((key.to_owned(), tag.get("Value").unwrap_or_default().to_owned()));
    }
    for id in &ids {
        let Some(instance) = state.instance(id) else { continue };
        let own = instance.tags.keys().filter(|key| !key.starts_with(RESERVED)).count();
        let new = tags.iter().filter(|(key, _)| !instance.tags.contains_key(key)).count();
        if own + new > TAGS_A_RESOURCE {
            return Err(ApiError::client(
                "TagLimitExceeded",
                format!("More than {TAGS_A_RESOURCE} tags specified"),
            ));
        }
    }
    if form.get("DryRun") == Some("true") {
        return Err(ApiError::dry_run());
    }
    for id in &ids {
        if let Some(instance) = state.instance_mut(id) {
            instance.tags.extend(tags.iter().cloned());
        }
    }
    Ok(done())
}

/// Deletes by key, or by key and value; without any, all tags but AWS's own.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DeleteTags.html>
pub(super) fn delete(state: &mut State, form: &Form) -> Result<Xml, ApiError> {
    let ids = resources(state, form)?;
    let named = form.structures("Tag");
    let is_named = |key: &str, value: &str| {
        named.is_empty() && !key.starts_with(RESERVED)
            || named.iter().any(|tag| {
                tag.get("Key") == Some(key) && tag.get("Value").is_none_or(|wanted| wanted == value)
            })
    };
    for id in &ids {
        if let Some(instance) = state.instance_mut(id) {
            instance.tags.retain(|key, value| !is_named(key, value));
        }
    }
    Ok(done())
}

/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeTags.html>
pub(super) fn describe(state: &State, form: &Form) -> Result<Xml, ApiError> {
    let size = page_size(form, "MaxResults", LARGEST_PAGE, LARGEST_PAGE)?;
    if size < SMALLEST_PAGE {
        return Err(invalid_value(format!("A page has at least {SMALLEST_PAGE} tags")));
    }
    let filters = Filter::all(form, "Filter", "Value");
    let known = ["key", "resource-id", "resource-type", "value"];
    if let Some(unknown) = filters.iter().find(|filter| !known.contains(&filter.name.as_str())) {
        return Err(invalid_value(format!("The filter '{}' is invalid", unknown.name)));
    }
    let mut tags: Vec<_> = state
        .groups
        .values()
        .flat_map(|group| group.instances.values())
        .flat_map(|instance| instance.tags.iter().map(|(key, value)| (instance.id.as_str(), key, value)))
        .filter(|(id, key, value)| {
            filters.iter().all(|filter| match filter.name.as_str() {
                "key" => filter.accepts(key),
                "resource-id" => filter.accepts(id),
                "value" => filter.accepts(value),
                _ => filter.accepts("instance"),
            })
        })
        .map(|(id, key, value)| (format!("{id} {key}"), (id, key, value)))
        .collect();
    tags.sort();
    let (tags, next) = page(tags, form.get("NextToken"), size)?;
    Ok(Xml::build(|xml| {
        xml.list("tagSet", "item", tags, |xml, (id, key, value)| {
            xml.text("resourceId", id).text("resourceType", "instance").text("key", key).text("value", value);
        })
        .optional("nextToken", next);
    }))
}

/// The resources of a request; all must exist.
///
/// <https://docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html>, `InvalidID` and
/// `InvalidInstanceID.NotFound`
fn resources(state: &State, form: &Form) -> Result<Vec<String>, ApiError> {
    let ids = form.list("ResourceId");
    if ids.is_empty() {
        let text = "The request must contain the parameter resourceIdSet";
        return Err(ApiError::client("MissingParameter", text));
    }
    if ids.len() > RESOURCES_A_CALL {
        return Err(invalid_value(format!(
            "No more than {RESOURCES_A_CALL} resources can be tagged at once"
        )));
    }
    for id in &ids {
        if !id.starts_with("i-") {
            return Err(ApiError::client("InvalidID", format!("The ID '{id}' is not valid")));
        }
        if state.instance(id).is_none() {
            let text = format!("The instance ID '{id}' does not exist");
            return Err(ApiError::client("InvalidInstanceID.NotFound", text));
        }
    }
    Ok(ids.into_iter().map(str::to_owned).collect())
}

fn done() -> Xml {
    Xml::build(|xml| {
        xml.text("return", true);
    })
}
