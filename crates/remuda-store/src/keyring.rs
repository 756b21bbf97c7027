//! The keys under which secrets are sealed before they reach a disk.
//!
//! An envelope names its key, so several keys can be in use while one follows another: the first one seals, all of
//! them open. Every envelope is sealed under a key of its own, derived from a fresh salt, so there is no nonce that
//! could be used twice, however much is sealed. What an envelope belongs to is part of the seal: one that was moved to
//! another task does not open.
//!
//! ```text
//!  1 byte    8 bytes    32 bytes   the rest
//!  version │ key's id │ salt     │ AES-256-GCM(HKDF-SHA256(key, salt), secret)
//! ```

use std::fmt;
use std::sync::Arc;

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, Salt};
use rand::Rng as _;
use remuda_core::{NewTask, PromptExtra, Sha256, TaskId, TaskInput, secrets};
use uuid::Uuid;

use crate::{Error, Result};

/// The only version of envelopes so far.
const VERSION: u8 = 1;
/// How long a key is.
const KEY: usize = 32;
/// How long the id of a key is.
const ID: usize = 8;
/// How long a salt is.
const SALT: usize = 32;
/// What stands before the sealed bytes.
const HEAD: usize = 1 + ID + SALT;
/// More keys than this in one text are a mistake.
const MOST: usize = 16;

/// What is longer is not worked on by the threads that serve requests.
const SMALL: usize = 16 << 10;

/// The keys of an installation, the one that seals first. Cheap to clone. Empty: secrets are refused.
#[derive(Clone, Default)]
pub struct Keyring(Arc<[Key]>);

#[derive(Clone)]
struct Key {
    id: [u8; ID],
    bytes: [u8; KEY],
}

/// Why a text is no list of keys. Never says what the text was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyringError {
    /// Something in it is no key.
    #[error(
        "key {0} of the list is not 32 bytes in hex (64 digits) or base64: make one with `openssl rand -hex 32`"
    )]
    NotAKey(usize),
    /// There is nothing in it.
    #[error("there is no key in it: make one with `openssl rand -hex 32`")]
    Empty,
    /// The same key twice, or too many.
    #[error("it lists a key twice, or more than 16 keys")]
    TooMany,
}

/// Shows the ids of the keys, never the keys.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| hex(&key.id))).finish()
    }
}

