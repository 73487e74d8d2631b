//! Places for calls of which only so many may be under way at once.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A call that has had no answer for this long makes room for another: a webhook that hangs for some pods, or an API server for some nodes,
/// costs others no more of their time.
const HAS_A_PLACE: Duration = Duration::from_secs(10);

/// Places for calls of one kind. Clones share them.
#[derive(Clone)]
pub(super) struct Places(Arc<Semaphore>);

impl Places {
    /// So many calls at once.
    pub(super) fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    /// Makes a call once a place is free, and keeps that until the call is answered, or for [`HAS_A_PLACE`]. The call's own time-out counts
    /// from when it has its place; one around this counts the wait too.
    pub(super) fn call<T>(&self, call: impl Future<Output = T>) -> impl Future<Output = T> {
        // Calls are large, and would be in here several times.
        let call = Box::pin(call);
        // Nobody closes the semaphore.
        async { keeping(self.0.acquire().await, call).await }
    }

    /// The same, if the call is wanted when a place is free: that may take minutes. `None`: it was not made.
    pub(super) fn call_if<T>(
        &self,
        is_wanted: impl FnOnce() -> bool,
        call: impl Future<Output = T>,
    ) -> impl Future<Output = Option<T>> {
        self.call(async { if is_wanted() { Some(call.await) } else { None } })
    }
}

/// Keeps a place until the call is answered, or for [`HAS_A_PLACE`].
pub async fn keeping<T>(place: impl Sized, call: impl Future<Output = T>) -> T {
    let mut call = pin!(call);
    if let Ok(answer) = timeout(HAS_A_PLACE, &mut call).await {
        return answer;
    }
    drop(place);
    call.await
}
