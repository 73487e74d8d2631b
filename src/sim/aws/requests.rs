//! A request's way to AWS, and its answer's way back.
//!
//! Invariant: what was sent arrives and is carried out, whether or not the caller still waits or lives. Requests can arrive
//! in another order than they were sent.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::oneshot;

use super::answering::{Admitted, addressed, read};
use super::group::after;
use super::handle::Aws;
use super::replies::Reply;
use super::state::State;
use crate::clock::later;
use crate::sim::http::{Lost, Request, Response, World, date, response};

/// The requests under way, by arrival and order of sending.
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

/// Whoever waits for an answer.
struct Caller {
    caller: oneshot::Sender<Sent>,
    way_back: Duration,
}

/// A ReceiveMessage that waits for a message.
///
/// <https://docs.aws.amazon.com/AWSSimpleQueueService/latest/SQSDeveloperGuide/sqs-short-and-long-polling.html>
pub(super) struct Poll {
    admitted: Admitted,
    until: Timestamp,
    caller: Caller,
}

/// What a caller gets for its request.
pub(super) struct Sent {
    /// `None` if the caller never hears of it.
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
    /// Sends a request. Returns where its answer will come, and when it arrives.
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

    /// Carries out the requests that have arrived by now.
    pub(super) fn receive(&mut self, now: Timestamp) {
        while let Some(((arrives, _), UnderWay { request, caller, way_back })) = self
            .requests
            .under_way
            .first_entry()
            .filter(|entry| entry.key().0 <= now)
            .map(|e| e.remove_entry())
        {
            let admitted = self.admit(&request, arrives);
            let caller = Caller { caller, way_back };
            match self.waits_until(&admitted, arrives) {
                Some(until) => self.polls.push(Poll { admitted, until, caller }),
                None => self.reply(admitted, caller, arrives),
            }
        }
    }

    /// Answers polls that have waited long enough or can get a message.
    pub(super) fn answer_polls(&mut self, now: Timestamp) {
        while let Some(n) =
            self.polls.iter().position(|poll| self.poll_due(poll).is_none_or(|due| due <= now))
        {
            let Poll { admitted, caller, .. } = self.polls.remove(n);
            self.reply(admitted, caller, now);
        }
    }

    /// When a poll is answered; `None`: at once, its queue is gone.
    fn poll_due(&self, poll: &Poll) -> Option<Timestamp> {
        let queue = self.queues.get(poll.admitted.queue())?;
        Some(queue.next_receivable().map_or(poll.until, |next| next.min(poll.until)))
    }

    fn reply(&mut self, admitted: Admitted, caller: Caller, now: Timestamp) {
        let reply = self.answer(admitted, now);
        // The caller may be gone; the request is carried out all the same.
        let _ = caller.caller.send(Sent { reply, way_back: caller.way_back });
    }

    /// When the first poll is answered.
    pub(super) fn next_poll(&self) -> Option<Timestamp> {
        self.polls.iter().map(|poll| self.poll_due(poll).unwrap_or(poll.until)).min()
    }

    /// How long a request travels there, and back.
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
        let ((mut sent, arrives), ahead) =
            self.script(|state, now| (state.send(request, now), state.shared.ahead));
        let sent = tokio::select! {
            biased;
            sent = &mut sent => sent,
            // An AWS whose `run` nobody drives answers too.
            () = self.clock().sleep_until(arrives) => {
                self.look(|_| ());
                sent.await
            }
        };
        let dated = date(later(self.clock().now(), ahead));
        let Sent { reply, way_back } = sent.map_err(|_| Lost)?;
        let Some(reply) = reply else { return std::future::pending().await };
        if !way_back.is_zero() {
            tokio::time::sleep(way_back).await;
        }
        reply.map(|reply| {
            let mut answer = response(reply.status, reply.content_type, reply.body);
            answer.headers_mut().insert(http::header::DATE, dated);
            if let Some((name, value)) = reply.error_header
                && let Ok(value) = http::HeaderValue::from_str(&value)
            {
                answer.headers_mut().insert(name, value);
            }
            answer
        })
    }
}
