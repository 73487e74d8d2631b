//! Scale-in protection while a size goes down: whatever happens in the middle of it, none of it stays.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use ebbtide::aws::{AutoScalingGroup, Aws};
use ebbtide::clock::Clock;
use ebbtide::cluster::Leadership;
use ebbtide::config::Config;
use ebbtide::groups::protection::{PROTECTION_TAG, Protection};
use ebbtide::groups::selector::Selectors;
use ebbtide::groups::{Group, Groups, Snapshot};
use ebbtide::k8s::InstanceId;
use ebbtide::provider::proto::{NodeGroupDecreaseTargetSizeRequest, NodeGroupIncreaseSizeRequest};
use ebbtide::provider::{Running, Sizing, SizingError};
use ebbtide::sim::aws::{
    Aws as SimulatedAws, Entry, Event, GroupSpec, HookSpec, LaunchFailure, LifecycleState, Lose, Operation,
    Refusal, State, TerminationCause, Timing, Trouble, Which,
};
use ebbtide::sim::http::{Lost, Request, Response, aws_client};
use ebbtide::sim::program::{Program, config, second};
use ebbtide::sim::span::Span;
use ebbtide::sim::world::World;
use ebbtide::telemetry::captured;
use jiff::{SignedDuration, Timestamp};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tonic::{Code, Status};

use crate::scene::{GONE, GROUP, SOON, Scene, code, eventually, group, late_launch};

/// More attempts than are made at a call.
const MANY: usize = 25;

/// The calls by which a size goes down, in their order: how often each has been made when the step is done.
const STEPS: [(Operation, usize); 5] = [
    (Operation::CreateTags, 1),
    (Operation::SetInstanceProtection, 1),
    (Operation::SetDesiredCapacity, 1),
    (Operation::SetInstanceProtection, 2),
    (Operation::DeleteTags, 1),
];

/// Another way into the same account.
pub(crate) fn somebody(world: &World) -> Aws {
    Aws::at(aws_client(Arc::new(world.aws.clone())))
}

/// Instances of a group that are protected, and those that are marked.
pub(crate) fn guarded(world: &World, group: &str) -> [BTreeSet<String>; 2] {
    let instances = world.aws.group(group).expect("a group").instances;
    let protected = instances.iter().filter(|i| i.protected).map(|i| i.id.clone());
    let marked = instances.iter().filter(|i| i.tags.contains_key(PROTECTION_TAG)).map(|i| i.id.clone());
    [protected.collect(), marked.collect()]
}

/// A group of three in service, the first protected by a person, and two that cannot be launched.
pub(crate) struct Short {
    pub(crate) scene: Scene,
    persons: BTreeSet<String>,
    pub(crate) before: Vec<String>,
    /// Calls to AWS so far that matter here.
    calls: Vec<(Operation, usize)>,
}

impl Short {
    async fn group() -> Self {
        Self::of(group(GROUP, 3)).await
    }

    pub(crate) async fn of(group: GroupSpec) -> Self {
        let scene = Scene::with([group]).await;
        let before = scene.in_service(GROUP);
        somebody(&scene.world).protect(&GROUP.into(), &ids(&before[..1]), true).await.expect("protected");
        scene.short_of(2).await;
        // Whatever the program does after its start is done.
        tokio::time::sleep(SOON).await;
        let calls = STEPS.map(|(operation, _)| (operation, scene.world.aws.calls(operation))).to_vec();
        Self { scene, persons: before[..1].iter().cloned().collect(), before, calls }
    }

    /// How often it was called since.
    fn calls(&self, of: Operation) -> usize {
        let earlier =
            self.calls.iter().find(|(operation, _)| *operation == of).map_or(0, |(_, calls)| *calls);
        self.scene.world.aws.calls(of) - earlier
    }

    /// Gives the two up, each call to AWS taking a moment, and comes back when a step has had its effect.
    async fn lower_until(&self, (operation, times): (Operation, usize)) -> JoinSet<Result<(), Status>> {
        self.scene.world.aws.delay(Duration::from_millis(100), Duration::ZERO);
        let mut client = self.scene.program.client();
        let request = NodeGroupDecreaseTargetSizeRequest { delta: -2, id: GROUP.into() };
        let mut call = JoinSet::new();
        call.spawn(async move { client.node_group_decrease_target_size(request).await.map(drop) });
        let done = |_: &World| self.calls(operation) == times;
        assert!(self.scene.world.until(SOON, done).await, "{operation}");
        call
    }

    /// Waits until only the person's protection is left, and makes sure that it stays so and nobody was ended.
    async fn ends_clean(&self) {
        self.keeps_those_from_before().await;
        let ended = |entry: &Entry| matches!(entry.what, Event::TerminationStarted { .. });
        assert!(!self.scene.world.aws.journal().iter().any(ended), "nobody had to go");
    }

