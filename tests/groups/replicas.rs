//! Sizes that two processes set in one group, and one that was stopped while it was about to.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use ebbtide::aws::Aws;
use ebbtide::clock::Clock;
use ebbtide::groups::protection::PROTECTION_TAG;
use ebbtide::groups::{Group, Snapshot};
use ebbtide::sim::aws::{Aws as SimulatedAws, Behaviour, Operation, Timing};
use ebbtide::sim::http::{Lost, Request, Response, World as Service, aws_client};
use ebbtide::sim::span::Span;
use jiff::SignedDuration;

use crate::protection::{Own, Short, guarded, ids, somebody};
use crate::scene::{GROUP, group, late_launch};

const MINUTE: Duration = Duration::from_mins(1);

/// A short group that looks for a victim so long after its size went down.
async fn looking_after(seconds: u64) -> Short {
    let scale_in = Span::exactly(Duration::from_secs(seconds));
    Short::of(group(GROUP, 3).timing(Timing { scale_in, ..Timing::PUBLISHED })).await
}

fn own(short: &Short) -> Own {
    Own::with(somebody(&short.scene.world), short.scene.world.clock.clone())
}

/// An instance comes after all, right before the group looks for a victim for the size that was set just now.
async fn comes_before_the_look(short: &Short, seconds: u64) {
    tokio::time::sleep(Duration::from_millis(1_000 * seconds - 500)).await;
    short.scene.world.aws.script(late_launch);
}

/// The first one's two minutes are over by then.
#[tokio::test(start_paused = true)]
async fn a_size_that_another_process_lowers_a_minute_later_costs_nobody_when_the_first_ones_time_is_over() {
    for looks in 60..=75 {
        let short = looking_after(looks).await;
        let (first, second, world) = (own(&short), own(&short), &short.scene.world);
        let course = async {
            first.lower_to(world, 4).await.expect("lowered");
            tokio::time::sleep(MINUTE).await;
            second.lower_to(world, 3).await.expect("lowered");
            comes_before_the_look(&short, looks).await;
        };
        tokio::join!(course, first.release(), second.release());
        short.keeps_those_from_before().await;
    }
}

/// It knows what is protected by its marks alone, and not since when.
#[tokio::test(start_paused = true)]
async fn a_process_that_takes_marks_over_leaves_those_alone_that_another_one_needs_for_its_next_size() {
    for looks in 65..=80 {
        let short = looking_after(looks).await;
        let (first, leader, world) = (own(&short), own(&short), &short.scene.world);
        let course = async {
            first.lower_to(world, 4).await.expect("lowered");
            let seen = loop {
                let seen = somebody(world).describe_group_now(&GROUP.into()).await.expect("described");
                if let Some(seen) = seen.filter(|seen| seen.instances.len() >= 3) {
                    break seen;
                }
            };
            let seen = Group { asg: Arc::new(seen), ..Group::default() };
            leader.groups.publish(Snapshot::new(leader.clock.now(), [Arc::new(seen)]));
            tokio::time::sleep(MINUTE).await;
            first.lower_to(world, 3).await.expect("lowered");
            comes_before_the_look(&short, looks).await;
        };
        tokio::join!(course, first.release(), leader.release());
        short.keeps_those_from_before().await;
    }
}

/// An AWS for which another process marks an instance anew before a mark is taken off.
struct MarkedAnew(SimulatedAws, String);

const ANEW: &str = "2026-01-01T00:05:00Z";

#[async_trait]
impl Service for MarkedAnew {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        if request.body().starts_with(b"Action=DeleteTags") {
            let other = Aws::at(aws_client(Arc::new(self.0.clone())));
            other
                .tag_instances(&ids(std::slice::from_ref(&self.1)), PROTECTION_TAG, ANEW)
                .await
                .expect("marked");
        }
        self.0.call(request).await
    }
}

/// Without it, the next run would not find what the other one leaves if it is killed.
#[tokio::test(start_paused = true)]
async fn a_mark_that_another_process_has_put_on_an_instance_meanwhile_stays() {
    let short = looking_after(60).await;
    let (world, anew) = (&short.scene.world, short.before[1].clone());
    let aws = Aws::at(aws_client(Arc::new(MarkedAnew(world.aws.clone(), anew.clone()))));
    let own = Own::with(aws, world.clock.clone());
    own.lower_to(world, 3).await.expect("lowered");
    assert_eq!(guarded(world, GROUP)[1].len(), 2);
    own.release().await;
    assert_eq!(guarded(world, GROUP)[1], [anew].into());
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
        let given_up = own.protection.give_up_one(lock, own.clock.now(), |_| false, leads).await;
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
