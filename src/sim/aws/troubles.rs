//! What goes wrong with single calls, by script: which calls, how often or how long, and what becomes of them.

use std::time::Duration;

use jiff::Timestamp;

use super::faults::{Lose, Refusal};
use super::group::after;
use super::operation::Operation;
use super::query::Form;

/// Which calls something happens to: the next one, unless more is said.
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

    /// Only those that name this group, instance or whatever else.
    #[must_use]
    pub fn about(mut self, name: &str) -> Self {
        self.about = Some(name.to_owned());
        self
    }

    /// So many of them.
    #[must_use]
    pub fn times(mut self, times: u32) -> Self {
        self.times = times;
        self
    }

    /// All of them for so long.
    #[must_use]
    pub fn lasting(mut self, duration: Duration) -> Self {
        (self.times, self.lasting) = (u32::MAX, Some(duration));
        self
    }
}

/// What becomes of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// It is answered so, before or after it had its effect.
    Refused(Refusal, Lose),
    /// The connection breaks, before or after it had its effect.
    Lost(Lose),
    /// Nothing is ever heard of it, before or after it had its effect.
    Silent(Lose),
    /// It arrives so much later, whether or not anybody still waits for the answer.
    Late(Duration),
    /// It is answered as of so long ago.
    Stale(Duration),
    /// It is answered with a page that has nothing on it, and a token for the next.
    EmptyPage,
    /// Its answer leaves out this group or instance.
    Without(String),
}

/// The troubles in force.
#[derive(Default)]
pub(super) struct Troubles(Vec<Rule>);

struct Rule {
    which: Which,
    until: Option<Timestamp>,
    trouble: Trouble,
}

impl Troubles {
    pub(super) fn add(&mut self, which: Which, trouble: Trouble, now: Timestamp) {
        let until = which.lasting.map(|duration| after(now, duration));
        self.0.push(Rule { which, until, trouble });
    }

    /// How much later the call arrives, counted off.
    pub(super) fn take_late(&mut self, operation: Operation, form: &Form, now: Timestamp) -> Duration {
        let late = self.take_such(operation, form, now, |trouble| matches!(trouble, Trouble::Late(_)));
        late.map_or(Duration::ZERO, |trouble| match trouble {
            Trouble::Late(by) => by,
            _ => Duration::ZERO,
        })
    }

    /// What else becomes of the call, counted off.
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
        self.0.retain(|rule| rule.which.times > 0 && rule.until.is_none_or(|until| now < until));
        let rule = self.0.iter_mut().find(|rule| {
            let Which { operations, about, .. } = &rule.which;
            such(&rule.trouble)
                && (operations.is_empty() || operations.contains(&operation))
                && about.as_ref().is_none_or(|name| form.names(name))
        })?;
        rule.which.times = rule.which.times.saturating_sub(u32::from(rule.until.is_none()));
        Some(rule.trouble.clone())
    }
}
