//! Through which door a task came in, and what its client calls it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The longest name of a dialect, in bytes.
const LONGEST: usize = 32;

/// A public API whose clients have names of their own for what they submit.
///
/// Of those that this release does not speak it knows the name: a server of a newer release may have taken in their tasks, and
/// whoever reads them runs them like others.
///
/// ```
/// use remuda_core::Dialect;
/// assert_eq!("comfyui".parse(), Ok(Dialect::COMFYUI));
/// assert_eq!("one_of_tomorrow".parse::<Dialect>().unwrap().as_str(), "one_of_tomorrow");
/// assert!("No name".parse::<Dialect>().is_err());
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Dialect {
    /// 1 to 32 lower-case letters, digits, `_` and `-`, a letter first; filled up with zeros.
    name: [u8; LONGEST],
}

impl Dialect {
    /// ComfyUI's own.
    pub const COMFYUI: Self = Self::known("comfyui");

    const fn known(text: &str) -> Self {
        let (bytes, mut name, mut n) = (text.as_bytes(), [0; LONGEST], 0);
        while n < bytes.len() {
            name[n] = bytes[n];
            n += 1;
        }
        Self { name }
    }

    /// The name used everywhere.
    pub fn as_str(&self) -> &str {
        let length = self.name.iter().position(|byte| *byte == 0).unwrap_or(LONGEST);
        // It is ASCII.
        std::str::from_utf8(&self.name[..length]).unwrap_or_default()
    }

    /// Whether its clients are told what ComfyUI itself says while it renders, word for word.
    pub fn hears_comfyui(self) -> bool {
        self == Self::COMFYUI
    }
}

impl fmt::Debug for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Dialect").field(&self.as_str()).finish()
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
        let may = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-".contains(&byte);
        let is_name = text.len() <= LONGEST
            && text.starts_with(|first: char| first.is_ascii_lowercase())
            && text.bytes().all(may);
        let shown: String = text.chars().take(LONGEST).collect();
        is_name.then(|| Self::known(text)).ok_or_else(|| format!("{shown:?} cannot name a dialect"))
    }
}

impl From<Dialect> for String {
    fn from(dialect: Dialect) -> Self {
        dialect.as_str().to_owned()
    }
}

impl TryFrom<String> for Dialect {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_of_a_dialect_is_read_and_nothing_else() {
        let longest = "a".repeat(LONGEST);
        for name in ["comfyui", "a", "one-of_tomorrow2", &longest] {
            let dialect: Dialect = name.parse().unwrap();
            assert_eq!((dialect.as_str(), dialect.hears_comfyui()), (name, name == "comfyui"));
            let json = serde_json::to_string(&dialect).unwrap();
            assert_eq!(json, format!("\"{name}\""));
            assert_eq!(serde_json::from_str::<Dialect>(&json).unwrap(), dialect);
        }
        let too_long = "a".repeat(LONGEST + 1);
        for text in ["", "1a", "A", "a b", "é", "a\0", &too_long] {
            assert!(text.parse::<Dialect>().is_err(), "{text:?}");
            assert!(serde_json::from_value::<Dialect>(text.into()).is_err(), "{text:?}");
        }
    }
}
