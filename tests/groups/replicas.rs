//! Sizes that a process is about to set in a group when it is stopped, while others set another one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ebbtide::aws::Aws;
use ebbtide::clock::Clock;
use ebbtide::sim::aws::{Aws as SimulatedAws, Behaviour, Operation, Timing};
use ebbtide::sim::http::{Lost, Request, Response, World as Service, aws_client};
use ebbtide::sim::span::Span;
use jiff::SignedDuration;

use crate::protection::{Own, Short};
use crate::scene::{GROUP, group, late_launch};

/// A short group that looks for a victim so long after its size went down.
async fn looking_after(seconds: u64) -> Short {
    let scale_in = Span::exactly(Duration::from_secs(seconds));
    Short::of(group(GROUP, 3).timing(Timing { scale_in, ..Timing::PUBLISHED })).await
}

/// The AWS of a process that is stopped for so long when it is told of the group for the `nth` time, while somebody sets another size, and
/// another process comes to lead.
struct Stopped {
    aws: SimulatedAws,
    clock: Clock,
    nth: usize,
    time: SignedDuration,
    described: AtomicUsize,
    leads: Arc<AtomicBool>,
}

impl Stopped {
    /// The process, and whether it leads.
    fn own(short: &Short, nth: usize, time: SignedDuration) -> (Own, Arc<AtomicBool>) {
        let leads = Arc::new(AtomicBool::new(true));
        let (aws, clock) = (short.scene.world.aws.clone(), short.scene.world.clock.of_its_own());
        aws.behave(Behaviour { stale: Span::NONE, gaps: 0.0, ..Behaviour::HARSH });
        let described = AtomicUsize::new(0);
        let stopped = Self { aws, clock: clock.clone(), nth, time, described, leads: Arc::clone(&leads) };
        (Own::with(Aws::at(aws_client(Arc::new(stopped))), clock), leads)
    }
}

#[async_trait]
impl Service for Stopped {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let describes = request.body().starts_with(b"Action=DescribeAutoScalingGroups");
        let answer = self.aws.call(request).await;
        if describes && self.described.fetch_add(1, Ordering::Relaxed) + 1 == self.nth {
            self.clock.step(self.time);
            self.leads.store(false, Ordering::Relaxed);
            self.aws.set_desired(GROUP, 7);
        }
        answer
    }
}

#[tokio::test(start_paused = true)]
async fn no_replacement_is_given_up_by_a_description_from_before_a_pause() {
    // Known by the clock, or by the lead.
    for (seconds, is_known_by_lead) in [(60, false), (0, true)] {
        let short = looking_after(60).await;
        let (own, leads) = Stopped::own(&short, 1, SignedDuration::from_secs(seconds));
        let lock = own.groups.lock_to_lower(&GROUP.into()).await;
        let leads = || !is_known_by_lead || leads.load(Ordering::Relaxed);
        let given_up = own.protection.give_up_one(lock, |_| false, leads).await;
        assert_eq!((given_up.is_err(), short.scene.desired()), (true, 7), "{given_up:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn no_size_is_raised_again_by_a_description_from_before_a_pause() {
    let short = looking_after(60).await;
    let (own, _) = Stopped::own(&short, 2, SignedDuration::from_mins(1));
    short.scene.world.aws.before_next(Operation::SetDesiredCapacity, late_launch);
    own.lower_to(&short.scene.world, 3).await.expect("lowered");
    assert_eq!(short.scene.desired(), 7);
}
