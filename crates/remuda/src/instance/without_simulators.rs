//! What stands in the place of the simulators in a program that was built without them.

use crate::commands::BadInput;
use crate::without_sim::ABSENT;
use remuda_core::WorkerId;

/// There is nothing else that somebody without a ComfyUI could do.
pub(crate) const OR_SIMULATE: &str = "";

/// None.
#[derive(Debug, Default)]
pub(crate) struct Simulators;

#[allow(clippy::unused_async, clippy::unused_self, reason = "called like the simulators that it stands for")]
impl Simulators {
    /// Refuses to start any.
    pub(crate) async fn start(count: usize) -> anyhow::Result<Self> {
        if count > 0 {
            return Err(BadInput(ABSENT.to_owned()).into());
        }
        Ok(Self)
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        Vec::new()
    }

    pub(crate) fn workers(&self) -> Vec<WorkerId> {
        Vec::new()
    }

    pub(crate) async fn stop(self) {}
}
