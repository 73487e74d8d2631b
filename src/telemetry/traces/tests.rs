use tokio::time::Instant;

use super::collector::{Collector, Mood};
use super::*;

fn trace(name: &str) -> Trace {
    let (begin, end) = (Timestamp::UNIX_EPOCH, Timestamp::UNIX_EPOCH);
    let (attributes, events, children) = (Vec::new(), Vec::new(), Vec::new());
    let name = name.to_owned();
    let id = TraceId::of(&name);
    Trace { id, root: Span { name, is_call: false, begin, end, attributes, events, error: None, children } }
}

fn counted(traces: &Traces) -> [u64; 2] {
    [Outcome::sent, Outcome::dropped].map(|outcome| traces.counts.0.get_or_create(&Labels { outcome }).get())
}

#[test]
fn an_id_is_that_of_the_algorithm() {
    // https://datatracker.ietf.org/doc/draft-eastlake-fnv/, test values of FNV-1a of 128 bits.
    assert_eq!(TraceId::of("").to_string(), "6c62272e07bb014262b821756295c58d");
    assert_eq!(TraceId::of("a").to_string(), "d228cb696f1a8caf78912b704e4a8964");
}

#[tokio::test(start_paused = true)]
async fn what_is_left_at_the_stop_is_sent_and_a_silent_collector_is_given_two_seconds() {
    for (mood, expected, most) in [(Mood::Listens, [2, 0], 0), (Mood::IsSilent, [0, 2], 2)] {
        let (collector, channel) = Collector::new(mood);
        let (traces, exporter) = Traces::to(channel);
        let stop = CancellationToken::new();
        traces.tell(trace("a"));
        traces.tell(trace("b"));
        stop.cancel();
        let began = Instant::now();
        exporter.run(stop).await;
        assert_eq!(counted(&traces), expected, "{mood:?}");
        assert!(began.elapsed() <= Duration::from_secs(most), "{mood:?}: {:?}", began.elapsed());
        assert_eq!(collector.spans().len() as u64, expected[0]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_collector_does_not_take_is_sent_again_then_dropped_and_counted() {
    for (mood, tries_last) in [(Mood::IsBusy, 36), (Mood::IsAway, 36), (Mood::IsSilent, 76)] {
        let (collector, channel) = Collector::new(mood);
        let (traces, exporter) = Traces::to(channel);
        let stop = CancellationToken::new();
        let told = async {
            traces.tell(trace("dropped"));
            sleep(Duration::from_secs(tries_last + 1)).await;
            assert_eq!(counted(&traces), [0, 1], "{mood:?}");
            traces.tell(trace("late"));
            sleep(Duration::from_millis(500)).await;
            collector.turns(Mood::Listens);
            sleep(Duration::from_secs(20)).await;
            assert_eq!(counted(&traces), [1, 1], "{mood:?}: again when it listens");
            collector.turns(Mood::IsSilent);
            (0..2 * WAITING + AT_ONCE).for_each(|n| traces.tell(trace(&n.to_string())));
            let [_, dropped] = counted(&traces);
            assert!(dropped > WAITING as u64, "no more wait than there is room for: {dropped}");
            stop.cancel();
        };
        futures::join!(exporter.run(stop.clone()), told);
        let names: Vec<_> = collector.spans().into_iter().map(|span| span.name).collect();
        assert_eq!(names, ["late"], "{mood:?}");
    }
}
