//! A request's way to the API server, and its answer's way back.
//!
//! Invariants: what was sent arrives and takes effect, whether or not the caller still waits or lives; requests can arrive
//! in another order than they were sent.

use std::collections::BTreeMap;

use async_trait::async_trait;
use futures::StreamExt as _;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use jiff::Timestamp;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnboundedReceiverStream;

use super::Cluster;
use super::api::{Reply, What};
use super::faults::Fault;
use super::names::Name;
use super::queue::Task;
use super::resources::Resource;
use super::state::State;
use crate::sim::http::{Lost, Request, Response, World, date, response};

/// The requests under way.
#[derive(Default)]
pub(super) struct Requests {
    sent: u64,
    under_way: BTreeMap<u64, UnderWay>,
}

struct UnderWay {
    request: Request,
    reply: oneshot::Sender<Reply>,
    attempt: Attempt,
}

/// Progress of a request that takes more than one step.
#[derive(Default)]
pub(super) struct Attempt {
    /// Whether it has arrived before.
    pub(super) arrived: bool,
    /// The fault it has met.
    pub(super) fault: Option<Fault>,
    /// Whether it takes effect, where the fault leaves that open.
    pub(super) coin: Option<bool>,
    /// What it has read and will write, unless somebody writes it in between.
    pub(super) read: Option<(Resource, Name, u64)>,
    /// How often somebody did.
    pub(super) conflicts: u32,
    /// When it goes on.
    pub(super) again_at: Option<Timestamp>,
}

impl State {
    /// Sends a request. Returns where its reply will come, and when it arrives.
    pub(super) fn send(&mut self, request: Request, now: Timestamp) -> (oneshot::Receiver<Reply>, Timestamp) {
        self.step(now);
        let (sender, receiver) = oneshot::channel();
        self.requests.sent += 1;
        let id = self.requests.sent;
        let attempt = Attempt::default();
        self.requests.under_way.insert(id, UnderWay { request, reply: sender, attempt });
        let arrives = self.now + self.timing.request.draw(&mut self.dice);
        if arrives == self.now {
            self.receive(id);
        } else {
            self.queue.add(Task::Request(id), arrives);
        }
        (receiver, arrives)
    }

    /// A request arrives, or goes on.
    pub(super) fn receive(&mut self, id: u64) {
        let Some(mut under_way) = self.requests.under_way.remove(&id) else { return };
        if let Some(mut reply) = self.handle(&under_way.request, &mut under_way.attempt) {
            reply.delay += self.timing.answer.draw(&mut self.dice);
            // The caller may have given up; the request is carried out all the same.
            let _ = under_way.reply.send(reply);
        } else {
            let again_at = under_way.attempt.again_at.take().unwrap_or(self.now);
            self.queue.add(Task::Request(id), again_at);
            self.requests.under_way.insert(id, under_way);
        }
    }
}

#[async_trait]
impl World for Cluster {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let clock = self.0.clock.clone();
        let (mut reply, arrives) = self.lock().send(request, clock.now());
        self.0.wake.notify_one();
        let reply = tokio::select! {
            biased;
            reply = &mut reply => reply,
            // A cluster whose `run` nobody drives answers too.
            () = clock.sleep_until(arrives) => {
                self.read(|_| ());
                reply.await
            }
        };
        let reply = reply.map_err(|_| Lost)?;
        let dated = date(clock.now());
        if !reply.delay.is_zero() {
            tokio::time::sleep(reply.delay).await;
        }
        let mut answer = match reply.what {
            What::Lost => return Err(Lost),
            What::Whole { code, content_type, retry_after, body } => {
                let mut whole = response(code, content_type, body);
                if let Some(seconds) = retry_after {
                    whole.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
                }
                whole
            }
            What::Stream(lines) => {
                let frames = UnboundedReceiverStream::new(lines).then(move |(arrives, line)| {
                    let clock = clock.clone();
                    async move {
                        if arrives > clock.now() {
                            clock.sleep_until(arrives).await;
                        }
                        Ok(Frame::data(line))
                    }
                });
                let mut stream = http::Response::new(StreamBody::new(frames).boxed_unsync());
                let json = http::HeaderValue::from_static("application/json");
                stream.headers_mut().insert(http::header::CONTENT_TYPE, json);
                stream
            }
        };
        answer.headers_mut().insert(http::header::DATE, dated);
        Ok(answer)
    }
}