    /// The same, save that those may go that came since.
    pub(crate) async fn keeps_those_from_before(&self) {
        let clean = |world: &World| guarded(world, GROUP) == [self.persons.clone(), BTreeSet::new()];
        assert!(self.scene.world.until(SOON, clean).await, "{:?}", guarded(&self.scene.world, GROUP));
        tokio::time::sleep(SOON).await;
        assert!(clean(&self.scene.world), "{:?}", guarded(&self.scene.world, GROUP));
        let in_service = self.scene.in_service(GROUP);
        assert!(self.before.iter().all(|instance| in_service.contains(instance)), "one had to go");
    }
}

/// What lowers sizes and protects instances, without the program around it.
pub(crate) struct Own {
    pub(crate) clock: Clock,
    pub(crate) groups: Arc<Groups>,
    pub(crate) protection: Arc<Protection>,
    pub(crate) sizing: Sizing,
    running: Running,
}

impl Own {
    pub(crate) fn with(aws: Aws, clock: Clock) -> Self {
        let groups = Arc::new(Groups::new(SOON));
        let protection = Arc::new(Protection::new(aws.clone(), Arc::clone(&groups), clock.clone()));
        let (selectors, running) = (Selectors::default(), Running::default());
        let sizing =
            Sizing::new(aws, selectors, Arc::clone(&groups), Arc::clone(&protection), running.clone());
        Self { clock, groups, protection, sizing, running }
    }

    /// Gives up the two that are missing.
    async fn lower(&self, short: &Short) -> Result<(), SizingError> {
        self.lower_to(&short.scene.world, 3).await
    }

    /// Lowers the size of the group, which protects whom nobody has protected yet.
    pub(crate) async fn lower_to(&self, world: &World, to: i32) -> Result<(), SizingError> {
        let lock = self.groups.lock_to_lower(&GROUP.into()).await;
        let group = world.aws.group(GROUP).expect("a group");
        let [protected, _] = guarded(world, GROUP);
        let in_service = group.in_state(LifecycleState::InService).into_iter();
        let to_protect: Vec<InstanceId> =
            in_service.filter(|id| !protected.contains(*id)).map(InstanceId::from).collect();
        let lowered =
            self.sizing.lower(&lock, group.desired as i32, to, &to_protect, self.clock.wall()).await;
        drop(lock);
        self.running.finish().await;
        lowered
    }

    /// Has the protection taken off when its time comes.
    pub(crate) async fn release(&self) {
        let leadership = Leadership::alone(self.clock.clone());
        let released = tokio::time::timeout(2 * SOON, Arc::clone(&self.protection).run(leadership));
        assert!(released.await.is_err(), "it goes on for ever");
    }
}

pub(crate) fn ids(instances: &[String]) -> Vec<InstanceId> {
    instances.iter().map(InstanceId::from).collect()
}

