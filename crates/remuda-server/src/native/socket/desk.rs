//! Who is to be told of which prompt.

use remuda_core::Task;

use crate::state::AppState;

/// Every client that has a socket, or had one a moment ago, or has prompts under way that came in here.
#[derive(Debug, Default)]
pub(crate) struct Desk;

impl Desk {
    /// A prompt came in: from now on its client's messages are kept, also while it has no socket.
    pub(crate) fn submitted(&self, state: &AppState, task: &Task) {
        let _ = (state, task);
    }
}
