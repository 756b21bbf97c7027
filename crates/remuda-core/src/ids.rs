//! Names of things, each its own type so that they cannot be mixed up.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A name that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{value:?} is not a valid {what}: {why}")]
pub struct IdError {
    /// Which kind of name was wanted.
    pub what: &'static str,
    /// What came instead, shortened.
    pub value: String,
    /// What is wrong with it.
    pub why: &'static str,
}

fn id_error(what: &'static str, value: &str, why: &'static str) -> IdError {
    IdError { what, value: value.chars().take(80).collect(), why }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.as_hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Uuid::try_parse(text).map(Self).map_err(|_| id_error($what, text, "a UUID is expected"))
            }
        }
    };
}

uuid_id!(
    /// One task. Ids made here sort by the moment of their making (UUID version 7).
    TaskId,
    "task id"
);
uuid_id!(
    /// One process that may hold leases. Kept in its data directory, so that a restarted process finds its own.
    OwnerId,
    "owner id"
);

impl OwnerId {
    /// The owner that a process elsewhere is, by the key that it shows and the id that it tells. The same id under another
    /// key is another owner, and none is ever that of a process of the installation, which is random.
    ///
    /// ```
    /// use remuda_core::{KeyId, OwnerId};
    /// use uuid::Uuid;
    /// let told = OwnerId(Uuid::new_v4());
    /// let (one, other) = (KeyId(Uuid::new_v4()), KeyId(Uuid::new_v4()));
    /// assert_eq!(OwnerId::elsewhere(one, told), OwnerId::elsewhere(one, told));
    /// assert_ne!(OwnerId::elsewhere(one, told), OwnerId::elsewhere(other, told));
    /// assert_ne!(OwnerId::elsewhere(one, told), told);
    /// ```
    pub fn elsewhere(key: crate::KeyId, told: Self) -> Self {
        Self(Uuid::new_v5(&key.0, told.0.as_bytes()))
    }
}

impl TaskId {
    /// A new id, later than all made before it in this process.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }
}

impl Default for TaskId {
    fn default() -> Self {
        Self::new()
    }
}

macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Letters, digits and `._:@/-`, at least one, and not more than the column holds.
            pub fn new(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                if text.is_empty() {
                    return Err(id_error($what, &text, "it is empty"));
                }
                if text.len() > $max {
                    return Err(id_error($what, &text, concat!("it is longer than ", $max, " bytes")));
                }
                let allowed = |c: char| c.is_ascii_alphanumeric() || "._:@/-".contains(c);
                if !text.chars().all(allowed) {
                    return Err(id_error($what, &text, "only letters, digits and ._:@/- are allowed"));
                }
                Ok(Self(text))
            }

            /// The name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;

            fn try_from(text: String) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }
    };
}

text_id!(
    /// Whose tasks, files and events these are. Tenants never see each other's.
    Tenant,
    "tenant",
    64
);
text_id!(
    /// One ComfyUI instance as Remuda knows it.
    WorkerId,
    "worker id",
    128
);

impl Tenant {
    /// The tenant of everybody where no keys have been made.
    pub fn default_tenant() -> Self {
        Self("default".to_owned())
    }
}

/// Counts the owners of a task, and rises at every claim, adoption and rescue. A write with an old fence
/// changes nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fence(pub i64);

impl Fence {
    /// The fence of the next owner.
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Counts the tries of a task. Never reused, also not after a give-back.
pub type AttemptNo = i32;

/// Counts the changes of a task; also the number of the event that tells of the change.
pub type Version = i64;

/// A SHA-256, shown as hex.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Sha256(pub [u8; 32]);

impl Sha256 {
    /// The hash of these bytes.
    ///
    /// ```
    /// let hash = remuda_core::Sha256::of(b"");
    /// assert!(hash.to_string().starts_with("e3b0c44298fc1c14"));
    /// assert_eq!(hash.to_string().parse(), Ok(hash));
    /// ```
    pub fn of(bytes: &[u8]) -> Self {
        use sha2::Digest as _;
        Self(sha2::Sha256::digest(bytes).into())
    }
}

impl fmt::Display for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Sha256 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sha256({self})")
    }
}

impl FromStr for Sha256 {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let wrong = || id_error("SHA-256", text, "64 hexadecimal digits are expected");
        // Checked here, because a number may also begin with a sign.
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        let mut bytes = [0; 32];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
        }
        Ok(Self(bytes))
    }
}

impl TryFrom<String> for Sha256 {
    type Error = IdError;

    fn try_from(text: String) -> Result<Self, IdError> {
        text.parse()
    }
}

impl From<Sha256> for String {
    fn from(hash: Sha256) -> String {
        hash.to_string()
    }
}

/// One Remuda: everything that shares one store.
#[derive(Clone, PartialEq, Eq)]
pub struct Installation {
    /// In markers, identity files and the file store, so that installations never touch each other's things.
    pub id: Uuid,
    /// Gateways of one installation show it to each other.
    pub cluster_key: String,
}

/// Never shows the key.
impl fmt::Debug for Installation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Installation").field("id", &self.id).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_with_anything_strange_in_them_are_refused() {
        for good in ["default", "pod-1.example:8188", "team/a@b_c"] {
            assert_eq!(Tenant::new(good).unwrap().as_str(), good);
        }
        for bad in ["", "a b", "a\0", "ä", "a'--", &"x".repeat(65)] {
            let error = Tenant::new(bad).unwrap_err();
            assert_eq!(error.what, "tenant");
            assert!(serde_json::from_value::<Tenant>(bad.into()).is_err(), "{bad:?} by way of JSON");
        }
        assert!(WorkerId::new("x".repeat(128)).is_ok() && WorkerId::new("x".repeat(129)).is_err());
        let error = Tenant::new("é".repeat(500)).unwrap_err();
        assert!(error.to_string().len() < 300, "what is wrong with it is said without repeating all of it");
    }

    #[test]
    fn a_hash_has_no_signs_in_it() {
        assert!("+f".repeat(32).parse::<Sha256>().is_err());
        assert!("ff".repeat(32).parse::<Sha256>().is_ok());
    }

    #[test]
    fn ids_of_tasks_grow() {
        let ids: Vec<TaskId> = (0..1000).map(|_| TaskId::new()).collect();
        assert!(ids.is_sorted_by(|a, b| a < b), "later submissions must sort after earlier ones");
    }

    proptest! {
        #[test]
        fn hashes_are_read_as_they_are_written_and_nothing_else_is(bytes: [u8; 32], text in "\\PC{64}|[+a-f0-9]{64}") {
            let hash = Sha256(bytes);
            prop_assert_eq!(hash.to_string().parse(), Ok(hash));
            if let Ok(read) = text.parse::<Sha256>() {
                prop_assert_eq!(read.to_string(), text.to_lowercase());
            }
        }
    }
}
