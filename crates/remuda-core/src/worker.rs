//! One ComfyUI instance as Remuda sees it.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::{Fence, KeyId, OwnerId, Sha256, TaskId, Tenant, Timestamp, WorkerId};

/// What a runner thinks of its worker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// Nothing is known yet.
    #[default]
    Starting,
    /// Answers and has nothing to do.
    Healthy,
    /// Answers and renders.
    Busy,
    /// Does not answer.
    Unreachable,
    /// Answers, and its worker thread is dead: takes prompts and runs none.
    Zombie,
    /// Answers, and lost or crashed too many tasks lately: rests before it gets another.
    Quarantined,
    /// Takes no new work and ends.
    Draining,
}

impl Health {
    const ALL: [Self; 7] = [
        Self::Starting,
        Self::Healthy,
        Self::Busy,
        Self::Unreachable,
        Self::Zombie,
        Self::Quarantined,
        Self::Draining,
    ];

    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Healthy => "healthy",
            Self::Busy => "busy",
            Self::Unreachable => "unreachable",
            Self::Zombie => "zombie",
            Self::Quarantined => "quarantined",
            Self::Draining => "draining",
        }
    }

    /// Whether the worker may get tasks.
    pub fn is_usable(self) -> bool {
        matches!(self, Self::Healthy | Self::Busy)
    }

    /// The status that the task API shows.
    pub fn status(self) -> WorkerStatus {
        match self {
            Self::Starting => WorkerStatus::Starting,
            Self::Healthy => WorkerStatus::Idle,
            Self::Busy => WorkerStatus::Running,
            Self::Unreachable | Self::Zombie | Self::Quarantined => WorkerStatus::Error,
            Self::Draining => WorkerStatus::Stopped,
        }
    }
}

impl fmt::Display for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Health {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|health| health.as_str() == text)
            .ok_or_else(|| format!("unknown health {text:?}"))
    }
}

/// The status of a worker in the task API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerStatus {
    /// Asked for, not there yet.
    Pending,
    /// There, not usable yet.
    Starting,
    /// Free.
    Idle,
    /// Renders.
    Running,
    /// Gone.
    Stopped,
    /// Not usable; the reason says why.
    Error,
}

/// What a process says of a worker when it wants to drive it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerSpec {
    /// Its name: the same ComfyUI has the same name for every process that knows it.
    pub id: WorkerId,
    /// Where its ComfyUI answers, for those who may ask it.
    pub endpoint: String,
    /// For people: a container's, pod's or host's name.
    pub name: Option<String>,
    /// Given by its configuration.
    pub labels: BTreeSet<String>,
}

impl WorkerSpec {
    /// About how many bytes it has.
    pub fn bytes(&self) -> usize {
        let name = self.name.as_ref().map_or(0, String::len);
        self.endpoint.len() + name + self.labels.iter().map(|label| label.len() + 4).sum::<usize>()
    }
}

/// What a runner reports of its worker with every beat.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerReport {
    /// How it is.
    pub health: Health,
    /// Why it is not well.
    pub reason: Option<String>,
    /// The task under way.
    pub current_task: Option<TaskId>,
    /// ComfyUI's version.
    pub comfyui_version: Option<String>,
    /// The GPU, as ComfyUI names it.
    pub device: Option<String>,
    /// Free and whole memory of the GPU, in bytes.
    pub vram: Option<(i64, i64)>,
    /// The hash under which the store keeps its `object_info`.
    pub object_info: Option<Sha256>,
    /// What its identity file says: shows whether this is still the same ComfyUI.
    pub identity: Option<String>,
}

/// On whose word a worker is known. Its name is theirs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// Nobody noted it: the worker is from before that was done.
    Before,
    /// A process of the installation drives it.
    Here,
    /// A process elsewhere registered it with this key.
    Key {
        /// Which.
        id: KeyId,
        /// Whose it is; `None` when there is no such key: the worker is from before the first key was made.
        tenant: Option<Tenant>,
        /// Whether it was revoked.
        revoked: bool,
    },
}

impl Registration {
    /// Whether a process with this key may have the worker when nobody else holds it. A key has its own workers and those
    /// that a revoked key of its tenant left: that is how a key is replaced.
    pub fn admits(&self, key: KeyId, of: &Tenant) -> bool {
        match self {
            Self::Before => true,
            Self::Here => false,
            Self::Key { id, .. } if *id == key => true,
            Self::Key { tenant: None, .. } => true,
            Self::Key { tenant: Some(tenant), revoked, .. } => *revoked && tenant == of,
        }
    }
}

/// A worker as the store keeps it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Worker {
    /// What it was registered as.
    pub spec: WorkerSpec,
    /// What its runner said last.
    pub report: WorkerReport,
    /// The process that drives it.
    pub owner: OwnerId,
    /// The number of that process; rises when another takes over.
    pub fence: Fence,
    /// When others may take it over.
    pub until: Timestamp,
    /// Since when it is known.
    pub created_at: Timestamp,
    /// When it last reported.
    pub last_active_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_name_is_the_keys_that_registered_it() {
        let (mine, other) = (KeyId(Uuid::new_v4()), KeyId(Uuid::new_v4()));
        let (a, b) = (Tenant::default_tenant(), Tenant::new("b").unwrap());
        let by =
            |id, tenant: Option<&Tenant>, revoked| Registration::Key { id, tenant: tenant.cloned(), revoked };
        let cases = [
            (Registration::Before, true),
            (Registration::Here, false),
            (by(mine, Some(&a), false), true),
            (by(other, Some(&a), false), false),
            (by(other, Some(&a), true), true),
            (by(other, Some(&b), true), false),
            (by(KeyId(Uuid::nil()), None, false), true),
        ];
        for (registration, admitted) in cases {
            assert_eq!(registration.admits(mine, &a), admitted, "{registration:?}");
        }
    }
}