impl Keyring {
    /// Keys from a text: separated by blanks, commas or line ends; what follows a `#` is a remark. The first one seals.
    pub fn parse(text: &str) -> std::result::Result<Self, KeyringError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let words = lines.flat_map(|line| line.split(|c: char| c.is_whitespace() || c == ','));
        let mut keys: Vec<Key> = Vec::new();
        for (n, word) in words.filter(|word| !word.is_empty()).enumerate() {
            let key = Key::new(decode(word).ok_or(KeyringError::NotAKey(n + 1))?);
            if keys.len() == MOST || keys.iter().any(|known| known.id == key.id) {
                return Err(KeyringError::TooMany);
            }
            keys.push(key);
        }
        if keys.is_empty() { Err(KeyringError::Empty) } else { Ok(Self(keys.into())) }
    }

    /// A new key as the text that [`Keyring::parse`] reads.
    pub fn generate() -> String {
        let mut bytes = [0_u8; KEY];
        rand::rng().fill_bytes(&mut bytes);
        hex(&bytes)
    }

    /// Whether there is no key: then secrets are refused.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this envelope was sealed with the key that seals now.
    pub(crate) fn is_current(&self, envelope: &[u8]) -> bool {
        self.0.first().is_some_and(|key| envelope.get(1..=ID) == Some(&key.id[..]))
    }

    /// Seals a secret that belongs to `what`. `None` without a key.
    pub(crate) fn seal(&self, what: &str, secret: &[u8]) -> Option<Vec<u8>> {
        let key = self.0.first()?;
        let mut salt = [0_u8; SALT];
        rand::rng().fill_bytes(&mut salt);
        let mut sealed = secret.to_vec();
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        key.under(&salt)?.seal_in_place_append_tag(nonce, Aad::from(what), &mut sealed).ok()?;
        let mut envelope = Vec::with_capacity(HEAD + sealed.len());
        envelope.push(VERSION);
        envelope.extend_from_slice(&key.id);
        envelope.extend_from_slice(&salt);
        envelope.append(&mut sealed);
        Some(envelope)
    }

    /// Opens what was sealed for `what`.
    pub(crate) fn open(&self, what: &str, envelope: &[u8]) -> std::result::Result<Vec<u8>, String> {
        let broken = || "it is damaged, or belongs to something else".to_owned();
        let (head, sealed) = envelope.split_at_checked(HEAD).ok_or_else(broken)?;
        let (Some(&VERSION), Some(id), Some(salt)) = (head.first(), head.get(1..=ID), head.get(1 + ID..HEAD))
        else {
            return Err(broken());
        };
        let Some(key) = self.0.iter().find(|key| key.id == id) else {
            return Err(format!("it was sealed with the secret key {}, which this process lacks", hex(id)));
        };
        let nonce = Nonce::assume_unique_for_key([0; NONCE_LEN]);
        let mut sealed = sealed.to_vec();
        let under = key.under(salt).ok_or_else(broken)?;
        let opened = under.open_in_place(nonce, Aad::from(what), &mut sealed).map_err(|_| broken())?;
        Ok(opened.to_vec())
    }

    /// Takes what is secret out of a new task and seals it. Without a key it is refused by name.
    pub(crate) async fn seal_task(&self, new: &mut NewTask) -> Result<()> {
        let Some(mut extra) = new.input.extra.take() else { return Ok(()) };
        let task = new.id;
        let (extra, sealed) = self
            .beside(size_of(&extra), move |keys| {
                let sealed = keys.seal_extra(task, &mut extra);
                (extra, sealed)
            })
            .await?;
        new.input.extra = Some(extra);
        sealed.map(|_| ())
    }

    /// Does something with this many bytes, beside the runtime if they are many.
    pub(crate) async fn beside<T: Send + 'static>(
        &self,
        bytes: usize,
        work: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T> {
        if bytes <= SMALL {
            return Ok(work(self));
        }
        let keys = self.clone();
        tokio::task::spawn_blocking(move || work(&keys)).await.map_err(|_| Error::Closed)
    }

    /// The same for what came beside a graph. Whether there was something to seal.
    pub(crate) fn seal_extra(&self, task: TaskId, extra: &mut PromptExtra) -> Result<bool> {
        let Some(split) = extra.extra_data.as_deref().and_then(secrets::split) else { return Ok(false) };
        let envelope = self.seal(&of_task(task), split.secret.as_bytes());
        extra.envelope =
            Some(envelope.ok_or_else(|| Error::NoSecretKey {
                field: split.names.first().cloned().unwrap_or_default(),
            })?);
        extra.extra_data = Some(split.open);
        extra.sealed = split.names;
        Ok(true)
    }

    /// What the release before kept of a task in plain text, without what is secret: as it is to be kept, and the secret
    /// sealed. `None`: there is nothing secret in it.
    pub(crate) fn seal_stored(&self, task: TaskId, stored: &str) -> Result<Option<(String, Vec<u8>)>> {
        let unlike =
            |error: serde_json::Error| Error::Corrupt(format!("what came beside a workflow: {error}"));
        let mut extra: PromptExtra = serde_json::from_str(stored).map_err(unlike)?;
        if !self.seal_extra(task, &mut extra)? {
            return Ok(None);
        }
        let envelope = extra.envelope.take().unwrap_or_default();
        Ok(Some((serde_json::to_string(&extra).map_err(unlike)?, envelope)))
    }

    /// Puts what is secret back into the input of a claimed task. What cannot be opened stays marked as sealed, and the
    /// log says why: whoever runs the task must not run it without.
    pub(crate) fn open_task(&self, task: TaskId, input: &mut TaskInput) {
        if let Some(extra) = &mut input.extra {
            self.open_extra(task, extra);
        }
    }

    /// The same for what came beside its graph.
    pub(crate) fn open_extra(&self, task: TaskId, extra: &mut PromptExtra) {
        if extra.sealed.is_empty() {
            return;
        }
        let opened = match extra.envelope.take() {
            Some(envelope) => self.open(&of_task(task), &envelope),
            None => Err("it is not in the store".to_owned()),
        };
        let joined = opened.and_then(|secret| {
            let secret = std::str::from_utf8(&secret).map_err(|error| error.to_string())?;
            let joined = secrets::join(extra.extra_data.as_deref(), secret);
            joined.ok_or_else(|| "it is not what was sealed".to_owned())
        });
        match joined {
            Ok(joined) => {
                extra.extra_data = Some(joined);
                extra.sealed.clear();
            }
            Err(why) => tracing::warn!(%task, "the secret of a task cannot be used: {why}"),
        }
    }
}

/// The key between servers, and what must be written of it.
pub(crate) enum ClusterKey {
    /// There is no secret key: it stays in plain text, as it always was.
    Plain,
    /// It was sealed before.
    Known(String),
    /// It must be sealed, for the first time or with a newer secret key.
    Seal(String, Vec<u8>),
}

