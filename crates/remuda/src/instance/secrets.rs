//! The keys under which secrets are kept: those that the settings name, or, with SQLite, one of this data directory.

use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use anyhow::{Context as _, bail};
use remuda_store::Keyring;

use super::private;
use crate::config::{Settings, StoreUrl};

/// The file in the data directory that SQLite stores use when no key is named.
const NAME: &str = "secret-key";

/// The keys that the settings name. None with PostgreSQL: tasks that bring secrets are refused then.
pub(crate) fn keyring(settings: &Settings) -> anyhow::Result<Keyring> {
    let store = &settings.store;
    match (&store.secret_key_file, &store.secret_key, &store.url) {
        (Some(_), Some(_), _) => {
            bail!("--secret-key-file and REMUDA_SECRET_KEY are both given: give one of them")
        }
        (Some(path), None, _) => named(path),
        (None, Some(keys), _) => Keyring::parse(keys.reveal()).context("cannot use REMUDA_SECRET_KEY"),
        (None, None, StoreUrl::Sqlite(_)) => own(&settings.server.data.join(NAME)),
        (None, None, StoreUrl::Postgres(_)) => {
            tracing::warn!(
                "there is no secret key: tasks that bring keys of paid nodes are refused, and the key between servers is \
                 kept in plain text; give all servers the same --secret-key-file"
            );
            Ok(Keyring::default())
        }
    }
}

/// A file that somebody else made and looks after.
fn named(path: &Path) -> anyhow::Result<Keyring> {
    let at = || format!("cannot use the secret keys in {}", path.display());
    let text = std::fs::read_to_string(path).with_context(at)?;
    if std::fs::metadata(path).with_context(at)?.mode() & 0o007 != 0 {
        tracing::warn!(path = %path.display(), "every user of this machine can read the secret keys: chmod 600 the file");
    }
    Keyring::parse(&text).with_context(at)
}

/// The file of this data directory, made at the first start.
fn own(path: &Path) -> anyhow::Result<Keyring> {
    let at = || format!("cannot use the secret key in {}", path.display());
    let mut file = private::file(path).with_context(at)?;
    let mut text = String::new();
    file.read_to_string(&mut text).with_context(at)?;
    // Also after a crash between making the file and writing it: nothing was sealed with a key that was never read.
    if text.trim().is_empty() {
        text = Keyring::generate();
        let remark = "# Secrets of tasks are sealed with this key. Keep a copy of it apart from copies of the store.\n";
        file.rewind()
            .and_then(|()| file.write_all(format!("{remark}{text}\n").as_bytes()))
            .with_context(at)?;
        file.sync_all().with_context(at)?;
    }
    Keyring::parse(&text).with_context(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_data_directory_gets_a_key_and_keeps_it() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join(NAME);
        let first = own(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(format!("{:?}", own(&path).unwrap()), format!("{first:?}"));
        assert_eq!(format!("{:?}", named(&path).unwrap()), format!("{first:?}"));
        std::fs::write(&path, "hunter2").unwrap();
        let broken = format!("{:#}", own(&path).unwrap_err());
        assert!(broken.contains("openssl rand -hex 32") && !broken.contains("hunter2"), "{broken}");
    }
}
