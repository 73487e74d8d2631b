//! Reads requests of the AWS JSON protocol: the operation is in a header, its parameters are in the body. They come out in the
//! shape of the query protocol's, with lists as `Entries.1.Id`.
//!
//! <https://smithy.io/2.0/aws/protocols/aws-json-1_1-protocol.html>

use serde_json::Value;

use super::query::Form;
use crate::sim::http::Request;

/// The request as a form, if its operation is one of `target`. No request contains the API's version.
pub(super) fn form(request: &Request, target: &str, version: &str) -> Option<Form> {
    let action = request.headers().get("x-amz-target")?.to_str().ok()?.strip_prefix(target)?;
    let mut pairs =
        vec![("Version".to_owned(), version.to_owned()), ("Action".to_owned(), action.to_owned())];
    if let Ok(body) = serde_json::from_slice::<Value>(request.body()) {
        flatten(&body, "", &mut pairs);
    }
    Some(pairs.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect())
}

fn flatten(value: &Value, prefix: &str, pairs: &mut Vec<(String, String)>) {
    let under = |name: &str| if prefix.is_empty() { name.to_owned() } else { format!("{prefix}.{name}") };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| flatten(value, &under(name), pairs)),
        Value::Array(items) => {
            let numbered = (1..).zip(items);
            numbered.for_each(|(n, item): (usize, _)| flatten(item, &under(&n.to_string()), pairs));
        }
        Value::String(text) => pairs.push((prefix.to_owned(), text.clone())),
        other => pairs.push((prefix.to_owned(), other.to_string())),
    }
}
