//! Calls to a server.

use std::fmt;

use crate::config::Config;
use crate::error::Result;
use crate::proto;
use crate::report::{Heard, Report};
use crate::task_def::{NewTaskDef, Registered};

/// A server host.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Host {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.name, self.port)
    }
}

/// A handle to a LittleHorse cluster; clones share its connections, one per host.
#[derive(Debug, Clone)]
pub struct Client {}

impl Client {
    /// Makes a handle. Nothing is asked yet.
    pub fn new(_config: Config) -> Result<Self> {
        todo!()
    }

    /// The settings.
    pub fn config(&self) -> &Config {
        todo!()
    }

    /// Registers a TaskDef, or finds that it is registered already.
    pub async fn put_task_def(&self, _def: &NewTaskDef) -> Result<Registered> {
        todo!()
    }

    /// Looks a TaskDef up; waits a moment for one that was just registered.
    pub async fn get_task_def(&self, _name: &str) -> Result<proto::TaskDef> {
        todo!()
    }

    /// What the server knows of a task: status, timeout, attempts.
    pub async fn get_task_run(&self, _id: &proto::TaskRunId) -> Result<proto::TaskRun> {
        todo!()
    }

    /// Keeps a value for later attempts.
    pub async fn put_checkpoint(
        &self,
        _request: proto::PutCheckpointRequest,
    ) -> Result<proto::PutCheckpointResponse> {
        todo!()
    }

    /// Reads a kept value.
    pub async fn get_checkpoint(&self, _id: proto::CheckpointId) -> Result<proto::Checkpoint> {
        todo!()
    }

    /// The version of the server.
    pub async fn server_version(&self) -> Result<proto::LittleHorseVersion> {
        todo!()
    }

    /// Sends a report once: to the host that delivered the task, or else to the one that the settings name.
    pub async fn report(&self, _host: Option<&Host>, _report: &Report) -> Result<Heard> {
        todo!()
    }

    /// Sends a report until the server has it, or says that the attempt is over. Waits through outages.
    pub async fn report_until_heard(&self, _host: Option<&Host>, _report: &Report) -> Result<Heard> {
        todo!()
    }
}
