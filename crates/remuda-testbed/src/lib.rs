//! For tests: private PostgreSQL clusters, a real LittleHorse server, processes that are killed with their test, conditions with
//! a deadline, and how the work of a function grows with its input.
//!
//! Everything here cleans up after itself, whatever happens to the program that uses it: a panicking test
//! drops its values, and when the whole process is killed, a small keeper that outlives it ends what
//! it had started and removes its folders. Nothing listens elsewhere than on 127.0.0.1, but for
//! a LittleHorse server, which cannot be told where to listen.

pub mod growth;
mod keeper;
pub mod littlehorse;
pub mod net;
pub mod postgres;
pub mod process;
mod signal;
pub mod wait;
