//! Random lives of a whole queue, on a real store, beside a model of it.
//!
//! The steps are drawn by `proptest-state-machine`, which also shortens a sequence that fails. What the store must
//! hold after each step is worked out by `remuda-core` on a copy in memory ([`shadow`]); the store's own choices
//! (prompt ids, ranks, the length of a delay) are taken over from it after a check of their bounds.

mod checks;
mod machine;
mod shadow;
mod steps;
mod world;

pub(crate) use machine::{Life, Place, config};
