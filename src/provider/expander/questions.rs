//! How many questions there are at once, of how many bytes and for how long. Anybody may ask.
//!
//! Invariant: nobody waits for another's question, and nobody who asks from one address costs those at others theirs.

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use http::{Request, Response};
use http_body_util::Limited;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::server::NamedService;
use tower::Service;

use super::proto::expander_server::ExpanderServer;
use super::service::Expander;
use crate::slots::{Connection, Peer, Slots};

/// Largest question: every pod that waits, whole, once for each group.
pub(crate) const LARGEST_QUESTION: usize = 32 << 20;
/// What stands before a message: whether it is compressed, and its length.
const PREFIX: usize = 5;
/// Time for a question to come and to be answered. cluster-autoscaler waits for five seconds.
const WITHIN: Duration = Duration::from_secs(4);

/// The expander's service, from the first byte of a question to its answer.
#[derive(Clone, Debug)]
pub(crate) struct Questions {
    service: ExpanderServer<Expander>,
    places: Arc<Slots>,
}

impl Questions {
    /// Questions to this expander.
    pub(crate) fn to(expander: Arc<Expander>) -> Self {
        let places = expander.places();
        let service = ExpanderServer::from_arc(expander).max_decoding_message_size(LARGEST_QUESTION);
        Self { service, places }
    }
}

impl NamedService for Questions {
    const NAME: &'static str = <ExpanderServer<Expander> as NamedService>::NAME;
}

impl Service<Request<Body>> for Questions {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, question: Request<Body>) -> Self::Future {
        let peer =
            question.extensions().get::<Connection>().map_or(Peer::Local, |connection| connection.peer);
        let place = self.places.take(peer);
        // A call is one message, but its stream could bring more.
        let question = question.map(|body| Body::new(Limited::new(body, PREFIX + LARGEST_QUESTION)));
        let answer = self.service.call(question);
        async move {
            tokio::select! {
                answer = timeout(WITHIN, answer) => answer.unwrap_or_else(|_| {
                    let text = format!("the question has not come within {} s", WITHIN.as_secs());
                    Ok(Status::deadline_exceeded(text).into_http())
                }),
                () = place.shed() => {
                    let text = "a newer question has taken the place of this one: ask again";
                    Ok(Status::resource_exhausted(text).into_http())
                }
            }
        }
        .boxed()
    }
}
