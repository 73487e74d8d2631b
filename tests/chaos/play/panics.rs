//! Panics, which the program survives where it can, and which nobody may see but we.

use std::cell::RefCell;

thread_local! {
    /// Those of the run on this thread.
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// From now on panics are kept, not printed.
pub(crate) fn listen() {
    std::panic::set_hook(Box::new(|panic| {
        PANICS.with_borrow_mut(|panics| panics.push(panic.to_string()));
    }));
}

/// The panics of this thread's run.
pub(crate) fn taken() -> Vec<String> {
    PANICS.take()
}
