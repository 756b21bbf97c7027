//! Through which door a task came in, and what its client calls it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A public API whose clients have names of their own for what they submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dialect {
    /// ComfyUI's own.
    Comfyui,
}

impl Dialect {
    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Comfyui => "comfyui",
        }
    }

    /// Whether its clients are told what ComfyUI itself says while it renders, word for word.
    pub fn hears_comfyui(self) -> bool {
        match self {
            Self::Comfyui => true,
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Dialect {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "comfyui" => Ok(Self::Comfyui),
            _ => Err(format!("unknown dialect {text:?}")),
        }
    }
}

/// Where a task came from, when that was another door than Remuda's own API.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Through which API.
    pub dialect: Dialect,
    /// What the client calls the task, when it chose a name; unique in its tenant and dialect (the idempotency key of
    /// the submission sees to that).
    pub external_id: Option<String>,
    /// Which of the tenant's clients it was.
    pub client: Option<String>,
}

/// What a client sent beside the graph, for ComfyUI itself.
#[derive(Clone, Default, Serialize, Deserialize)]
pub struct PromptExtra {
    /// `extra_data` as it came: the workflow for the files' metadata, keys of paid nodes, the preview method. What is secret
    /// of it is there before a task is submitted and when it is claimed, and at no other time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extra_data: Option<Box<RawValue>>,
    /// `partial_execution_targets`: run these output nodes only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub targets: Option<Vec<String>>,
    /// The `number` that the client was told.
    #[serde(default)]
    pub number: f64,
    /// The output nodes that ran or will run, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// The names of the members of `extra_data` that the store keeps apart, sealed. Empty in a claim: there they are back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sealed: Vec<String>,
    /// Those members, sealed, on their way into the store or out of it. Never written with the rest.
    #[serde(skip)]
    pub envelope: Option<Vec<u8>>,
}

/// Shows no values of `extra_data`: some may be secret.
impl fmt::Debug for PromptExtra {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PromptExtra")
            .field("extra_data_bytes", &self.extra_data.as_ref().map(|raw| raw.get().len()))
            .field("targets", &self.targets)
            .field("number", &self.number)
            .field("outputs", &self.outputs)
            .field("sealed", &self.sealed)
            .finish_non_exhaustive()
    }
}

impl PartialEq for PromptExtra {
    fn eq(&self, other: &Self) -> bool {
        let text = |extra: &Self| extra.extra_data.as_ref().map(|raw| raw.get().to_owned());
        text(self) == text(other)
            && self.targets == other.targets
            && self.number.to_bits() == other.number.to_bits()
            && self.outputs == other.outputs
            && self.sealed == other.sealed
    }
}
