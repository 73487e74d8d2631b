//! Annotation `ebbtide/cordon` of a Node: we keep new pods away because of notices, and drain nothing.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::record::{self, Cause};

/// A cordon has at most this many reasons: those that last longest.
const MOST: usize = 8;

/// A cordon because of notices. Not empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cordon(Vec<Reason>);

/// A notice that a cordon is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reason {
    /// What kind of notice.
    pub cause: Cause,
    /// When the notice has lapsed, by the API server's clock.
    pub until: Timestamp,
    /// ARN of the scheduled event that it is about: AWS calls off one and not another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event: Option<String>,
}

/// One reason is written without a list.
#[derive(Serialize)]
#[serde(untagged)]
enum Written {
    One(Reason),
    Many(Vec<Reason>),
}

impl Cordon {
    /// A cordon for these reasons; `None` if there are none.
    pub fn of(mut reasons: Vec<Reason>) -> Option<Self> {
        reasons.sort_by_key(|reason| std::cmp::Reverse(reason.until));
        reasons.truncate(MOST);
        (!reasons.is_empty()).then_some(Self(reasons))
    }

    /// The reasons; the one that lasts longest first.
    pub fn reasons(&self) -> &[Reason] {
        &self.0
    }

    /// What kind of notice lasts longest.
    pub fn cause(&self) -> Cause {
        self.0.first().map_or(Cause::RebalanceRecommendation, |reason| reason.cause)
    }

    /// The kinds of notices, each once.
    pub fn causes(&self) -> Vec<Cause> {
        let mut causes = Vec::new();
        for reason in &self.0 {
            if !causes.contains(&reason.cause) {
                causes.push(reason.cause);
            }
        }
        causes
    }

    /// When the last notice has lapsed, by the API server's clock: the Node is opened again if its instance lives.
    pub fn until(&self) -> Timestamp {
        self.0.first().map_or(Timestamp::UNIX_EPOCH, |reason| reason.until)
    }

    /// Reads the annotation. What cannot be read has lapsed; a kind of notice that only a newer version knows counts until it has.
    pub fn read(text: &str) -> Self {
        let lapsed =
            || Reason { cause: Cause::RebalanceRecommendation, until: Timestamp::UNIX_EPOCH, event: None };
        let reasons = match serde_json::from_str(text) {
            Ok(Value::Array(reasons)) => reasons,
            Ok(reason) => vec![reason],
            Err(_) => Vec::new(),
        };
        let reason = |mut reason: Value| {
            record::known::<Cause>(&mut reason, "cause", Cause::ScheduledEvent.as_str());
            serde_json::from_value(reason).ok()
        };
        Self::of(reasons.into_iter().filter_map(reason).collect()).unwrap_or_else(|| Self(vec![lapsed()]))
    }

    /// The annotation's value.
    pub fn write(&self) -> String {
        let written = match &self.0[..] {
            [reason] => Written::One(reason.clone()),
            reasons => Written::Many(reasons.to_vec()),
        };
        serde_json::to_string(&written).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(second: i64, event: Option<&str>) -> Reason {
        let until = Timestamp::from_second(second).expect("in range");
        Reason { cause: Cause::ScheduledEvent, until, event: event.map(str::to_owned) }
    }

    #[test]
    fn what_is_written_is_read_back_and_anything_else_has_lapsed() {
        let one = Cordon::of(vec![reason(1_700_000_000, None)]).expect("a reason");
        assert_eq!(one.write(), r#"{"cause":"scheduled-event","until":"2023-11-14T22:13:20Z"}"#);
        let two = Cordon::of(vec![reason(1_700_000_000, Some("a")), reason(1_700_000_060, Some("b"))]);
        let two = two.expect("reasons");
        assert_eq!(
            two.write(),
            r#"[{"cause":"scheduled-event","until":"2023-11-14T22:14:20Z","event":"b"},{"cause":"scheduled-event","until":"2023-11-14T22:13:20Z","event":"a"}]"#
        );
        assert_eq!((Cordon::read(&one.write()), Cordon::read(&two.write())), (one.clone(), two));
        let newer =
            format!(r#"[{},{{"cause":"x","until":"2023-11-14T22:15:20Z"}},{{"cause":"x"}}]"#, one.write());
        let newer = Cordon::read(&newer);
        assert_eq!(newer.reasons(), [reason(1_700_000_120, None), reason(1_700_000_000, None)]);
        for text in ["for ever", "[]", "{}", r#"[{"cause":"x"}]"#] {
            assert_eq!(Cordon::read(text).until(), Timestamp::UNIX_EPOCH, "{text}");
        }
    }

    #[test]
    fn no_more_reasons_are_kept_than_fit_and_those_that_last_longest() {
        let many = Cordon::of((0..100).map(|second| reason(second, None)).collect()).expect("reasons");
        assert_eq!((many.reasons().len(), many.until()), (MOST, reason(99, None).until));
        assert_eq!(Cordon::of(Vec::new()), None);
    }
}
