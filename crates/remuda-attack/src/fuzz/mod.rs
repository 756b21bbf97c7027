//! Requests made by chance: mostly right, with one or two things wrong, over all routes and with keys of every scope.
//!
//! ```text
//!   routes: openapi.json and ComfyUI's own ──▶ make: a right request, then mutations ──▶ lanes ──▶ tally ──▶ report
//! ```

mod lanes;
mod make;
mod report;
mod routes;
mod run;
mod values;

pub use report::FuzzReport;
pub use run::{FuzzOptions, fuzz};
