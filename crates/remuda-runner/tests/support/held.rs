//! Prompts that a test holds for as long as it likes.

use comfyui_sim::Simulator;
use comfyui_sim::faults::{Fault, FaultId};

/// A prompt that stays at its first node until it is released, or its ComfyUI restarts.
pub(crate) struct Held<'a> {
    sim: &'a Simulator,
    fault: FaultId,
}

/// Holds the next prompt that this ComfyUI begins.
pub(crate) fn hold(sim: &Simulator) -> Held<'_> {
    Held { sim, fault: sim.faults().add(Fault::stuck_node().times(1)) }
}

impl Held<'_> {
    pub(crate) fn release(self) {
        self.sim.faults().remove(self.fault);
    }
}
