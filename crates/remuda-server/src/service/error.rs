//! Why something was not done, in words that belong to no door.

use remuda_core::{Sha256, Status, TaskId, Tenant};
use remuda_preflight::PreflightError;

use crate::share::TurnedAway;

/// What a call of the service returns.
pub(crate) type ServiceResult<T> = Result<T, ServiceError>;

/// Why something was not done. Every door says it in its own way.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ServiceError {
    /// There is no such task, or the caller may not see it.
    #[error("there is no task {0}")]
    NoTask(TaskId),
    /// The caller does not see this tenant's tasks.
    #[error("this key sees only its own tenant's tasks")]
    ForeignTenant(Tenant),
    /// A task that runs cannot be run again.
    #[error("the task is running: cancel it first, or wait for its end")]
    Running(TaskId),
    /// It is not run again, because our own work on it did harm.
    #[error(
        "the task was set aside because Remuda's own work on its graph did harm: it is not run again; submit another graph"
    )]
    Harmful(TaskId),
    /// It came with a secret, and secrets end with their task.
    #[error(
        "the task came with a secret (extra_data.{field}), which was removed when it ended: submit it again with its keys"
    )]
    SecretGone {
        /// The task that was to be run again.
        task: TaskId,
        /// Which member of `extra_data` it was.
        field: String,
    },
    /// The task has no such file.
    #[error("the task is {status} and has {count} output files; there is no number {n}")]
    NoOutput {
        /// The task.
        task: TaskId,
        /// How it is.
        status: Status,
        /// The number that was asked for.
        n: i32,
        /// How many files it has.
        count: usize,
    },
    /// The tenant has all the bytes that one tenant may have, with what it is bringing at this moment.
    #[error(
        "the tasks and assets of this tenant have all the bytes that one tenant may have: \
         delete assets that are not needed, or wait until old tasks are removed (tasks.max_stored)"
    )]
    NoRoom,
    /// There is no such file, or it is another tenant's.
    #[error("there is no asset {0}")]
    NoAsset(Sha256),
    /// A task that has not ended reads the file.
    #[error("task {task} reads this file and has not ended: cancel it first, or wait for its end")]
    AssetInUse {
        /// One of those that do.
        task: TaskId,
    },
    /// A task that was to be run again read a file that was deleted.
    #[error("the task read the file {filename:?} (asset:{sha256}), which was deleted: upload it again")]
    AssetGone {
        /// The task.
        task: TaskId,
        /// Its content.
        sha256: Sha256,
        /// What it was called.
        filename: String,
    },
    /// A file is longer than any may be.
    #[error("the file is larger than {0} bytes")]
    TooLong(u64),
    /// Somebody removed the same content while it was kept.
    #[error("the same file was removed in the same moment: upload it again")]
    TakenAway,
    /// The file store did not do it.
    #[error(transparent)]
    Files(#[from] remuda_files::Error),
    /// Pre-flight refused the graph, or could not look at it.
    #[error(transparent)]
    Preflight(#[from] PreflightError),
    /// The store did not do what was asked of it with this task.
    #[error("{source}")]
    StoreAbout {
        /// The task.
        task: TaskId,
        /// Why.
        source: remuda_store::Error,
    },
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] remuda_store::Error),
    /// There was no room for it now.
    #[error(transparent)]
    TurnedAway(#[from] TurnedAway),
}

impl ServiceError {
    /// Whether the same call may succeed in a moment, because the store does not answer now.
    pub(crate) fn is_temporary(&self) -> bool {
        match self {
            Self::Store(error) | Self::StoreAbout { source: error, .. } => error.is_temporary(),
            _ => false,
        }
    }

    /// A trouble of the store with one task.
    pub(super) fn about(task: TaskId) -> impl FnOnce(remuda_store::Error) -> Self {
        move |source| Self::StoreAbout { task, source }
    }
}
