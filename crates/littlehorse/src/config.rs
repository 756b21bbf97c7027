//! Settings, by the names that all LittleHorse clients use.

use std::path::Path;

use crate::error::Result;

/// How to reach a server, and as whom.
#[derive(Debug, Clone)]
pub struct Config {
    /// `LHC_API_HOST`, `localhost`.
    pub host: String,
    /// `LHC_API_PORT`, 2023.
    pub port: u16,
    /// `LHC_TENANT_ID`.
    pub tenant: Option<String>,
    /// `LHW_TASK_WORKER_ID`.
    pub worker_id: String,
    /// `LHW_TASK_WORKER_VERSION`.
    pub worker_version: String,
    /// `LHW_NUM_WORKER_THREADS`.
    pub slots: usize,
}

impl Config {
    /// From the environment of the process.
    pub fn from_env() -> Result<Self> {
        todo!()
    }

    /// From a Java properties file; the environment wins.
    pub fn from_file(_path: &Path) -> Result<Self> {
        todo!()
    }

    /// From anything that knows names.
    pub fn from_lookup(_lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        todo!()
    }
}
