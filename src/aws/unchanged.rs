//! Pages of groups that say what they said before.
//!
//! Reading XML is most of what a look at thousands of instances costs, and mostly nothing has changed since the last one. Such a page is
//! recognized by the bytes of its groups, and what was read of them then stands. What is around them (the token of the next page, the id of
//! the request) is read each time.

use std::collections::HashMap;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, OnceLock};

use aws_sdk_autoscaling::operation::describe_auto_scaling_groups::DescribeAutoScalingGroups;
use aws_sdk_autoscaling::types as asg;
use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::interceptors::context::{
    BeforeDeserializationInterceptorContextRef, Error, Output,
};
use aws_smithy_runtime_api::client::interceptors::{Intercept, dyn_dispatch_hint};
use aws_smithy_runtime_api::client::orchestrator::{HttpResponse, OrchestratorError};
use aws_smithy_runtime_api::client::runtime_components::RuntimeComponents;
use aws_smithy_runtime_api::client::runtime_plugin::RuntimePlugin as _;
use aws_smithy_runtime_api::client::ser_de::{DeserializeResponse, SharedResponseDeserializer};
use aws_smithy_types::body::SdkBody;
use aws_smithy_types::config_bag::ConfigBag;
use parking_lot::Mutex;

use super::AutoScalingGroup;

/// What is around the groups of a page.
const BEGIN: &[u8] = b"<AutoScalingGroups>";
const END: &[u8] = b"</AutoScalingGroups>";

type Groups = Vec<Arc<AutoScalingGroup>>;

/// The pages of the last look, by the hash of their bytes, and of the present one. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct PagesRead(Arc<Looks>);

#[derive(Debug, Default)]
struct Looks {
    hasher: RandomState,
    last: Mutex<HashMap<u64, Groups>>,
    present: Mutex<HashMap<u64, Groups>>,
}

impl PagesRead {
    /// Begins a look. What the last one has not shown is forgotten.
    pub fn begin(&self) {
        let mut present = self.0.present.lock();
        *self.0.last.lock() = std::mem::take(&mut *present);
    }

    /// A page that is about to be read.
    pub(super) fn page(&self) -> Page {
        Page { pages: self.clone(), groups: Arc::default() }
    }

    /// The groups of a page of this hash, if it was read before.
    fn known(&self, hash: u64) -> Option<Groups> {
        let before = || self.0.last.lock().get(&hash).cloned();
        self.0.present.lock().get(&hash).cloned().or_else(before)
    }

    /// The groups as they were before where they are the same.
    fn once(&self, read: impl Iterator<Item = AutoScalingGroup>) -> Groups {
        let last = self.0.last.lock();
        let before: HashMap<_, _> = last.values().flatten().map(|group| (&group.name, group)).collect();
        let once = |group: AutoScalingGroup| match before.get(&group.name) {
            Some(known) if ***known == group => Arc::clone(known),
            _ => Arc::new(group),
        };
        read.map(once).collect()
    }
}

/// What is found out of a page while the SDK reads it.
#[derive(Clone, Debug)]
pub(super) struct Page {
    pages: PagesRead,
    /// The hash of its groups' bytes, and the groups if they are known.
    groups: Arc<OnceLock<(u64, Option<Groups>)>>,
}

impl Page {
    /// Its groups; `read`: what the SDK has read of it.
    pub(super) fn groups(&self, read: Vec<asg::AutoScalingGroup>) -> Groups {
        let found = self.groups.get();
        let known = found.and_then(|(_, known)| known.clone());
        let read = read.into_iter().map(AutoScalingGroup::from_sdk);
        let groups = known.unwrap_or_else(|| self.pages.once(read));
        if let Some((hash, _)) = found {
            self.pages.0.present.lock().insert(*hash, groups.clone());
        }
        groups
    }

    /// The answer without its groups, if these are known.
    fn shortened(&self, answer: &HttpResponse) -> Option<HttpResponse> {
        let body = answer.body().bytes().filter(|_| answer.status().is_success())?;
        let begin = body.windows(BEGIN.len()).position(|part| part == BEGIN)? + BEGIN.len();
        let end = body.windows(END.len()).rposition(|part| part == END).filter(|end| begin <= *end)?;
        let (before, groups, after) = (&body[..begin], &body[begin..end], &body[end..]);
        let hash = self.pages.0.hasher.hash_one(groups);
        let (_, known) = self.groups.get_or_init(|| (hash, self.pages.known(hash)));
        known.as_ref().map(|_| HttpResponse::new(answer.status(), SdkBody::from([before, after].concat())))
    }
}

