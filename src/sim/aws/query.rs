//! Reads requests of the AWS query protocol: `Action=…&Version=…&Filters.member.1.Name=…`.
//!
//! EC2 flattens its lists (`InstanceType.1`), Auto Scaling does not (`InstanceIds.member.1`). Nothing here knows what a
//! parameter means. No input panics: what cannot be read counts as absent.
//!
//! <https://smithy.io/2.0/aws/protocols/aws-query-protocol.html> and
//! <https://smithy.io/2.0/aws/protocols/aws-ec2-query-protocol.html>

use std::collections::BTreeMap;
use std::str::FromStr;

use crate::sim::http::Request;

use super::error::ApiError;

/// The parameters of one request, or of one structure in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Form(BTreeMap<String, String>);

impl Form {
    /// Reads the query string and the body.
    pub(super) fn of(request: &Request) -> Self {
        let query = request.uri().query().unwrap_or_default();
        let pairs = form_urlencoded::parse(query.as_bytes()).chain(form_urlencoded::parse(request.body()));
        Self(pairs.map(|(key, value)| (key.into_owned(), value.into_owned())).collect())
    }

    /// The value of `key`.
    pub(super) fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    /// The value of `key`, or the refusal for a missing parameter.
    pub(super) fn required(&self, key: &str) -> Result<&str, ApiError> {
        self.get(key).ok_or_else(|| {
            let member = key[..1].to_lowercase() + &key[1..];
            ApiError::validation(format!(
                "1 validation error detected: Value null at '{member}' failed to satisfy constraint: Member must \
                 not be null"
            ))
        })
    }

    /// The value of `key` as a number or boolean; otherwise a malformed request.
    pub(super) fn parsed<T: FromStr>(&self, key: &str) -> Result<Option<T>, ApiError> {
        self.get(key)
            .map(|value| {
                value.parse().map_err(|_| ApiError::malformed(format!("{value} is no value for {key}")))
            })
            .transpose()
    }

    /// Whether any parameter has this value.
    pub(super) fn names(&self, value: &str) -> bool {
        self.0.values().any(|given| given == value)
    }

    /// The values of `prefix.1`, `prefix.2`, … in the order of their numbers.
    pub(super) fn list(&self, prefix: &str) -> Vec<&str> {
        let items: BTreeMap<u32, &str> = self
            .under(prefix)
            .filter_map(|(rest, value)| rest.parse().ok().map(|number| (number, value)))
            .collect();
        items.into_values().collect()
    }

    /// The structures at `prefix.1`, `prefix.2`, … in the order of their numbers.
    pub(super) fn structures(&self, prefix: &str) -> Vec<Form> {
        let mut items: BTreeMap<u32, Form> = BTreeMap::new();
        for (rest, value) in self.under(prefix) {
            if let Some((number, field)) = rest.split_once('.')
                && let Ok(number) = number.parse()
            {
                items.entry(number).or_default().0.insert(field.to_owned(), value.to_owned());
            }
        }
        items.into_values().collect()
    }

    /// The parameters for the journal: all but `Action` and `Version`.
    pub(super) fn arguments(&self) -> BTreeMap<String, String> {
        let mut arguments = self.0.clone();
        arguments.remove("Action");
        arguments.remove("Version");
        arguments
    }

    fn under<'a, 'p>(&'a self, prefix: &'p str) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a, 'p> {
        self.0.iter().filter_map(move |(key, value)| {
            let rest = key.strip_prefix(prefix)?.strip_prefix('.')?;
            Some((rest, value.as_str()))
        })
    }
}

impl<'a> FromIterator<(&'a str, &'a str)> for Form {
    fn from_iter<T: IntoIterator<Item = (&'a str, &'a str)>>(pairs: T) -> Self {
        Self(pairs.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect())
    }
}

/// One filter; it passes on any of its values.
#[derive(Debug)]
pub(super) struct Filter {
    pub(super) name: String,
    pub(super) values: Vec<String>,
}

