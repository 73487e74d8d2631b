//! Large clusters stay fast. The test runner prints wall time; the assertions are on the work done.

use futures::StreamExt as _;
use futures::future::join_all;
use kube::api::EvictParams;
use kube::runtime::{WatchStreamExt as _, watcher};

use super::*;

#[tokio::test(start_paused = true)]
async fn ten_nodes_and_sixty_pods_live_for_twenty_minutes() {
    let sim = sim();
    for n in 0..10 {
        sim.cluster.add(node(&format!("n{n}")));
    }
    sim.cluster.add(daemon_set("kube-system/logs").log_shipper()).add(replica_set("web", 50));
    sim.running("web", 50).await;
    for n in 0..10 {
        let drained = format!("n{n}");
        sim.cordon(&drained).await;
        let here = running(&sim.cluster, "web").into_iter().filter(|(_, node)| *node == drained);
        for (pod, _) in here {
            sim.pods().evict(&pod, &EvictParams::default()).await.unwrap();
        }
        tokio::time::sleep(Duration::from_mins(2)).await;
        sim.nodes().uncordon(&drained).await.unwrap();
    }
    sim.running("web", 50).await;
}

#[tokio::test(start_paused = true)]
async fn three_hundred_nodes_drain_at_once_with_a_watch_each() {
    let sim = sim();
    for n in 0..300 {
        sim.cluster.add(node(&format!("n{n:03}")));
    }
    sim.cluster.add(daemon_set("kube-system/logs").log_shipper()).add(replica_set("web", 600));
    sim.running("web", 600).await;
    let mut watches = JoinSet::new();
    for n in 0..300 {
        let all: Api<Pod> = Api::all(sim.client.clone());
        let here = watcher(all, watcher::Config::default().fields(&format!("spec.nodeName=n{n:03}")));
        watches.spawn(here.touched_objects().for_each(|_| std::future::ready(())));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let pods = sim.pods();
    let evictions = running(&sim.cluster, "web").into_iter().map(|(pod, _)| {
        let pods = pods.clone();
        async move { pods.evict(&pod, &EvictParams::default()).await }
    });
    assert!(join_all(evictions).await.iter().all(Result::is_ok));
    sim.running("web", 600).await;
    assert_eq!(
        sim.cluster.count(|entry| matches!(entry.what, Event::PodAsked { by: By::Eviction, .. })),
        600
    );
}