#[dyn_dispatch_hint]
impl Intercept for Page {
    fn name(&self) -> &'static str {
        "Page"
    }

    /// Has the answer read by this in the SDK's place.
    fn read_before_deserialization(
        &self,
        _: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        cfg: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        cfg.interceptor_state().store_put(SharedResponseDeserializer::new(self.clone()));
        Ok(())
    }
}

impl DeserializeResponse for Page {
    fn deserialize_nonstreaming_with_config(
        &self,
        answer: &HttpResponse,
        cfg: &ConfigBag,
    ) -> Result<Output, OrchestratorError<Error>> {
        let operation = DescribeAutoScalingGroups::new().config();
        let sdks = operation.as_ref().and_then(|layer| layer.load::<SharedResponseDeserializer>());
        let sdks = sdks.ok_or_else(|| OrchestratorError::other("the SDK reads no groups"))?;
        let shortened = self.shortened(answer);
        sdks.deserialize_nonstreaming_with_config(shortened.as_ref().unwrap_or(answer), cfg)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::aws::answers::answering;
    use crate::aws::{Aws, TagSelector};

    fn group(name: &str, desired: i32) -> String {
        format!(
            "<member><AutoScalingGroupName>{name}</AutoScalingGroupName><DesiredCapacity>{desired}</DesiredCapacity>\
             <Tags><member><Key>k</Key><Value>v</Value></member></Tags></member>"
        )
    }

    /// A page as AWS writes it: no two have the same id of the request, and no two tokens are the same.
    fn page(groups: &str, next: &str, nth: usize) -> String {
        let token =
            if next.is_empty() { String::new() } else { format!("<NextToken>{next}-{nth}</NextToken>") };
        format!(
            "<DescribeAutoScalingGroupsResponse><DescribeAutoScalingGroupsResult>\
             <AutoScalingGroups>{groups}</AutoScalingGroups>{token}</DescribeAutoScalingGroupsResult>\
             <ResponseMetadata><RequestId>{nth}</RequestId></ResponseMetadata></DescribeAutoScalingGroupsResponse>"
        )
    }

    /// AWS with two pages: of `a` and `b`, and of `c`. From the third look on, `b` is another size.
    fn aws() -> Aws {
        let asked = AtomicUsize::default();
        answering(move |request| {
            let nth = asked.fetch_add(1, Ordering::Relaxed);
            let of_b = if nth < 4 { 1 } else { 2 };
            if request.contains("NextToken=second") {
                (200, page(&group("c", 1), "", nth))
            } else {
                (200, page(&(group("a", 1) + &group("b", of_b)), "second", nth))
            }
        })
    }

    async fn look(aws: &Aws, pages: &PagesRead) -> Groups {
        pages.begin();
        let selector = TagSelector { tags: [("k".to_owned(), None)].into() };
        aws.describe_tagged_groups(&selector, pages).await.expect("described")
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_not_changed_is_not_read_again_and_what_has_is() {
        let (aws, pages) = (aws(), PagesRead::default());
        let first = look(&aws, &pages).await;
        assert_eq!(first.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        let second = look(&aws, &pages).await;
        assert!(first.iter().zip(&second).all(|(a, b)| Arc::ptr_eq(a, b)) && second.len() == 3);
        let third = look(&aws, &pages).await;
        let same: Vec<bool> = first.iter().zip(&third).map(|(a, b)| Arc::ptr_eq(a, b)).collect();
        assert_eq!((same, third[1].desired), (vec![true, false, true], 2));
        assert_eq!(pages.0.last.lock().len() + pages.0.present.lock().len(), 4, "pages of two looks");
    }

    #[tokio::test(start_paused = true)]
    async fn a_known_page_that_ends_early_or_is_refused_tells_nothing() {
        let asked = AtomicUsize::default();
        let aws = answering(move |_| {
            let whole = page(&group("a", 1), "", 0);
            match asked.fetch_add(1, Ordering::Relaxed) {
                0 => (200, whole),
                1 => (200, whole[..whole.len() - 50].to_owned()),
                _ => (400, whole),
            }
        });
        let (pages, names) = (PagesRead::default(), ["a".into()]);
        assert_eq!(aws.describe_groups_left(&names, &pages).await.expect("described").len(), 1);
        pages.begin();
        for why in ["cut off", "refused"] {
            assert!(aws.describe_groups_left(&names, &pages).await.is_err(), "{why}");
        }
    }

    #[test]
    fn the_sdk_reads_what_is_shortened() {
        let operation = DescribeAutoScalingGroups::new().config();
        assert!(operation.is_some_and(|layer| layer.load::<SharedResponseDeserializer>().is_some()));
    }
}
