//! Answers that come in pages.

use std::collections::BTreeSet;
use std::error::Error as StdError;

use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;

use super::retry::Patience;
use super::{Aws, AwsError, Operation};

/// More pages than any answer has: 100,000 groups, or a million tags.
const MOST_PAGES: usize = 1_000;

impl Aws {
    /// Sends a call for each page: `send` with the token of a page, `None` for the first. `take` keeps what is on it and returns the token
    /// of the next one; without one, this was the last.
    ///
    /// # Errors
    /// A call failed, or a page leads to one that was read before, or there is no end of them: the answer counts as one that cannot be read.
    pub(super) async fn pages<P, E, F>(
        &self,
        operation: Operation,
        patience: Patience,
        send: impl Fn(Option<String>) -> F,
        mut take: impl FnMut(P) -> Option<String>,
    ) -> Result<(), AwsError>
    where
        F: Future<Output = Result<P, SdkError<E, HttpResponse>>>,
        E: StdError + ProvideErrorMetadata + Send + Sync + 'static,
    {
        let (mut token, mut read) = (None, BTreeSet::new());
        for _ in 0..MOST_PAGES {
            let page = self.call(operation, patience, || send(token.clone())).await?;
            token = next_page(operation, token.as_deref(), take(page))?;
            let Some(next) = &token else { return Ok(()) };
            if !read.insert(next.clone()) {
                return Err(unreadable(operation, "its pages lead in a circle"));
            }
        }
        Err(unreadable(operation, "its pages do not end"))
    }
}

/// What the next page of an answer is asked for with; `None`: this was the last one. The last one may have an empty token
/// instead of none; the SDK's own paginators end there too.
///
/// # Errors
/// The page that was asked for with `asked` leads to itself, for ever: the answer counts as one that cannot be read.
///
/// Source: `stop_on_duplicate_token` of the SDK's paginators, as of
/// [`DescribeAutoScalingGroupsPaginator`](https://docs.rs/aws-sdk-autoscaling/latest/aws_sdk_autoscaling/operation/describe_auto_scaling_groups/paginator/struct.DescribeAutoScalingGroupsPaginator.html).
pub(super) fn next_page(
    operation: Operation,
    asked: Option<&str>,
    next: Option<String>,
) -> Result<Option<String>, AwsError> {
    let next = next.filter(|token| !token.is_empty());
    if next.is_some() && next.as_deref() == asked {
        return Err(unreadable(operation, "the token of the next page is that of this one"));
    }
    Ok(next)
}

fn unreadable(operation: Operation, why: &str) -> AwsError {
    let why: Box<dyn StdError + Send + Sync> = why.into();
    AwsError::Unreadable { operation, source: why.into() }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::aws::answers::answering;

    #[tokio::test(start_paused = true)]
    async fn pages_that_lead_in_a_circle_or_never_end_are_given_up() {
        for (circle, words) in [(2, "in a circle"), (usize::MAX, "do not end")] {
            let asked = AtomicUsize::default();
            let aws = answering(move |_| {
                let token = asked.fetch_add(1, Ordering::Relaxed) % circle;
                let body = format!(
                    "<DescribeTagsResponse><tagSet/><nextToken>{token}</nextToken></DescribeTagsResponse>"
                );
                (200, body)
            });
            let error = aws.tagged_instances("ours").await.expect_err("for ever");
            let told = crate::telemetry::chain(&error);
            assert!(told.contains(words), "{told}");
        }
    }

    #[test]
    fn the_last_page_has_no_token_or_an_empty_one_and_none_leads_to_itself() {
        let next = |asked: Option<&str>, next: Option<&str>| {
            next_page(Operation::DescribeTags, asked, next.map(str::to_owned))
        };
        for asked in [None, Some("1")] {
            assert!(matches!(next(asked, None), Ok(None)));
            assert!(matches!(next(asked, Some("")), Ok(None)));
            assert!(matches!(next(asked, Some("2")), Ok(Some(token)) if token == "2"));
        }
        let itself = next(Some("1"), Some("1")).expect_err("for ever");
        assert!(itself.is_transient(), "{itself}");
    }
}
