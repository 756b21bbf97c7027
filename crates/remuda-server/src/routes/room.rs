//! How long an upload may be.

use remuda_core::Tenant;

use crate::error::{ApiError, ApiResult};
use crate::state::Shared;

/// How long a file may be that a tenant brings. Known before it is read, so that nothing is kept that nobody may have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UploadRoom {
    /// In bytes.
    pub(crate) longest: u64,
    /// It is the tenant that has no more room, and not the file that is longer than any may be.
    pub(crate) is_left: bool,
}

impl UploadRoom {
    /// Nothing that is longer than this, whoever brings it.
    pub(crate) fn no_more_than(self, most: u64) -> Self {
        if self.longest <= most { self } else { Self { longest: most, is_left: false } }
    }

    /// What is said when a file could not be kept.
    pub(crate) fn not_kept(&self, error: remuda_files::Error) -> ApiError {
        match error {
            remuda_files::Error::TooLarge { .. } => self.refusal(),
            other => other.into(),
        }
    }

    /// What is said of a longer file.
    pub(crate) fn refusal(&self) -> ApiError {
        match self.is_left {
            true => {
                let error = "the tasks and assets of this tenant have all the bytes that one tenant may have: \
                             wait until old tasks are removed";
                ApiError::over_limit("tasks.max_stored", format!("{error} (tasks.max_stored)"))
            }
            false => ApiError::too_large("the file", self.longest),
        }
    }
}

/// How long a file may be that a tenant brings.
pub(crate) async fn upload_room(state: &Shared, tenant: &Tenant) -> ApiResult<UploadRoom> {
    let (room, most) = (state.store.room(tenant).await?, state.limits.asset);
    Ok(UploadRoom { longest: room.min(most), is_left: room < most })
}
