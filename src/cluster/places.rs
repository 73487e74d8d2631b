//! Places for calls of which only so many may be under way at once.

use std::pin::pin;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::timeout;

/// A call that has had no answer for this long makes room for another: a webhook that hangs for some pods, or an API server for some nodes,
/// costs others no more of their time.
const HAS_A_PLACE: Duration = Duration::from_secs(10);

/// Makes a call once a place is free, and keeps that until the call is answered, or for [`HAS_A_PLACE`].
pub(super) async fn with_permit<T>(places: &Semaphore, call: impl Future<Output = T>) -> T {
    // Nobody closes it.
    keeping(places.acquire().await, call).await
}

/// The same, if the call is wanted when a place is free: that may take minutes. `None`: it was not made.
pub(super) fn with_permit_if<T>(
    places: &Semaphore,
    is_wanted: impl FnOnce() -> bool,
    call: impl Future<Output = T>,
) -> impl Future<Output = Option<T>> {
    // Calls are large, and would be in here several times.
    let call = Box::pin(call);
    with_permit(places, async { if is_wanted() { Some(call.await) } else { None } })
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
