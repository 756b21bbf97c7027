//! Task workers for LittleHorse.
//!
#![doc = include_str!("../README.md")]

pub mod client;
pub mod config;
pub mod delivery;
pub mod error;
pub mod intake;
pub mod proto;
pub mod report;
pub mod task_def;
pub mod value;
pub mod worker;

pub use client::{Client, Host};
pub use config::{Config, Identity, Oauth, Protocol, Secret};
pub use delivery::{Delivery, Input, TaskKey};
pub use error::{Error, Result};
pub use intake::{Health, Intake, IntakeOptions};
pub use report::{Ending, Heard, LOG_LIMIT, REPORT_LIMIT, Report};
pub use task_def::{NewTaskDef, Registered, Type};
pub use value::Value;
pub use worker::{CheckpointLog, ServedTask, Slots, TaskContext, TaskError, Worker};
