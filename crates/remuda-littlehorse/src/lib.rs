//! LittleHorse as a source of tasks.
//!
//! Serves the task `execute-comfyui-workflow`: takes deliveries from a LittleHorse server, hands them to the runners as
//! tasks, and tells the server how they ended. Everything that is decided here is a function over values; [`LittleHorse`]
//! is the thin part that speaks with the server.
//!
//! ```text
//! intakes ─▶ input, options ─▶ ids, task ─▶ Delivery ─▶ (journal, runners, ComfyUI) ─▶ DeliveryEnding ─▶ ending, output ─▶ Report
//!                                           │ watching: oversight, checkpoint  frame, queued: log ─┘
//! ```

mod checkpoint;
pub mod contract;
mod delivery;
mod ending;
#[cfg(test)]
mod growth;
mod ids;
mod input;
mod intakes;
mod log;
mod notes;
mod options;
mod output;
mod oversight;
mod queue;
mod recognise;
mod refusal;
mod reporting;
mod watching;

pub use contract::Contract;
pub use ids::NAMESPACE;
pub use output::Places;
pub use queue::{LittleHorse, Options};
