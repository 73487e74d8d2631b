//! Small worlds, all of them: two nodes, three pods, two replicas, and every course that departs from the undisturbed one up to a few
//! times, anywhere.
//!
//! ```text
//!  the first event in order ── the undisturbed course ─────────────────────────▶ both nodes have left
//!     any other event ─────── a departure: stale views, lost answers, crashes, another leader, time that passes
//! ```
//!
//! What is decided is decided by production: [`plan`] on what a replica has seen, [`Memory`] for what it was told. The API server and
//! AWS are a few lines each in [`world`]. A state that was there before, with as many departures left, is not gone through again.

#![expect(clippy::print_stdout, reason = "how much was gone through, for docs/testing.md")]

mod apis;
mod world;

use std::collections::HashMap;
use std::sync::Arc;

use self::world::{Broken, Event, Place, World};

/// Events after which the undisturbed course has long ended.
const LONGEST: usize = 400;

/// A course so far, last event first.
struct Course(Event, Option<Arc<Course>>);

fn told(course: Option<&Arc<Course>>) -> String {
    let mut events = Vec::new();
    let mut next = course;
    while let Some(course) = next {
        events.push(format!("{:?}", course.0));
        next = course.1.as_ref();
    }
    events.reverse();
    events.join("\n  ")
}

/// How much was gone through.
#[derive(Debug, Default)]
struct Seen {
    states: usize,
    events: usize,
    longest: usize,
}

/// Goes through every course of up to so many departures. An error is what does not hold, and after which events.
fn all(broken: Broken, departures: u8) -> Result<Seen, String> {
    let mut best: HashMap<u64, u8> = HashMap::new();
    let mut seen = Seen::default();
    let mut open: Vec<(World, u8, usize, Option<Arc<Course>>)> =
        vec![(World::new(broken), departures, 0, None)];
    while let Some((world, left, steps, course)) = open.pop() {
        let before = best.insert(world.key(), left);
        if let Some(before) = before.filter(|before| *before >= left) {
            best.insert(world.key(), before);
            continue;
        }
        seen.states += usize::from(before.is_none());
        seen.longest = seen.longest.max(steps);
        if world.is_over() {
            let done = (world.decrements, world.completed >= 1, world.places);
            if done != ([1, 0], true, [Place::Gone; 2]) {
                return Err(format!("over with {done:?} after\n  {}", told(course.as_ref())));
            }
            continue;
        }
        if steps == LONGEST {
            return Err(format!("it does not end:\n  {}", told(course.as_ref())));
        }
        for (n, event) in world.events().into_iter().enumerate() {
            let Some(left) = left.checked_sub(u8::from(n > 0)) else { break };
            let course = Some(Arc::new(Course(event.clone(), course.clone())));
            let mut next = world.clone();
            seen.events += 1;
            next.happen(&event).map_err(|what| format!("{what}, after\n  {}", told(course.as_ref())))?;
            open.push((next, left, steps + 1, course));
        }
    }
    Ok(seen)
}

#[test]
fn whatever_is_lost_late_or_dies_nothing_is_cut_and_everything_ends() {
    let seen = all(Broken::Nothing, 1).unwrap_or_else(|what| panic!("{what}"));
    println!("{seen:?}");
    assert!(seen.states > 1_000, "{seen:?}");
}

#[test]
#[ignore = "minutes; docs/testing.md has the command"]
fn the_same_with_a_departure_more() {
    println!("{:?}", all(Broken::Nothing, 2).unwrap_or_else(|what| panic!("{what}")));
}

#[test]
fn a_program_that_leaves_out_the_note_of_a_termination_is_found_out() {
    let what = all(Broken::NotesNoTermination, 1).expect_err("found");
    assert!(what.contains("goes down 2 times"), "{what}");
}

#[test]
#[ignore = "half a minute; docs/testing.md has the command"]
fn so_is_one_that_acts_before_it_records_or_takes_unlisted_pods_for_gone() {
    for (broken, expected) in
        [(Broken::ActsBeforeItRecords, "goes down 2 times"), (Broken::TakesUnlistedPodsForGone, "ends under")]
    {
        let what = all(broken, 2).expect_err("found");
        assert!(what.contains(expected), "{broken:?}: {what}");
    }
}
