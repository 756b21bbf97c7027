//! Names that travel: prompt ids and client ids.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The id of one prompt on one ComfyUI.
///
/// Ids of our own making are lower-case UUIDs, the only spelling that every version takes.
/// Ids read from a server can be any text, because old versions take any.
///
/// ```
/// use comfyui::PromptId;
/// let id = PromptId::random();
/// assert_eq!(id.as_str().len(), 36);
/// assert_eq!(PromptId::from("None").as_str(), "None");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PromptId(Arc<str>);

impl PromptId {
    /// A fresh id.
    #[must_use]
    pub fn random() -> Self {
        Uuid::new_v4().into()
    }

    /// The text of it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<Uuid> for PromptId {
    fn from(id: Uuid) -> Self {
        PromptId(id.as_hyphenated().to_string().into())
    }
}

impl From<&str> for PromptId {
    fn from(id: &str) -> Self {
        PromptId(id.into())
    }
}

impl From<String> for PromptId {
    fn from(id: String) -> Self {
        PromptId(id.into())
    }
}

impl fmt::Display for PromptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for PromptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose socket gets the messages of a prompt. Never empty: without one a prompt served from the cache has no outputs.
///
/// ```
/// use comfyui::ClientId;
/// assert!(ClientId::new("").is_none());
/// assert_eq!(ClientId::new("studio-3").unwrap().as_str(), "studio-3");
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Serialize)]
#[serde(transparent)]
pub struct ClientId(Arc<str>);

impl ClientId {
    /// The given name; `None` when it is empty.
    #[must_use]
    pub fn new(name: &str) -> Option<Self> {
        (!name.is_empty()).then(|| ClientId(name.into()))
    }

    /// A fresh one.
    #[must_use]
    pub fn random() -> Self {
        ClientId(Uuid::new_v4().as_simple().to_string().into())
    }

    /// The text of it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
