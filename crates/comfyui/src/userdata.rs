//! `/userdata`: files that belong to the user of the web page, saved workflows above all.

use bytes::Bytes;
use http::{Method, StatusCode};
use serde::Deserialize;

use crate::client::Client;
use crate::error::{Error, Result};

/// One file of the user's.
#[derive(Debug, Clone, Deserialize)]
#[non_exhaustive]
pub struct UserFile {
    /// Path below the user's folder (or below the folder that was listed).
    pub path: String,
    /// Bytes.
    #[serde(default)]
    pub size: Option<u64>,
    /// Time of the last change, as this version writes it (seconds or milliseconds).
    #[serde(default)]
    pub modified: Option<f64>,
}

impl Client {
    /// Files below `folder`, recursively; `None` when there is no such folder.
    ///
    /// # Errors
    /// As any call.
    pub async fn list_userdata(&self, folder: &str) -> Result<Option<Vec<UserFile>>> {
        self.get(&["userdata"])
            .query("dir", folder)
            .query("recurse", "true")
            .query("split", "false")
            .query("full_info", "true")
            .repeatable()
            .read_if_there()
            .await
    }

    /// The bytes of a file; `None` when it is not there.
    ///
    /// # Errors
    /// As any call.
    pub async fn get_userdata(&self, path: &str) -> Result<Option<Bytes>> {
        match self.get(&["userdata", path]).repeatable().bytes().await {
            Ok(body) => Ok(Some(body.bytes)),
            Err(Error::Status { status: StatusCode::NOT_FOUND, .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Stores a file. Without `overwrite` an existing one is kept, and the answer is [`Error::Status`] 409.
    ///
    /// # Errors
    /// As any call.
    pub async fn put_userdata(&self, path: &str, bytes: Bytes, overwrite: bool) -> Result<()> {
        self.post(&["userdata", path])
            .query("overwrite", if overwrite { "true" } else { "false" })
            .raw_body(bytes)
            .done()
            .await
    }

    /// Renames a file.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it is not there.
    pub async fn move_userdata(&self, from: &str, to: &str, overwrite: bool) -> Result<()> {
        let call = self
            .post(&["userdata", from, "move", to])
            .query("overwrite", if overwrite { "true" } else { "false" });
        call.done().await.map_err(|error| missing(error, from))
    }

    /// Deletes a file.
    ///
    /// # Errors
    /// [`Error::NotFound`] when it is not there.
    pub async fn delete_userdata(&self, path: &str) -> Result<()> {
        let call = self.call(Method::DELETE, &["userdata", path]);
        call.done().await.map_err(|error| missing(error, path))
    }
}

fn missing(error: Error, path: &str) -> Error {
    match error {
        Error::Status { status: StatusCode::NOT_FOUND, .. } => {
            Error::NotFound { what: format!("user file {path:?}") }
        }
        other => other,
    }
}
