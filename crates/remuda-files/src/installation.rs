//! Whose store is this? One small file says it, so that two installations never share a store by accident, and a process that
//! sees another disk than its siblings does not start.

use object_store::{Error as StoreError, ObjectStoreExt, PutMode};
use uuid::Uuid;

use crate::error::{Error, Result};
use crate::files::Files;
use crate::key::FileKey;

/// An id file is 37 bytes; anything longer is not one.
const MAX_ID_FILE: u64 = 1024;

impl Files {
    /// Checks that this store belongs to the installation `id`, and claims it when it belongs to none.
    ///
    /// With `must_exist` nothing is claimed: a store without an id file is [`Error::WrongInstallation`]. That is for a process
    /// that joins others through a shared database while its files are in a directory: an empty directory there means that it
    /// is not the directory of the others.
    pub async fn check_installation(&self, id: Uuid, must_exist: bool) -> Result<()> {
        let mut found = self.installation().await?;
        if found.is_none() && !must_exist {
            self.claim(id).await?;
            // Read back: of two that claimed at once, one must notice.
            found = self.installation().await?;
        }
        if found.as_deref().and_then(|text| Uuid::try_parse(text).ok()) != Some(id) {
            return Err(Error::WrongInstallation {
                location: self.location().to_owned(),
                expected: id,
                found,
            });
        }
        if let Some(directory) = self.as_directory() {
            directory.claim();
        }
        Ok(())
    }

    /// What the id file says.
    async fn installation(&self) -> Result<Option<String>> {
        match self.get(&FileKey::installation(), None).await {
            Ok(content) => {
                let bytes = content.bytes(MAX_ID_FILE).await?;
                Ok(Some(String::from_utf8_lossy(&bytes).trim().chars().take(64).collect()))
            }
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn claim(&self, id: Uuid) -> Result<()> {
        let path = self.path(&FileKey::installation());
        let text = format!("{id}\n");
        match self.store().put_opts(&path, text.clone().into(), PutMode::Create.into()).await {
            Ok(_) | Err(StoreError::AlreadyExists { .. }) => return Ok(()),
            // Some S3 stores know no conditional writes, and some file systems no hard links.
            Err(error) => match self.trouble().of_write(&error) {
                Error::Other { .. } | Error::Denied { .. } => {}
                error => return Err(error),
            },
        }
        self.store().put(&path, text.into()).await.map_err(|error| self.trouble().of_write(&error))?;
        Ok(())
    }
}