#[tokio::test(start_paused = true)]
async fn a_program_killed_while_a_size_goes_down_leaves_nothing_protected_when_it_is_started_again() {
    for step in STEPS {
        let mut short = Short::group().await;
        let call = short.lower_until(step).await;
        short.scene = short.scene.restarted().await;
        drop(call);
        short.ends_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_killed_program_that_did_not_lead_leaves_protected_is_released_by_the_one_that_leads() {
    let mut short = Short::group().await;
    let follower = Program::start(&short.scene.world, second(config()));
    let leader = std::mem::replace(&mut short.scene.program, follower);
    short.scene.answers().await;
    let call = short.lower_until((Operation::SetDesiredCapacity, 1)).await;
    std::mem::replace(&mut short.scene.program, leader).kill().await;
    drop(call);
    short.scene.world.aws.delay(Duration::ZERO, Duration::ZERO);
    // A program that is alive may still be at work on it.
    tokio::time::sleep(Duration::from_mins(10)).await;
    let others: BTreeSet<String> = short.before[1..].iter().cloned().collect();
    assert_eq!(guarded(&short.scene.world, GROUP)[1], others);
    tokio::time::sleep(Duration::from_mins(30)).await;
    short.ends_clean().await;
    let asked = short.scene.world.aws.calls(Operation::DescribeTags);
    tokio::time::sleep(Duration::from_hours(1)).await;
    assert!(short.scene.world.aws.calls(Operation::DescribeTags) - asked <= 4, "it costs next to no calls");
}

#[tokio::test(start_paused = true)]
async fn protected_instances_are_marked_and_a_persons_own_protection_is_not() {
    let short = Short::group().await;
    let mut call = short.lower_until((Operation::SetDesiredCapacity, 1)).await;
    let others: BTreeSet<String> = short.before[1..].iter().cloned().collect();
    let all: BTreeSet<String> = short.before.iter().cloned().collect();
    assert_eq!(guarded(&short.scene.world, GROUP), [all, others]);
    call.join_next().await.expect("the call").expect("no panic").expect("lowered");
    assert_eq!(short.scene.target().await, 3);
    short.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn protection_that_cannot_be_taken_off_is_taken_off_later_without_a_restart() {
    for operation in [Operation::SetInstanceProtection, Operation::DeleteTags] {
        let short = Short::group().await;
        let mut call = short.lower_until((Operation::SetDesiredCapacity, 1)).await;
        short.scene.world.aws.throttle_for(&[operation], Duration::from_mins(10));
        call.join_next().await.expect("the call").expect("no panic").expect("the size is set");
        tokio::time::sleep(Duration::from_mins(9)).await;
        assert_ne!(guarded(&short.scene.world, GROUP)[1], BTreeSet::new(), "{operation}");
        let unmarked = |world: &World| guarded(world, GROUP)[1].is_empty();
        assert!(short.scene.world.until(Duration::from_mins(6), unmarked).await, "{operation}");
        short.ends_clean().await;
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_that_is_lost_leaves_anything_behind() {
    for (operation, _) in STEPS {
        for lose in [Lose::BeforeEffect, Lose::AfterEffect] {
            for times in [1, MANY] {
                let short = Short::group().await;
                (0..times).for_each(|_| short.scene.world.aws.lose_next(operation, lose));
                let lowered = short.scene.decrease(-2).await;
                if matches!(operation, Operation::CreateTags | Operation::DeleteTags) {
                    assert_eq!(code(&lowered), Code::Ok, "{operation} {lose:?} {times}");
                }
                short.ends_clean().await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_goes_down_though_marks_are_denied() {
    let short = Short::group().await;
    for operation in [Operation::CreateTags, Operation::DeleteTags, Operation::DescribeTags] {
        short.scene.world.aws.deny(operation, true);
    }
    for size in [4, 3] {
        short.scene.decrease(-1).await.expect("lowered");
        assert_eq!(short.scene.target().await, size);
    }
    short.ends_clean().await;
    assert_eq!(short.calls(Operation::DeleteTags), 0, "there is nothing to delete");
}

#[tokio::test(start_paused = true)]
async fn a_second_smaller_size_that_is_refused_takes_off_no_protection_of_the_first_ones() {
    let short = Short::group().await;
    short.scene.decrease(-1).await.expect("lowered");
    tokio::time::sleep(Duration::from_secs(20)).await;
    let busy =
        Refusal { status: 400, code: "ScalingActivityInProgress", message: "an activity is in progress" };
    short.scene.world.aws.refuse_next(Operation::SetDesiredCapacity, busy, Lose::BeforeEffect, u32::MAX);
    assert!(short.scene.decrease(-1).await.is_err());
    // The group may look for a victim of the first one for longer than this.
    tokio::time::sleep(Duration::from_mins(1)).await;
    let all: BTreeSet<String> = short.before.iter().cloned().collect();
    assert_eq!(guarded(&short.scene.world, GROUP)[0], all);
    short.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_size_goes_down_in_time_though_nothing_is_heard_of_the_mark() {
    let short = Short::group().await;
    let aws = Aws::at(aws_client(Arc::new(WithoutMarks(short.scene.world.aws.clone()))));
    let own = Own::with(aws, short.scene.world.clock.clone());
    let began = Instant::now();
    own.lower(&short).await.expect("lowered");
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
    own.release().await;
    short.ends_clean().await;
}

/// As when the machine was suspended: what was decided before may be wrong by now.
#[tokio::test(start_paused = true)]
async fn a_size_that_was_decided_before_a_pause_is_not_set() {
    let short = Short::group().await;
    let own = Own::with(somebody(&short.scene.world), short.scene.world.clock.of_its_own());
    let suspended = own.clock.clone();
    let pause = move |_: &mut State, _| suspended.step(SignedDuration::from_mins(1));
    short.scene.world.aws.before_next(Operation::SetInstanceProtection, pause);
    own.lower(&short).await.expect_err("not any more");
    assert_eq!(short.scene.desired(), 5);
    own.lower(&short).await.expect("lowered");
    own.release().await;
    short.ends_clean().await;
}

/// As when somebody has raised it since the description: what lives of the larger size would go.
#[tokio::test(start_paused = true)]
async fn no_replacement_is_given_up_by_a_description_from_before_somebody_raised_the_size() {
    let short = Short::group().await;
    let own = Own::with(somebody(&short.scene.world), short.scene.world.clock.clone());
    let seen = |desired| {
        let name = GROUP.into();
        let asg = Arc::new(AutoScalingGroup { name, desired, ..AutoScalingGroup::default() });
        Snapshot::new(own.clock.now(), [Arc::new(Group { asg, ..Group::default() })])
    };
    let lock = own.groups.lock_to_lower(&GROUP.into()).await;
    own.groups.publish(seen(8));
    let refused = own.protection.give_up_one(lock.clone(), own.clock.now(), |_| false, || true).await;
    assert_eq!((refused.is_err(), short.scene.desired()), (true, 5));
    own.groups.publish(seen(5));
    let before_it_was_made = own.clock.now() - Duration::from_hours(24 * 365);
    let of_another = own.protection.give_up_one(lock.clone(), before_it_was_made, |_| false, || true).await;
    assert_eq!((of_another.expect("described"), short.scene.desired()), (false, 5));
    assert!(own.protection.give_up_one(lock, own.clock.now(), |_| false, || true).await.expect("lowered"));
    assert_eq!(short.scene.desired(), 4);
    own.release().await;
    short.ends_clean().await;
}

/// An AWS that never answers where marks are concerned.
struct WithoutMarks(SimulatedAws);

#[async_trait]
impl ebbtide::sim::http::World for WithoutMarks {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        if request.body().starts_with(b"Action=CreateTags") {
            std::future::pending::<()>().await;
        }
        self.0.call(request).await
    }
}

/// What a run wrote into its marks in the first second of a world.
const JUST_NOW: &str = "2026-01-01T00:00:00Z";

#[tokio::test(start_paused = true)]
async fn a_mark_that_no_run_has_left_strips_nobody_of_protection() {
    for value in ["", "true", "2025-12-30T00:00:00Z", "2026-01-02T00:00:00Z", "2199-01-01T00:00:00Z"] {
        let scene = Scene::with([group(GROUP, 2)]).await;
        let ours = scene.in_service(GROUP);
        somebody(&scene.world).protect(&GROUP.into(), &ids(&ours), true).await.expect("protected");
        somebody(&scene.world).tag_instances(&ids(&ours), PROTECTION_TAG, value).await.expect("tagged");
        let scene = scene.restarted().await;
        scene.answers().await;
        tokio::time::sleep(SOON).await;
        assert_eq!(scene.protected(), 2, "{value}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_run_is_taken_back_in_our_groups_and_left_alone_in_others() {
    let foreign = GroupSpec::named("foreign").size(0, 10, 1).already_running();
    let scene = Scene::with([group(GROUP, 3), foreign]).await;
    let (ours, theirs) = (scene.in_service(GROUP), scene.in_service("foreign"));
    let world = &scene.world;
    let marked = [&ours[..2], &theirs].concat();
    somebody(world).tag_instances(&ids(&marked), PROTECTION_TAG, JUST_NOW).await.expect("tagged");
    // The first was marked and no more, the second was protected too, the third is a person's.
    somebody(world).protect(&GROUP.into(), &ids(&ours[1..]), true).await.expect("protected");
    somebody(world).protect(&"foreign".into(), &ids(&theirs), true).await.expect("protected");
    let scene = scene.restarted().await;
    let persons = BTreeSet::from([ours[2].clone()]);
    let clean = |world: &World| guarded(world, GROUP) == [persons.clone(), BTreeSet::new()];
    assert!(scene.world.until(SOON, clean).await, "{:?}", guarded(&scene.world, GROUP));
    tokio::time::sleep(SOON).await;
    let theirs: BTreeSet<String> = theirs.into_iter().collect();
    assert_eq!(guarded(&scene.world, "foreign"), [theirs.clone(), theirs]);
    assert_eq!(scene.world.aws.calls(Operation::DescribeTags), 1, "once");
}

/// It runs beside a program that works, and releases what that one has left.
#[tokio::test(start_paused = true)]
async fn a_dry_run_takes_no_marks_over_and_tells_the_size_that_it_would_have_set_without_a_warning() {
    let mut short = Short::group().await;
    somebody(&short.scene.world)
        .tag_instances(&ids(&short.before[1..]), PROTECTION_TAG, JUST_NOW)
        .await
        .expect("tagged");
    let (log, _captured) = captured::log(tracing::Level::INFO);
    let dry_run = Program::start(&short.scene.world, Config { dry_run: true, ..config() });
    std::mem::replace(&mut short.scene.program, dry_run).kill().await;
    short.scene.answers().await;
    tokio::time::sleep(Duration::from_mins(20)).await;
    assert!(!log.text().contains("SetInstanceProtection"), "{}", log.text());
    assert_eq!(code(&short.scene.decrease(-2).await), Code::FailedPrecondition);
    tokio::time::sleep(Duration::from_mins(20)).await;
    let text = log.text();
    assert!(text.contains("autoscaling:SetDesiredCapacity web to 3"), "{text}");
    let warnings: Vec<_> =
        text.lines().filter(|line| line.contains("WARN ebbtide::groups::protection")).collect();
    assert!(warnings.is_empty(), "{warnings:#?}");
}

#[tokio::test(start_paused = true)]
async fn marks_are_looked_for_again_until_that_has_worked() {
    let scene = Scene::with([group(GROUP, 2)]).await;
    let ours = scene.in_service(GROUP);
    somebody(&scene.world).tag_instances(&ids(&ours), PROTECTION_TAG, JUST_NOW).await.expect("tagged");
    somebody(&scene.world).protect(&GROUP.into(), &ids(&ours), true).await.expect("protected");
    scene.world.aws.throttle_for(&[Operation::DescribeTags], Duration::from_hours(1));
    let scene = scene.restarted().await;
    scene.answers().await;
    tokio::time::sleep(Duration::from_mins(59)).await;
    assert_eq!(scene.protected(), 2);
    assert!(scene.world.until(Duration::from_mins(7), |_| scene.protected() == 0).await);
}

#[tokio::test(start_paused = true)]
async fn a_size_that_goes_down_right_after_another_is_protected_as_well() {
    let short = Short::group().await;
    short.scene.world.aws.delay(Duration::from_millis(300), Duration::ZERO);
    short.scene.decrease(-1).await.expect("lowered");
    assert_ne!(guarded(&short.scene.world, GROUP)[1], BTreeSet::new(), "the first is not through");
    short.scene.world.aws.before_next(Operation::SetDesiredCapacity, late_launch);
    short.scene.decrease(-1).await.expect("lowered");
    short.ends_clean().await;
}

#[tokio::test(start_paused = true)]
async fn a_size_that_a_person_lowers_meanwhile_counts_after_five_minutes() {
    let short = Short::group().await;
    short.scene.decrease(-2).await.expect("lowered");
    somebody(&short.scene.world).set_desired(&GROUP.into(), 2).await.expect("lowered by a person");
    tokio::time::sleep(Duration::from_mins(4)).await;
    assert_eq!((short.scene.protected(), short.scene.in_service(GROUP).len()), (3, 3));
    assert_eq!(short.scene.desired(), 2, "it is not raised again");
    assert!(short.scene.world.until(SOON, |_| short.scene.in_service(GROUP).len() == 2).await);
    let clean = |world: &World| guarded(world, GROUP) == [short.persons.clone(), BTreeSet::new()];
    assert!(short.scene.world.until(SOON, clean).await, "{:?}", guarded(&short.scene.world, GROUP));
}

#[tokio::test(start_paused = true)]
async fn a_size_that_somebody_sets_back_is_not_lowered_to_what_has_come_by_then() {
    let scene = Scene::on(World::plain(1), [group(GROUP, 3)]).await;
    scene.short_of(3).await;
    scene.decrease(-3).await.expect("lowered");
    tokio::time::sleep(Duration::from_secs(5)).await;
    // Of the three that somebody wants after all, one comes.
    scene.world.aws.script(|state, now| {
        state.set_desired(GROUP, 6, now);
        state.launch_now(GROUP, now);
    });
    tokio::time::sleep(GONE).await;
    assert_eq!((scene.desired(), scene.in_service(GROUP).len(), scene.protected()), (6, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn instances_that_come_before_others_go_are_no_surplus_for_good_after_a_size_went_down() {
    let scene = Scene::with([group(GROUP, 5)]).await;
    scene.short_of(1).await;
    // Three are interrupted, and their replacements begin to come just then.
    let interrupted = scene.in_service(GROUP)[..3].to_vec();
    let effect = move |state: &mut State, now: Timestamp| {
        state.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, 0);
        assert!(interrupted.iter().all(|instance| state.rebalance(instance, now)));
    };
    scene.world.aws.before_next(Operation::SetInstanceProtection, effect);
    scene.decrease(-1).await.expect("lowered");
    assert_eq!(scene.desired(), 5);
    let live = |world: &World| {
        let group = world.aws.group(GROUP).expect("a group");
        group.in_state(LifecycleState::InService).len() + group.in_state(LifecycleState::Pending).len()
    };
    assert!(scene.world.until(SOON, |world| live(world) == 8).await, "they come first");
    tokio::time::sleep(GONE).await;
    // Nothing tells that none of them is the one that was given up.
    assert_eq!((scene.desired(), scene.in_service(GROUP).len(), scene.protected()), (6, 6, 0));
}

#[tokio::test(start_paused = true)]
async fn all_that_come_after_a_size_went_down_time_and_again_stay() {
    let short = Short::group().await;
    short.scene.decrease(-1).await.expect("lowered");
    tokio::time::sleep(Duration::from_secs(30)).await;
    short.scene.decrease(-1).await.expect("lowered");
    for _ in 0..2 {
        short.scene.world.aws.script(late_launch);
    }
    short.ends_clean().await;
    assert_eq!((short.scene.desired(), short.scene.in_service(GROUP).len()), (5, 5));
}

#[tokio::test(start_paused = true)]
async fn what_is_taken_back_is_not_taken_from_a_size_that_goes_down_at_that_moment() {
    // The call comes a little before, while and after the new run takes back what the last one has left.
    for tenths in (80..125).step_by(5) {
        let short = Short::group().await;
        let left = short.before[1..].to_vec();
        somebody(&short.scene.world)
            .tag_instances(&ids(&left), PROTECTION_TAG, JUST_NOW)
            .await
            .expect("tagged");
        somebody(&short.scene.world).protect(&GROUP.into(), &ids(&left), true).await.expect("protected");
        let scene = short.scene.restarted().await;
        let started = Instant::now();
        scene.answers().await;
        scene.world.aws.delay(Duration::from_millis(500), Duration::ZERO);
        scene.world.aws.before_next(Operation::SetDesiredCapacity, late_launch);
        tokio::time::sleep_until(started + Duration::from_millis(100 * tenths)).await;
        // It may have to wait for its turn so long that it does not hear the end.
        let lower = || async { scene.decrease(-2).await.is_ok() || scene.desired() == 3 };
        assert!(eventually(SOON, lower).await);
        let persons = short.persons.clone();
        assert!(
            scene
                .world
                .until(SOON, |world| guarded(world, GROUP) == [persons.clone(), BTreeSet::new()])
                .await
        );
        tokio::time::sleep(SOON).await;
        // The late one has come to stay, and nobody had to go for it.
        let in_service: BTreeSet<String> = scene.in_service(GROUP).into_iter().collect();
        assert!(short.before.iter().all(|instance| in_service.contains(instance)), "{tenths}");
        assert_eq!((in_service.len(), scene.desired()), (4, 4), "{tenths}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_comes_while_the_others_are_about_to_be_released_is_released_later() {
    for seconds in [100, 105, 110, 115] {
        let short = Short::group().await;
        short.scene.decrease(-1).await.expect("lowered");
        // Protecting it takes until after the others may be released.
        let slow = Duration::from_secs(3);
        short.scene.world.aws.delay(slow / 2, Duration::ZERO);
        short.scene.world.aws.delay_some(&[Operation::SetInstanceProtection], 1.0, slow, slow);
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        short.scene.world.aws.script(late_launch);
        short.ends_clean().await;
    }
}

/// A launch takes so long, and the group looks for a victim 91 s after its size was lowered.
fn looks_after_91_seconds(launch: Duration) -> Timing {
    let scale_in = Span::exactly(Duration::from_secs(91));
    Timing { launch: Span::exactly(launch), scale_in, ..Timing::PUBLISHED }
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_is_not_recalled_stays_though_a_description_has_left_its_group_out_meanwhile() {
    let timing = looks_after_91_seconds(Duration::from_mins(1));
    let scene = Scene::with([group(GROUP, 3).timing(timing)]).await;
    scene.increase(1).await.expect("grown");
    tokio::time::sleep(Duration::from_secs(5)).await;
    scene.decrease(-1).await.expect("lowered");
    // The size that was set is checked every ten seconds.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let descriptions = Which::of(&[Operation::DescribeAutoScalingGroups]).lasting(Duration::from_secs(10));
    scene.world.aws.trouble(descriptions, Trouble::Without(GROUP.to_owned()));
    tokio::time::sleep(SOON).await;
    assert_eq!((scene.in_service(GROUP).len(), scene.desired(), scene.protected()), (4, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_launch_that_is_not_recalled_costs_nobody_though_the_group_looks_for_a_victim_91_seconds_later() {
    let timing = looks_after_91_seconds(Duration::from_mins(1));
    let scene = Scene::with([group(GROUP, 3).timing(timing)]).await;
    let before = scene.in_service(GROUP);
    scene.increase(1).await.expect("grown");
    tokio::time::sleep(Duration::from_secs(5)).await;
    scene.decrease(-1).await.expect("lowered");
    tokio::time::sleep(SOON).await;
    let in_service = scene.in_service(GROUP);
    assert!(before.iter().all(|instance| in_service.contains(instance)), "nobody had to go for it");
    assert_eq!((in_service.len() as u32, scene.protected()), (scene.desired(), 0));
}

#[tokio::test(start_paused = true)]
async fn launches_that_are_not_recalled_cost_nobody_though_they_come_one_after_the_other() {
    let timing = looks_after_91_seconds(Duration::from_secs(40));
    let scene = Scene::with([group(GROUP, 3).timing(timing)]).await;
    let before = scene.in_service(GROUP);
    for seconds in [30, 5] {
        scene.increase(1).await.expect("grown");
        tokio::time::sleep(Duration::from_secs(seconds)).await;
    }
    scene.decrease(-2).await.expect("lowered");
    assert!(scene.world.until(SOON, |_| scene.desired() == 4).await, "one has come");
    tokio::time::sleep(GONE).await;
    let in_service = scene.in_service(GROUP);
    assert!(before.iter().all(|instance| in_service.contains(instance)), "nobody had to go for the other");
    assert_eq!((in_service.len(), scene.desired(), scene.protected()), (5, 5, 0));
}

#[tokio::test(start_paused = true)]
async fn a_node_that_joined_before_its_instance_was_in_service_is_protected_as_soon_as_that_can_be() {
    let timing = Timing { scale_in: Span::exactly(Duration::from_mins(1)), ..Timing::PUBLISHED };
    let hook = HookSpec::launching("bootstrap");
    let scene = Scene::with([group(GROUP, 3).hook(hook).timing(timing)]).await;
    scene.increase(1).await.expect("grown");
    let waiting = |world: &World| {
        let group = world.aws.group(GROUP).expect("a group");
        group.in_state(LifecycleState::PendingWait).first().map(|&id| id.to_owned())
    };
    assert!(scene.world.until(SOON, |world| waiting(world).is_some()).await);
    let joined = waiting(&scene.world).expect("one waits");
    scene.short_of(1).await;
    scene.decrease(-1).await.expect("lowered");
    // What was given up comes all the same, and the size cannot be raised for it for as long as a group may take to look for a
    // victim.
    scene.world.aws.throttle_for(&[Operation::SetDesiredCapacity], Duration::from_secs(100));
    scene.world.aws.script(late_launch);
    somebody(&scene.world)
        .complete(&GROUP.into(), "bootstrap", &joined.as_str().into())
        .await
        .expect("completed by whoever it is");
    // And the first tries to protect it fail.
    scene.world.aws.throttle_for(&[Operation::SetInstanceProtection], Duration::from_secs(20));
    let is_guarded = |world: &World| guarded(world, GROUP).iter().all(|ids| ids.contains(&joined));
    assert!(scene.world.until(SOON, is_guarded).await, "{:?}", guarded(&scene.world, GROUP));
    tokio::time::sleep(GONE).await;
    let ended = |entry: &Entry| matches!(entry.what, Event::TerminationStarted { .. });
    assert!(!scene.world.aws.journal().iter().any(ended), "nobody had to go");
    assert_eq!((scene.in_service(GROUP).len(), scene.desired(), scene.protected()), (5, 5, 0));
    assert_eq!(guarded(&scene.world, GROUP), [BTreeSet::new(), BTreeSet::new()]);
}

#[tokio::test(start_paused = true)]
async fn more_instances_than_a_call_takes_are_protected_by_several() {
    let world = World::new(1);
    world.aws.add_group(group(GROUP, 120).size(0, 120, 120));
    let all: Vec<String> =
        world.aws.group(GROUP).expect("a group").instances.into_iter().map(|i| i.id).collect();
    somebody(&world).protect(&GROUP.into(), &ids(&all), true).await.expect("protected");
    assert_eq!(guarded(&world, GROUP)[0].len(), 120);
    assert_eq!(world.aws.calls(Operation::SetInstanceProtection), 3, "50 a call");
}

#[tokio::test(start_paused = true)]
async fn a_size_goes_down_after_a_few_tries_though_protecting_takes_longer_than_anybody_waits() {
    let scene = Scene::with([group(GROUP, 240).size(0, 300, 240)]).await;
    scene.short_of(2).await;
    // Five calls, four at a time: the second round is over after whoever asked has given up, and in time for itself.
    let takes = Duration::from_secs(2);
    scene.world.aws.delay_some(&[Operation::SetInstanceProtection], 1.0, takes, takes);
    let mut tries = 1;
    while scene.decrease(-2).await.is_err() {
        tries += 1;
        assert!(tries <= 3, "it starts from zero each time");
        // Placeholders bear no errors for half a minute, and cluster-autoscaler's next loop comes after that.
        tokio::time::sleep(Duration::from_secs(40)).await;
    }
    assert!(tries > 1, "one try is not enough here");
    assert_eq!(scene.desired(), 240);
    assert!(scene.world.until(SOON, |_| scene.protected() == 0).await);
    tokio::time::sleep(SOON).await;
    assert_eq!((scene.in_service(GROUP).len(), scene.protected()), (240, 0));
    assert_eq!(guarded(&scene.world, GROUP)[1], BTreeSet::new());
}

#[tokio::test(start_paused = true)]
async fn an_instance_that_leaves_at_the_last_moment_does_not_keep_a_size_from_going_down() {
    type Leave = fn(&mut State, &str, Timestamp);
    let ways: [Leave; 2] = [
        |state, instance, now| state.terminate(instance, TerminationCause::Rebalance, now),
        |state, instance, now| state.detach(instance, false, now),
    ];
    for leave in ways {
        let scene = Scene::with([group(GROUP, 3)]).await;
        scene.short_of(1).await;
        let leaving = scene.in_service(GROUP).remove(1);
        let effect = move |state: &mut State, now| leave(state, &leaving, now);
        scene.world.aws.before_next(Operation::SetInstanceProtection, effect);
        scene.decrease(-1).await.expect("lowered");
        assert_eq!((scene.desired(), scene.protected()), (3, 2));
        scene.world.aws.fail_launches(GROUP, LaunchFailure::InsufficientCapacity, 0);
        assert!(scene.world.until(SOON, |_| scene.in_service(GROUP).len() == 3).await);
        tokio::time::sleep(SOON).await;
        assert_eq!((scene.in_service(GROUP).len(), scene.protected()), (3, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn a_size_that_somebody_lowers_at_the_last_moment_is_not_raised_again_by_one_that_was_to_lower_it() {
    // Old answers would not show it.
    let scene = Scene::on(World::plain(1), [group(GROUP, 3)]).await;
    scene.short_of(2).await;
    let leaving = scene.in_service(GROUP).remove(1);
    let effect = move |state: &mut State, now: Timestamp| {
        state.detach(&leaving, true, now);
        state.set_desired(GROUP, 2, now);
    };
    scene.world.aws.before_next(Operation::SetInstanceProtection, effect);
    let answer = scene.decrease(-1).await;
    assert_eq!((code(&answer), scene.desired()), (Code::Unavailable, 2), "{answer:?}");
}

#[tokio::test(start_paused = true)]
async fn protection_that_is_refused_in_words_nobody_knows_may_be_granted_in_the_next_loop() {
    let scene = Scene::with([group(GROUP, 3)]).await;
    scene.short_of(1).await;
    let unknown = Refusal { code: "ValidationError", status: 400, message: "something new" };
    let operation = Operation::SetInstanceProtection;
    scene.world.aws.refuse_next(operation, unknown, Lose::BeforeEffect, u32::MAX);
    assert_eq!(code(&scene.decrease(-1).await), Code::Unavailable);
    assert_eq!((scene.desired(), scene.protected()), (4, 0));
    scene.world.aws.refuse_next(operation, unknown, Lose::BeforeEffect, 0);
    scene.decrease(-1).await.expect("lowered");
}

#[tokio::test(start_paused = true)]
async fn of_many_groups_whose_sizes_go_down_none_waits_until_all_others_have_been_looked_at() {
    let names: Vec<String> = (0..24).map(|n| format!("group-{n}")).collect();
    let groups = names.iter().map(|name| group(name, 1));
    let scene = Scene::on(World::plain(1), groups).await;
    let mut client = scene.program.client();
    for name in &names {
        scene.world.aws.fail_launches(name, LaunchFailure::InsufficientCapacity, u32::MAX);
        let grow = NodeGroupIncreaseSizeRequest { delta: 1, id: name.clone() };
        client.node_group_increase_size(grow).await.expect("grown");
        let lower = NodeGroupDecreaseTargetSizeRequest { delta: -1, id: name.clone() };
        client.node_group_decrease_target_size(lower).await.expect("lowered");
    }
    let takes = Duration::from_secs(2);
    scene.world.aws.delay_some(&[Operation::DescribeAutoScalingGroups], 1.0, takes, takes);
    // Each is protected for two minutes, and looked at every ten seconds.
    tokio::time::sleep(Duration::from_secs(145)).await;
    let still: Vec<_> = names.iter().filter(|name| !guarded(&scene.world, name)[0].is_empty()).collect();
    assert!(still.is_empty(), "{still:?}");
}

#[tokio::test(start_paused = true)]
async fn what_has_its_root_volume_replaced_while_it_is_protected_is_released_when_it_is_back() {
    let short = Short::group().await;
    drop(short.lower_until(STEPS[2]).await);
    let instance = short.before[1].clone();
    short.scene.world.aws.set_state(&instance, LifecycleState::ReplacingRootVolumeWait);
    // Long after all others have been released.
    tokio::time::sleep(Duration::from_mins(20)).await;
    let [protected, marked] = guarded(&short.scene.world, GROUP);
    assert_eq!((protected.contains(&instance), marked), (true, [instance.clone()].into()));
    // A description that leaves it out says nothing.
    let descriptions = Which::of(&[Operation::DescribeAutoScalingGroups]).times(1);
    short.scene.world.aws.trouble(descriptions, Trouble::Without(instance.clone()));
    tokio::time::sleep(Duration::from_mins(1)).await;
    short.scene.world.aws.set_state(&instance, LifecycleState::InService);
    tokio::time::sleep(Duration::from_mins(10)).await;
    assert_eq!(guarded(&short.scene.world, GROUP), [short.persons.clone(), BTreeSet::new()]);
}
