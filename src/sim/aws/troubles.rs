//! Scripted trouble for single calls: which calls, how often or how long, and what happens to them.

use std::time::Duration;

use jiff::Timestamp;

use super::faults::{Lose, Refusal};
use super::group::after;
use super::operation::Operation;
use super::query::Form;

/// Which calls are hit: the next one by default.
#[derive(Clone, Debug)]
pub struct Which {
    operations: Vec<Operation>,
    about: Option<String>,
    times: u32,
    lasting: Option<Duration>,
}

impl Which {
    /// Calls of these operations.
    pub fn of(operations: &[Operation]) -> Self {
        Self { operations: operations.to_vec(), about: None, times: 1, lasting: None }
    }

    /// Calls of any operation.
    pub fn any() -> Self {
        Self::of(&[])
    }

    /// Only those with this group, instance or other value among their parameters.
    #[must_use]
    pub fn about(mut self, name: &str) -> Self {
        self.about = Some(name.to_owned());
        self
    }

    /// This many of them.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// All of them for `duration`.
    #[must_use]
    pub fn lasting(mut self, duration: Duration) -> Self {
        (self.times, self.lasting) = (u32::MAX, Some(duration));
        self
    }
}

/// What happens to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is refused, before or after its effect.
    Refused(Refusal, Lose),
    /// The connection breaks, before or after its effect.
    Lost(Lose),
    /// The caller never hears of it, before or after its effect.
    Silent(Lose),
    /// It arrives this much later, whether or not the caller still waits.
    Late(Duration),
    /// It is answered from a state this old.
    Stale(Duration),
    /// It is answered with an empty page and a token for the next; a receive from a queue, with no message and at once.
    EmptyPage,
    /// It is answered with an empty page and, unless it asks for the first page, the token that it has itself.
    SameToken,
    /// It is answered, and nobody can read the answer.
    Unreadable,
    /// Its answer ends after so many hundredths of it, and nothing says so.
    EndsAfter(u8),
    /// Its answer leaves out this group or instance, or hooks of this name.
    Without(String),
}

/// The troubles in force.
#[derive(Default)]
pub(super) struct Troubles {
    rules: Vec<Rule>,
    /// When each call was hit.
    pub(super) hits: Vec<Timestamp>,
    /// When an answer left out something by chance.
    pub(super) gaps: Vec<Timestamp>,
}

struct Rule {
    which: Which,
    until: Option<Timestamp>,
    trouble: Trouble,
}

impl Troubles {
    pub(super) fn add(&mut self, which: Which, trouble: Trouble, now: Timestamp) {
        let until = which.lasting.map(|duration| after(now, duration));
        self.rules.push(Rule { which, until, trouble });
    }

    pub(super) fn clear(&mut self) {
        self.rules.clear();
    }

    /// How much later the call arrives; uses the trouble up.
    pub(super) fn take_late(&mut self, operation: Operation, form: &Form, now: Timestamp) -> Duration {
        let late = self.take_such(operation, form, now, |trouble| matches!(trouble, Trouble::Late(_)));
        late.map_or(Duration::ZERO, |trouble| match trouble {
            Trouble::Late(by) => by,
            _ => Duration::ZERO,
        })
    }

    /// What else happens to the call; uses the trouble up.
    pub(super) fn take(&mut self, operation: Operation, form: &Form, now: Timestamp) -> Option<Trouble> {
        self.take_such(operation, form, now, |trouble| !matches!(trouble, Trouble::Late(_)))
    }

    fn take_such(
        &mut self,
        operation: Operation,
        form: &Form,
        now: Timestamp,
        such: impl Fn(&Trouble) -> bool,
    ) -> Option<Trouble> {
        self.rules.retain(|rule| rule.which.times > 0 && rule.until.is_none_or(|until| now < until));
        let rule = self.rules.iter_mut().find(|rule| {
            let Which { operations, about, .. } = &rule.which;
            such(&rule.trouble)
                && (operations.is_empty() || operations.contains(&operation))
                && about.as_ref().is_none_or(|name| form.names(name))
        })?;
        self.hits.push(now);
        rule.which.times = rule.which.times.saturating_sub(u32::from(rule.until.is_none()));
        Some(rule.trouble.clone())
    }
}
