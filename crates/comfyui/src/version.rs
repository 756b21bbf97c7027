//! Which ComfyUI this is, and what it can do.

use std::fmt;
use std::str::FromStr;

/// A ComfyUI version, as `/system_stats` tells it.
///
/// ```
/// use comfyui::Version;
/// let version: Version = "0.3.64".parse().unwrap();
/// assert!(version < Version::new(0, 7, 0));
/// assert_eq!("v0.7.0-13-gacbf08cd6".parse::<Version>().unwrap(), Version::new(0, 7, 0));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// First number.
    pub major: u32,
    /// Second number.
    pub minor: u32,
    /// Third number.
    pub patch: u32,
}

impl Version {
    /// A version from its numbers.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Version { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// A text that is not a version.
#[derive(Debug, thiserror::Error)]
#[error("not a version of ComfyUI: {0:?}")]
pub struct ParseVersionError(String);

impl FromStr for Version {
    type Err = ParseVersionError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong = || ParseVersionError(text.to_owned());
        let core = text.trim().trim_start_matches('v');
        let core = core.split(['-', '+', ' ']).next().unwrap_or_default();
        let mut numbers = core.split('.').map(|part| part.parse::<u32>());
        let mut next = |required: bool| match numbers.next() {
            Some(number) => number.map_err(|_| wrong()),
            None if required => Err(wrong()),
            None => Ok(0),
        };
        Ok(Version::new(next(true)?, next(true)?, next(false)?))
    }
}

/// What a server can do, found out once per connection.
///
/// Abilities come from the version where the change is dated, and from the answers of
/// `/features` and `/api/jobs` where a route shows it; a server that hides its version gets the safe answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities {
    /// The version, when the server tells (0.3.11 and later).
    pub version: Option<Version>,
    /// Takes the `prompt_id` we choose (0.3.45).
    pub own_prompt_id: bool,
    /// `POST /interrupt` looks at the id (0.3.57). Without it an interrupt hits whatever runs.
    pub interrupt_by_id: bool,
    /// `/api/jobs` exists (0.6.0).
    pub jobs: bool,
    /// `partial_execution_targets` is honoured (0.3.48).
    pub partial_targets: bool,
    /// `/features` and the websocket handshake exist (0.3.45).
    pub feature_flags: bool,
    /// `offset` of `/history` is honoured (0.3.60).
    pub history_offset: bool,
    /// Largest request body, when the server tells.
    pub max_upload_size: Option<u64>,
}

impl Capabilities {
    /// Puts the pieces together; pure, so that every combination can be tested.
    ///
    /// ```
    /// use comfyui::{Capabilities, Version};
    /// let old = Capabilities::derive(Some(Version::new(0, 3, 30)), false, false, None);
    /// assert!(!old.own_prompt_id && !old.interrupt_by_id && !old.jobs);
    /// // A fork that hides its version but has the jobs route is at least 0.6.0.
    /// let fork = Capabilities::derive(None, true, true, None);
    /// assert!(fork.own_prompt_id && fork.interrupt_by_id);
    /// ```
    #[must_use]
    pub fn derive(
        version: Option<Version>,
        has_features: bool,
        has_jobs: bool,
        max_upload_size: Option<u64>,
    ) -> Self {
        let since = |major, minor, patch| match version {
            Some(version) => version >= Version::new(major, minor, patch),
            None => has_jobs,
        };
        Capabilities {
            version,
            own_prompt_id: since(0, 3, 45) || has_features,
            interrupt_by_id: since(0, 3, 57),
            jobs: has_jobs,
            partial_targets: since(0, 3, 48),
            feature_flags: has_features,
            history_offset: since(0, 3, 60),
            max_upload_size,
        }
    }

    /// Whether the atomic `POST /api/jobs/{id}/cancel` may exist: it came after 0.7.0, and only asking shows it.
    pub(crate) fn may_cancel_jobs(&self) -> bool {
        self.jobs && self.version.is_none_or(|version| version > Version::new(0, 7, 0))
    }
}
