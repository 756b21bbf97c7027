//! What a long-running process needs besides its work: threads for long computations, a watchdog, a memory of what harmed it.

mod enforce;
#[cfg(debug_assertions)]
mod fault;
mod harm;
mod parts;

pub(crate) use parts::Process;
