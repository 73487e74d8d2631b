//! Writes the XML of the AWS query protocol.
//!
//! Elements and text only: no attributes but the root's namespace, no mixed content. Every value is escaped, every opened
//! element is closed.

use std::fmt::{Display, Write};

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;
use quick_xml::escape::escape;

/// XML under construction.
#[derive(Debug, Default)]
pub(super) struct Xml(String);

impl Xml {
    /// The XML that `write` writes.
    pub(super) fn build(write: impl FnOnce(&mut Xml)) -> Self {
        let mut xml = Self::default();
        write(&mut xml);
        xml
    }

    /// An element with text.
    pub(super) fn text(&mut self, name: &str, value: impl Display) -> &mut Self {
        let value = value.to_string();
        // Writing to a String does not fail.
        let _ = write!(self.0, "<{name}>{}</{name}>", escape(value.as_str()));
        self
    }

    /// An element with text, if there is a value.
    pub(super) fn optional(&mut self, name: &str, value: Option<impl Display>) -> &mut Self {
        if let Some(value) = value {
            self.text(name, value);
        }
        self
    }

    /// An element with a moment, to the millisecond as in AWS.
    pub(super) fn time(&mut self, name: &str, at: Timestamp) -> &mut Self {
        let printer = DateTimePrinter::new().precision(Some(3));
        self.text(name, printer.timestamp_to_string(&at))
    }

    /// An element with child elements.
    pub(super) fn inside(&mut self, name: &str, write: impl FnOnce(&mut Xml)) -> &mut Self {
        let _ = write!(self.0, "<{name}>");
        write(self);
        let _ = write!(self.0, "</{name}>");
        self
    }

    /// A list: `name` around one `item` for each of `items`.
    pub(super) fn list<T>(
        &mut self,
        name: &str,
        item: &str,
        items: impl IntoIterator<Item = T>,
        mut write: impl FnMut(&mut Xml, T),
    ) -> &mut Self {
        self.inside(name, |xml| {
            for one in items {
                xml.inside(item, |xml| write(xml, one));
            }
        })
    }

    pub(super) fn values(
        &mut self,
        name: &str,
        item: &str,
        items: impl IntoIterator<Item = impl Display>,
    ) -> &mut Self {
        self.inside(name, |xml| {
            for one in items {
                xml.text(item, one);
            }
        })
    }

    pub(super) fn append(&mut self, other: &Xml) -> &mut Self {
        self.0.push_str(&other.0);
        self
    }

    /// The same without any element of this name.
    pub(super) fn without(self, name: &str) -> Self {
        let (open, close) = (format!("<{name}>"), format!("</{name}>"));
        let mut parts = self.0.split(&open);
        let first = parts.next().unwrap_or_default().to_owned();
        let after = parts.map(|part| part.split_once(&close).map_or(part, |(_, after)| after));
        Self(after.fold(first, |text, part| text + part))
    }

    /// A document with `root` in `namespace`.
    pub(super) fn document(root: &str, namespace: &str, write: impl FnOnce(&mut Xml)) -> String {
        let mut xml = Self(format!("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<{root}"));
        if !namespace.is_empty() {
            let _ = write!(xml.0, " xmlns=\"{namespace}\"");
        }
        xml.0.push('>');
        write(&mut xml);
        let _ = write!(xml.0, "</{root}>");
        xml.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_escaped_and_elements_closed() {
        let document = Xml::document("R", "urn:x", |xml| {
            xml.text("A", "<&>").values("L", "member", ["a", "b"]).optional("N", None::<&str>);
        });
        let body = document.lines().nth(1).expect("a body");
        assert_eq!(
            body,
            "<R xmlns=\"urn:x\"><A>&lt;&amp;&gt;</A><L><member>a</member><member>b</member></L></R>"
        );
    }

    #[test]
    fn moments_carry_milliseconds() {
        let mut xml = Xml::default();
        xml.time("T", Timestamp::new(1_700_000_000, 5_000_000).expect("a moment"));
        assert_eq!(xml.0, "<T>2023-11-14T22:13:20.005Z</T>");
    }
}
