//! API keys: random, kept as a hash, compared in constant time.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use subtle::ConstantTimeEq as _;
use uuid::Uuid;

use crate::{Sha256, Tenant, Timestamp};

/// What a key allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Submit, cancel and retry tasks, upload assets.
    Submit,
    /// See tasks, events and outputs.
    Read,
    /// Claim and report tasks of every tenant, as a worker does.
    Worker,
    /// Everything, of every tenant.
    Admin,
}

impl Scope {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Submit, Self::Read, Self::Worker, Self::Admin];

    /// The name used everywhere.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Submit => "submit",
            Self::Read => "read",
            Self::Worker => "worker",
            Self::Admin => "admin",
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Scope {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|scope| scope.as_str() == text)
            .ok_or_else(|| format!("unknown scope {text:?}: submit, read, worker or admin are possible"))
    }
}

/// What a key allows, altogether.
pub type Scopes = BTreeSet<Scope>;

/// The public name of a key: in lists, logs and revocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KeyId(pub Uuid);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.as_hyphenated().fmt(f)
    }
}

/// A key as its user holds it: shown once, never stored.
///
/// ```
/// use remuda_core::ApiKey;
/// let key = ApiKey::generate(&mut rand::rng());
/// assert!(key.reveal().starts_with("rmd_"));
/// assert!(key.matches(&key.hash()));
/// assert_eq!(format!("{key:?}"), "ApiKey(…)");
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey(String);

impl ApiKey {
    /// 256 random bits behind a prefix by which secret scanners can know it.
    pub fn generate(random: &mut impl rand::CryptoRng) -> Self {
        let mut bytes = [0_u8; 32];
        random.fill_bytes(&mut bytes);
        Self(format!("rmd_{}", Sha256(bytes)))
    }

    /// A key as somebody presented it.
    pub fn presented(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The key itself, to be shown to its user once.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// What is stored of it.
    pub fn hash(&self) -> Sha256 {
        Sha256::of(self.0.as_bytes())
    }

    /// Whether it is the key with this hash, in a time that does not tell how much of it is right.
    pub fn matches(&self, hash: &Sha256) -> bool {
        self.hash().0.ct_eq(&hash.0).into()
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

/// A key as the store keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeyRecord {
    /// Its public name.
    pub id: KeyId,
    /// What its maker called it.
    pub name: String,
    /// The tenant whose tasks it sees.
    pub tenant: Tenant,
    /// What it allows.
    pub scopes: Scopes,
    /// Of the key itself.
    #[serde(skip_serializing, default = "no_hash")]
    pub hash: Sha256,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

fn no_hash() -> Sha256 {
    Sha256([0; 32])
}

impl KeyRecord {
    /// Whether it allows this; admin allows everything.
    pub fn allows(&self, scope: Scope) -> bool {
        self.revoked_at.is_none() && (self.scopes.contains(&scope) || self.scopes.contains(&Scope::Admin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(scopes: Scopes, hash: Sha256) -> KeyRecord {
        KeyRecord {
            id: KeyId(Uuid::nil()),
            name: "ci".to_owned(),
            tenant: Tenant::default_tenant(),
            scopes,
            hash,
            created_at: Timestamp::UNIX_EPOCH,
            revoked_at: None,
        }
    }

    #[test]
    fn no_key_is_another_and_none_is_shown() {
        let (one, two) = (ApiKey::generate(&mut rand::rng()), ApiKey::generate(&mut rand::rng()));
        assert_ne!(one, two);
        assert!(ApiKey::presented(one.reveal()).matches(&one.hash()));
        assert!(!two.matches(&one.hash()) && !ApiKey::presented("").matches(&one.hash()));
        let shown = serde_json::to_string(&record([Scope::Read].into(), one.hash())).unwrap();
        assert!(!shown.contains(&one.hash().to_string()) && !format!("{one:?}").contains(one.reveal()));
    }

    #[test]
    fn a_key_allows_its_scopes_admin_everything_and_a_revoked_one_nothing() {
        let hash = Sha256::of(b"");
        let reader = record([Scope::Read].into(), hash);
        let admin = record([Scope::Admin].into(), hash);
        let revoked = KeyRecord { revoked_at: Some(Timestamp::UNIX_EPOCH), ..admin.clone() };
        for scope in Scope::ALL {
            assert_eq!(reader.allows(scope), scope == Scope::Read);
            assert!(admin.allows(scope));
            assert!(!revoked.allows(scope));
            assert_eq!(scope.as_str().parse(), Ok(scope));
        }
    }
}