impl Keyring {
    /// Finds the key between servers of an installation from what is sealed in its store. One that was in plain text
    /// before is not sealed but replaced: copies of it may be anywhere.
    pub(crate) fn cluster_key(&self, installation: Uuid, sealed: Option<&[u8]>) -> Result<ClusterKey> {
        let what = format!("installation {installation} cluster_key");
        let key = match sealed {
            None if self.is_empty() => return Ok(ClusterKey::Plain),
            None => Self::generate(),
            Some(envelope) => {
                let opened = self.open(&what, envelope).map_err(Error::WrongSecretKey)?;
                let key = String::from_utf8(opened)
                    .map_err(|_| Error::WrongSecretKey("the key between servers is not text".to_owned()))?;
                if self.is_current(envelope) {
                    return Ok(ClusterKey::Known(key));
                }
                key
            }
        };
        let envelope = self.seal(&what, key.as_bytes());
        envelope
            .map(|envelope| ClusterKey::Seal(key, envelope))
            .ok_or_else(|| Error::WrongSecretKey("the key between servers could not be sealed".to_owned()))
    }
}

impl Key {
    fn new(bytes: [u8; KEY]) -> Self {
        let mut named = b"remuda secret key".to_vec();
        named.extend_from_slice(&bytes);
        let mut id = [0; ID];
        id.copy_from_slice(&Sha256::of(&named).0[..ID]);
        Self { id, bytes }
    }

    /// The key of one envelope.
    fn under(&self, salt: &[u8]) -> Option<LessSafeKey> {
        let derived = Salt::new(HKDF_SHA256, salt).extract(&self.bytes);
        let derived = derived.expand(&[b"remuda envelope 1"], &AES_256_GCM).ok()?;
        Some(LessSafeKey::new(UnboundKey::from(derived)))
    }
}

/// How many bytes of JSON came beside a graph.
pub(crate) fn size_of(extra: &PromptExtra) -> usize {
    extra.extra_data.as_ref().map_or(0, |data| data.get().len()) + extra.envelope.as_ref().map_or(0, Vec::len)
}

/// What the secret of a task is bound to.
fn of_task(task: TaskId) -> String {
    format!("task {task} extra_data")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode(word: &str) -> Option<[u8; KEY]> {
    use base64::Engine as _;
    use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
    let bytes = if word.len() == 2 * KEY && word.is_ascii() {
        let pairs = (0..KEY).map(|n| u8::from_str_radix(word.get(2 * n..2 * n + 2)?, 16).ok());
        pairs.collect::<Option<Vec<u8>>>()?
    } else {
        STANDARD.decode(word).or_else(|_| URL_SAFE_NO_PAD.decode(word)).ok()?
    };
    bytes.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(keys: &[&str]) -> Keyring {
        Keyring::parse(&keys.join("\n")).unwrap()
    }

    #[test]
    fn what_was_sealed_opens_with_its_key_for_its_purpose_only() {
        let (one, two) = (Keyring::generate(), Keyring::generate());
        let old = ring(&[&one]);
        let envelope = old.seal("task 1", b"sk-1").unwrap();
        assert!(!envelope.windows(4).any(|window| window == b"sk-1"));
        assert_ne!(envelope, old.seal("task 1", b"sk-1").unwrap());
        let both = ring(&[&two, &one]);
        assert_eq!(both.open("task 1", &envelope).unwrap(), b"sk-1");
        assert!(old.is_current(&envelope) && !both.is_current(&envelope));
        assert!(both.open("task 2", &envelope).is_err());
        let lacking = ring(&[&two]).open("task 1", &envelope).unwrap_err();
        assert!(lacking.contains("which this process lacks"), "{lacking}");
        for at in 0..envelope.len() {
            let mut changed = envelope.clone();
            changed[at] ^= 1;
            assert!(old.open("task 1", &changed).is_err(), "{at}");
            assert!(old.open("task 1", &envelope[..at]).is_err(), "{at}");
        }
        assert!(Keyring::default().seal("task 1", b"sk-1").is_none());
    }

    #[test]
    fn keys_are_read_as_people_write_them() {
        let key = Keyring::generate();
        assert_eq!(Keyring::parse(&format!("# new\n{key} # since May\n\n")).unwrap().0.len(), 1);
        assert_eq!(Keyring::parse(&format!("{key},{}", Keyring::generate())).unwrap().0.len(), 2);
        let base64 = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
        let hex = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f";
        assert_eq!(Keyring::parse(base64).unwrap().0[0].id, Keyring::parse(hex).unwrap().0[0].id);
        assert_eq!(Keyring::parse(" # nothing\n").unwrap_err(), KeyringError::Empty);
        assert_eq!(Keyring::parse(&format!("{key} hunter2")).unwrap_err(), KeyringError::NotAKey(2));
        assert_eq!(Keyring::parse(&format!("{key} {key}")).unwrap_err(), KeyringError::TooMany);
        let shown = format!("{:?}", ring(&[&key]));
        assert!(!shown.contains(&key) && shown.len() < 30, "{shown}");
    }
}
