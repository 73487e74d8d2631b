//! The way of a process to a world, for processes that are stopped for a while and go on (`SIGSTOP`, a machine that swaps, a hypervisor
//! that moves it).

use std::sync::Arc;

use async_trait::async_trait;
use futures::StreamExt as _;
use http_body_util::{BodyExt as _, BodyStream, StreamBody};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinSet;

use super::http::{Lost, Request, Response, World};

/// Whether a process is stopped.
pub type Switch = watch::Sender<bool>;

/// The way of a process to a world. While the process is stopped, it sends nothing and hears nothing. Afterwards all of that happens,
/// even what the process no longer waits for.
#[derive(Debug)]
pub struct Way<W> {
    world: Arc<W>,
    switch: Switch,
    /// The process is stopped when it is about to send a request with this word.
    before: Option<&'static str>,
    requests: Mutex<JoinSet<()>>,
}

impl<W> Way<W> {
    /// A process's way to `world`.
    pub fn to(world: W, switch: &Switch, before: Option<&'static str>) -> Arc<Self> {
        Arc::new(Self { world: Arc::new(world), switch: switch.clone(), before, requests: Mutex::default() })
    }
}

/// Waits until the process runs. One whose switch is gone runs.
async fn runs(stopped: &mut watch::Receiver<bool>) {
    let _ = stopped.wait_for(|stopped| !stopped).await;
}

#[async_trait]
impl<W: World> World for Way<W> {
    async fn call(&self, request: Request) -> Result<Response, Lost> {
        let is_it = |word: &str| String::from_utf8_lossy(request.body()).contains(word);
        if self.before.is_some_and(is_it) {
            self.switch.send_replace(true);
        }
        let (world, mut stopped) = (Arc::clone(&self.world), self.switch.subscribe());
        let (answer, answered) = oneshot::channel();
        {
            let mut requests = self.requests.lock();
            while requests.try_join_next().is_some() {}
            requests.spawn(async move {
                runs(&mut stopped).await;
                let response = world.call(request).await;
                runs(&mut stopped).await;
                // Nobody may be waiting any more.
                let _ = answer.send(response);
            });
        }
        let stopped = self.switch.subscribe();
        let response = answered.await.map_err(|_| Lost)??;
        Ok(response.map(|body| {
            let frames = BodyStream::new(body).then(move |frame| {
                let mut stopped = stopped.clone();
                async move {
                    runs(&mut stopped).await;
                    frame
                }
            });
            StreamBody::new(frames).boxed_unsync()
        }))
    }
}
