//! The way of a request to AWS, and of its answer back.
//!
//! Invariant: what was sent arrives and is carried out, whether or not the caller still waits for the answer or lives.
//! Requests that were sent one after the other can arrive in another order.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::answering::{addressed, read};
use super::group::after;
use super::handle::Aws;
use super::replies::Reply;
use super::state::State;
use crate::sim::http::{Lost, Request, Response, World, response};

/// Where services that answer JSON put the code of an error.
///
/// <https://smithy.io/2.0/aws/protocols/aws-restjson1-protocol.html#operation-error-serialization>
const ERROR_TYPE: http::HeaderName = http::HeaderName::from_static("x-amzn-errortype");

/// The requests on their way, by when they arrive and in which order they were sent.
#[derive(Default)]
pub(super) struct Requests {
    sent: u64,
    under_way: BTreeMap<(Timestamp, u64), UnderWay>,
}

struct UnderWay {
    request: Request,
    caller: oneshot::Sender<Sent>,
    way_back: Duration,
}

/// What a caller gets of its request.
pub(super) struct Sent {
    /// None if nothing is ever heard of it.
    reply: Option<Result<Reply, Lost>>,
    way_back: Duration,
}

impl Requests {
    /// When the next one arrives.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.under_way.keys().next().map(|(arrives, _)| *arrives)
    }
}

impl State {
    /// Sends a request on its way. Gives where its answer will come, and when it arrives.
    fn send(&mut self, request: Request, now: Timestamp) -> (oneshot::Receiver<Sent>, Timestamp) {
        let (caller, receiver) = oneshot::channel();
        let (there, way_back) = self.draw_way(&request, now);
        let arrives = after(now, there);
        self.requests.sent += 1;
        let id = self.requests.sent;
        self.requests.under_way.insert((arrives, id), UnderWay { request, caller, way_back });
        if arrives <= now {
            self.receive(now);
        }
        (receiver, arrives)
    }

    /// Carries out what has arrived by now.
    pub(super) fn receive(&mut self, now: Timestamp) {
        while let Some(((arrives, _), UnderWay { request, caller, way_back })) = self
            .requests
            .under_way
            .first_entry()
            .filter(|entry| entry.key().0 <= now)
            .map(|e| e.remove_entry())
        {
            let reply = self.answer(&request, arrives);
            // The caller may have given up, or be dead; what it asked for is done.
            let _ = caller.send(Sent { reply, way_back });
        }
    }

    /// How long a request travels, there and back.
    fn draw_way(&mut self, request: &Request, now: Timestamp) -> (Duration, Duration) {
        let form = read(request);
        let (_, operation) = addressed(&form);
        let half = self.faults.draw_latency(operation, &mut self.jitter) / 2;
        let late = self.faults.troubles.take_late(operation, &form, now);
        let way = self.shared.behaviour.way;
        (half + late + self.shared.draw_way(way), half + self.shared.draw_way(way))
    }
}

#[async_trait]
impl World for Aws {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let (mut sent, arrives) = self.script(|state, now| state.send(request, now));
        let sent = tokio::select! {
            biased;
            sent = &mut sent => sent,
            // An AWS that nobody runs answers too.
            () = self.clock().sleep_until(arrives) => {
                self.look(|_| ());
                sent.await
            }
        };
        let Sent { reply, way_back } = sent.map_err(|_| Lost)?;
        let Some(reply) = reply else { return std::future::pending().await };
        if !way_back.is_zero() {
            tokio::time::sleep(way_back).await;
        }
        reply.map(|reply| {
            let mut answer = response(reply.status, reply.content_type, reply.body);
            if let Some(code) = reply.error_type {
                answer.headers_mut().insert(ERROR_TYPE, http::HeaderValue::from_static(code));
            }
            answer
        })
    }
}