impl Filter {
    /// The filters of a request: `Filters.member` for Auto Scaling, `Filter` for EC2.
    pub(super) fn all(form: &Form, prefix: &str, values: &str) -> Vec<Self> {
        let read = |filter: &Form| Self {
            name: filter.get("Name").unwrap_or_default().to_owned(),
            values: filter.list(values).into_iter().map(str::to_owned).collect(),
        };
        form.structures(prefix).iter().map(read).collect()
    }

    pub(super) fn accepts(&self, value: &str) -> bool {
        self.values.iter().any(|wanted| wanted == value)
    }
}

/// One page of `items`, in the order of their keys, and the token for the next.
///
/// The token holds the last key of the page: pages neither repeat nor lose an item when others come and go.
pub(super) fn page<T>(
    items: impl IntoIterator<Item = (String, T)>,
    token: Option<&str>,
    size: usize,
) -> Result<(Vec<T>, Option<String>), ApiError> {
    let after = token.map(|token| from_token(token).ok_or_else(ApiError::invalid_token)).transpose()?;
    let mut rest =
        items.into_iter().filter(|(key, _)| after.as_ref().is_none_or(|after| key > after)).peekable();
    let mut page = Vec::new();
    let mut last = None;
    while page.len() < size
        && let Some((key, item)) = rest.next()
    {
        page.push(item);
        last = Some(key);
    }
    let next = last.filter(|_| rest.peek().is_some()).map(|key| to_token(&key));
    Ok((page, next))
}

/// The page size in `key`, refused above `most`.
pub(super) fn page_size(form: &Form, key: &str, default: usize, most: usize) -> Result<usize, ApiError> {
    let size = form.parsed::<usize>(key)?.unwrap_or(default);
    if size == 0 || size > most {
        let member = key[..1].to_lowercase() + &key[1..];
        return Err(ApiError::validation(format!(
            "1 validation error detected: Value '{size}' at '{member}' failed to satisfy constraint: Member must \
             have value between 1 and {most}"
        )));
    }
    Ok(size)
}

/// The token for the first page.
pub(super) fn start_token() -> String {
    to_token("")
}

/// Another token for the same page.
pub(super) fn another_token(token: &str) -> String {
    format!("{token}&")
}

fn to_token(key: &str) -> String {
    form_urlencoded::byte_serialize(format!("after={key}").as_bytes()).collect()
}

fn from_token(token: &str) -> Option<String> {
    let (decoded, _) = form_urlencoded::parse(token.as_bytes()).next()?;
    decoded.strip_prefix("after=").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(body: &'static str) -> Form {
        Form::of(&Request::new(bytes::Bytes::from_static(body.as_bytes())))
    }

    #[test]
    fn lists_are_ordered_by_number_and_not_by_spelling() {
        let form = form("A.member.10=ten&A.member.9=nine&A.member.x=no&B.1=other");
        assert_eq!(form.list("A.member"), ["nine", "ten"]);
        assert_eq!(form.list("B"), ["other"]);
    }

    #[test]
    fn a_structure_keeps_its_own_fields_only() {
        let form = form("F.member.2.Name=b&F.member.1.Name=a+c&F.member.1.Values.member.1=%C3%A9");
        let structures = form.structures("F.member");
        assert_eq!(structures.len(), 2);
        assert_eq!(structures[0].get("Name"), Some("a c"));
        assert_eq!(structures[0].list("Values.member"), ["é"]);
        assert_eq!(structures[1].get("Name"), Some("b"));
    }

    #[test]
    fn pages_neither_repeat_nor_lose_an_item_when_one_goes_away() {
        let items =
            |keys: &[&str]| keys.iter().map(|k| ((*k).to_owned(), (*k).to_owned())).collect::<Vec<_>>();
        let (first, next) = page(items(&["a b", "c=", "d", "e"]), None, 2).expect("a page");
        assert_eq!(first, ["a b", "c="]);
        let (second, next) = page(items(&["a b", "d", "e"]), next.as_deref(), 2).expect("a page");
        assert_eq!((second, next), (vec!["d".to_owned(), "e".to_owned()], None));
        assert_eq!(page(items(&["a"]), Some("nonsense"), 2).expect_err("no token").code, "InvalidNextToken");
    }
}
