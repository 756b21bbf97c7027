//! What the server says about itself.

use indexmap::IndexMap;
use serde::Deserialize;
use serde_json::Value;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::limits::Route;
use crate::object_info::{NodeInfo, ObjectInfo};

/// `GET /system_stats`. It answers also when the worker thread is dead.
#[derive(Debug, Clone, Deserialize)]
pub struct SystemStats {
    /// The machine and the program.
    pub system: System,
    /// GPUs, or the CPU.
    #[serde(default)]
    pub devices: Vec<Device>,
}

/// The machine and the program.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct System {
    /// `linux`, `posix`, `nt`, …
    #[serde(default)]
    pub os: String,
    /// Bytes of memory.
    #[serde(default)]
    pub ram_total: Option<u64>,
    /// Bytes of free memory.
    #[serde(default)]
    pub ram_free: Option<u64>,
    /// Since 0.3.11.
    #[serde(default)]
    pub comfyui_version: Option<String>,
    /// Version of Python.
    #[serde(default)]
    pub python_version: Option<String>,
    /// Version of PyTorch.
    #[serde(default)]
    pub pytorch_version: Option<String>,
    /// Its command line.
    #[serde(default)]
    pub argv: Vec<String>,
}

/// One device.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct Device {
    /// Name with driver details.
    #[serde(default)]
    pub name: String,
    /// `cuda`, `cpu`, …
    #[serde(rename = "type", default)]
    pub kind: String,
    /// `None` on CPU.
    #[serde(default)]
    pub index: Option<i64>,
    /// Bytes.
    #[serde(default)]
    pub vram_total: Option<u64>,
    /// Bytes.
    #[serde(default)]
    pub vram_free: Option<u64>,
    /// Bytes held by PyTorch.
    #[serde(default)]
    pub torch_vram_total: Option<u64>,
    /// Bytes held and unused.
    #[serde(default)]
    pub torch_vram_free: Option<u64>,
}

/// `GET /features` (0.3.45 and later).
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct Features {
    /// Previews can say which node they belong to.
    #[serde(default)]
    pub supports_preview_metadata: bool,
    /// Largest request body in bytes.
    #[serde(default)]
    pub max_upload_size: Option<u64>,
}

impl Client {
    /// Version, memory, devices.
    ///
    /// # Errors
    /// As any call.
    pub async fn system_stats(&self) -> Result<SystemStats> {
        self.get(&["system_stats"]).repeatable().read().await
    }

    /// Features; `None` before 0.3.45.
    ///
    /// # Errors
    /// As any call.
    pub async fn features(&self) -> Result<Option<Features>> {
        self.get(&["features"]).repeatable().read_if_there().await
    }

    /// Descriptions of all nodes: some 600 kB.
    ///
    /// # Errors
    /// As any call.
    pub async fn object_info(&self) -> Result<ObjectInfo> {
        let call = self.get(&["object_info"]).repeatable().bound(Route::ObjectInfo);
        let body = call.bytes().await?;
        ObjectInfo::from_slice(&body.bytes)
            .map_err(|error| Error::Protocol { what: call.name(), detail: error.to_string() })
    }

    /// The same as the server wrote it, to be kept: [`ObjectInfo::from_slice`] reads it.
    ///
    /// # Errors
    /// As any call.
    pub async fn object_info_bytes(&self) -> Result<bytes::Bytes> {
        let call = self.get(&["object_info"]).repeatable().bound(Route::ObjectInfo);
        Ok(call.bytes().await?.bytes)
    }

    /// Description of one node class; `None` when the server does not have it.
    ///
    /// # Errors
    /// As any call.
    pub async fn object_info_of(&self, class: &str) -> Result<Option<NodeInfo>> {
        let call = self.get(&["object_info", class]).repeatable();
        let body = call.bytes().await?;
        let info = ObjectInfo::from_slice(&body.bytes)
            .map_err(|error| Error::Protocol { what: call.name(), detail: error.to_string() })?;
        Ok(info.get(class).cloned())
    }

    /// Names of the model folders.
    ///
    /// # Errors
    /// As any call.
    pub async fn model_folders(&self) -> Result<Vec<String>> {
        self.get(&["models"]).repeatable().read().await
    }

    /// Files in one model folder; `None` when there is no such folder.
    ///
    /// # Errors
    /// As any call.
    pub async fn models(&self, folder: &str) -> Result<Option<Vec<String>>> {
        self.get(&["models", folder]).repeatable().read_if_there().await
    }

    /// Names of the embeddings.
    ///
    /// # Errors
    /// As any call.
    pub async fn embeddings(&self) -> Result<Vec<String>> {
        self.get(&["embeddings"]).repeatable().read().await
    }

    /// Script files of the web extensions.
    ///
    /// # Errors
    /// As any call.
    pub async fn extensions(&self) -> Result<Vec<String>> {
        self.get(&["extensions"]).repeatable().read().await
    }

    /// All settings of the web page.
    ///
    /// # Errors
    /// As any call.
    pub async fn settings(&self) -> Result<IndexMap<String, Value>> {
        self.get(&["settings"]).repeatable().read().await
    }

    /// One setting; the server answers null for one it does not know.
    ///
    /// # Errors
    /// As any call.
    pub async fn setting(&self, name: &str) -> Result<Value> {
        self.get(&["settings", name]).repeatable().read().await
    }

    /// Stores one setting.
    ///
    /// # Errors
    /// As any call.
    pub async fn set_setting(&self, name: &str, value: &Value) -> Result<()> {
        self.post(&["settings", name]).json(value)?.repeatable().done().await
    }
}
