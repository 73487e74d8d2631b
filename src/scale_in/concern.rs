//! Which of the news that all workers hear is of concern to one of them. A plan looks at all pods of a node, and of each of hundreds of
//! instances that are held at once there is something new every few seconds.

use std::future::pending;

use tokio::sync::watch;

use super::context::Shared;
use super::holds::Hold;
use super::notices::Noticed;
use crate::k8s::InstanceId;

/// What a plan was made of that is told of all instances at once.
#[derive(Debug, Default)]
pub(super) struct PlannedWith {
    /// How our hook holds the instance.
    pub(super) hold: Option<Hold>,
    /// AWS's notices about the instance.
    pub(super) notices: Vec<Noticed>,
    /// Whether the plan asked for its turn among those of its group, which goes by the notices about all of them.
    pub(super) turn: bool,
}

impl PlannedWith {
    /// What is known now.
    pub(super) fn now(shared: &Shared, instance: Option<&InstanceId>) -> Self {
        Self { hold: hold(shared, instance), notices: notices(shared, instance), turn: false }
    }

    /// Waits until the instance is held in another way.
    pub(super) async fn hold_changes<T>(
        &self,
        shared: &Shared,
        instance: Option<&InstanceId>,
        versions: &mut watch::Receiver<T>,
    ) {
        of_concern(versions, || self.hold != hold(shared, instance)).await;
    }

    /// Waits until a notice comes or lapses that the plan goes by.
    pub(super) async fn notices_change<T>(
        &self,
        shared: &Shared,
        instance: Option<&InstanceId>,
        versions: &mut watch::Receiver<T>,
    ) {
        of_concern(versions, || self.turn || self.notices != notices(shared, instance)).await;
    }
}

fn hold(shared: &Shared, instance: Option<&InstanceId>) -> Option<Hold> {
    instance.and_then(|instance| shared.holds.of(instance))
}

fn notices(shared: &Shared, instance: Option<&InstanceId>) -> Vec<Noticed> {
    instance.map(|instance| shared.notices.about(instance)).unwrap_or_default()
}

/// Waits for a change that is of concern; for ever once nobody tells any more.
async fn of_concern<T>(versions: &mut watch::Receiver<T>, is_of_concern: impl Fn() -> bool) {
    while versions.changed().await.is_ok() {
        if is_of_concern() {
            return;
        }
    }
    pending::<()>().await;
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn only_what_is_of_concern_wakes_a_worker_and_that_is_not_missed_before_it_waits() {
        let (news, mut heard) = watch::channel(0);
        let concerns = Cell::new(false);
        let mut wakes = || of_concern(&mut heard, || concerns.get()).now_or_never().is_some();
        assert!(!wakes(), "nothing is new");
        news.send_replace(1);
        assert!(!wakes(), "that was of others");
        concerns.set(true);
        assert!(!wakes(), "nothing is new");
        news.send_replace(2);
        assert!(wakes());
        assert!(!wakes(), "it was heard");
        news.send_replace(3);
        drop(news);
        assert!(wakes());
        assert!(!wakes(), "nobody tells any more");
    }
}
