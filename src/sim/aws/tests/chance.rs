//! Whatever happens to a group, in any order, it keeps its invariants and settles at its desired capacity.

use super::*;

/// Does one thing at random.
fn act(rng: &mut fastrand::Rng, state: &mut State, now: Timestamp) {
    let ids: Vec<String> = state.groups["web"].instances.keys().cloned().collect();
    let Some(id) = rng.choice(&ids).cloned() else {
        state.launch_now("web", now);
        return;
    };
    match rng.u8(..9) {
        0 => state.terminate(&id, TerminationCause::Request, now),
        1 => drop(state.rebalance(&id, now)),
        2 => drop(state.rebalance_group("web", now)),
        3 => state.fail_health_check(&id, now),
        4 => state.refresh("web", now),
        5 => drop(state.launch_now("web", now)),
        6 => state.fail_launches("web", LaunchFailure::InsufficientCapacity, rng.u32(..4)),
        7 => state.set_state(&id, LifecycleState::Standby, now),
        _ => state.set_state(&id, LifecycleState::InService, now),
    }
}

/// The first violated invariant, if any.
fn flaw(state: &State) -> Option<String> {
    let group = &state.groups["web"];
    let held = [LifecycleState::PendingWait, LifecycleState::TerminatingWait];
    for instance in group.instances.values() {
        if instance.waits.is_empty() == held.contains(&instance.state) {
            return Some(format!("held without being held: {instance:?}"));
        }
    }
    let most = group.max + (group.max / 10).max(1);
    let total = group.capacity();
    (total > most as usize).then(|| format!("{total} instances, {most} allowed"))
}

#[tokio::test(start_paused = true)]
async fn a_group_comes_to_rest_after_whatever_befell_it() {
    for seed in 0..100 {
        let bench = bench();
        let hooks = [HookSpec::terminating("out").heartbeat(60), HookSpec::launching("in").heartbeat(30)];
        let [out, into] = hooks;
        bench.aws.add_group(
            web()
                .size(0, 6, 4)
                .zones(["us-east-1a", "us-east-1b"])
                .hook(out)
                .hook(into.by_default(HookResult::Continue)),
        );
        let mut rng = fastrand::Rng::with_seed(seed);
        for _ in 0..60 {
            bench.aws.script(|state, now| act(&mut rng, state, now));
            assert_eq!(bench.aws.script(|state, _| flaw(state)), None, "seed {seed}");
            bench.pass(rng.u64(..40)).await;
            assert_eq!(bench.aws.script(|state, _| flaw(state)), None, "seed {seed}");
        }
        bench.pass(24 * 3600).await;
        let group = bench.aws.group("web").expect("the group");
        assert_eq!(group.in_state(LifecycleState::InService).len(), 4, "seed {seed}: {group:?}");
        let standby = group.in_state(LifecycleState::Standby).len();
        assert_eq!((group.launches, group.instances.len()), (0, 4 + standby), "seed {seed}: {group:?}");
        let journal = bench.aws.journal();
        assert!(journal.is_sorted_by_key(|entry| entry.at), "seed {seed}");
    }
}
