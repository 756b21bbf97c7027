//! What a directory needs beyond object_store's own store for it: it never follows a symbolic link, it notices when its disk
//! has gone, and it removes whole trees with what interrupted writes left in them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::stream::BoxStream;
use futures_util::{StreamExt, TryStreamExt};
use tokio::io::AsyncReadExt;
use tokio_util::io::ReaderStream;

use crate::error::{Error, Result};
use crate::key::FileKey;
use crate::trouble::Trouble;

/// How much of a file is read at once. Each read is a trip to the blocking threads.
const READ_SIZE: usize = 256 << 10;

/// A directory that holds a file store.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    /// Canonical: the way to the root may lead over links, the way from it may not.
    root: PathBuf,
    /// Set once the id file was seen. From then on its absence means that another disk is mounted here, or none.
    claimed: Arc<AtomicBool>,
    trouble: Trouble,
}

/// Which part of the way to a file is looked at.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Way {
    /// The folders and the file itself.
    Whole,
    /// Only the folders: renaming over a link and deleting one touch the link, not what it points to.
    Folders,
}

/// A directory that we make is for the user who runs us. One that is there keeps its mode: somebody else may be meant to
/// read it.
fn make(path: &Path) -> io::Result<()> {
    let mut folder = fs::DirBuilder::new();
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut folder, 0o700);
    folder.recursive(true).create(path)
}

impl Directory {
    /// Makes the directory when it is missing.
    pub(crate) fn open(path: &Path, trouble: Trouble) -> Result<Self> {
        let bad = |error: io::Error| Error::BadLocation {
            location: trouble.location().to_owned(),
            reason: format!("cannot make or open the directory: {error}"),
        };
        make(path).map_err(bad)?;
        let root = fs::canonicalize(path).map_err(bad)?;
        Ok(Self { root, claimed: Arc::default(), trouble })
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// The id file was seen here.
    pub(crate) fn claim(&self) {
        self.claimed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn path_of(&self, key: &FileKey) -> PathBuf {
        let mut path = self.root.clone();
        path.extend(key.segments());
        path
    }

    /// Looks at the way to a file before it is used.
    pub(crate) async fn check(&self, key: &FileKey, way: Way) -> Result<()> {
        let (this, key) = (self.clone(), key.clone());
        self.blocking(move || {
            this.check_home()?;
            let mut path = this.root.clone();
            let mut segments = key.segments().peekable();
            while let Some(segment) = segments.next() {
                if segments.peek().is_none() && way == Way::Folders {
                    break;
                }
                path.push(segment);
                match fs::symlink_metadata(&path) {
                    Ok(metadata) if metadata.is_symlink() => {
                        let detail = format!("{} is a symbolic link, which is not followed", path.display());
                        return Err(match way {
                            Way::Whole => Error::Linked { key: key.clone(), detail },
                            Way::Folders => this.trouble.other(detail),
                        });
                    }
                    Ok(_) => {}
                    // The request itself will say so.
                    Err(_) => break,
                }
            }
            Ok(())
        })
        .await
    }

    /// Whether "not there" can be believed.
    pub(crate) async fn check_present(&self) -> Result<()> {
        let this = self.clone();
        self.blocking(move || this.check_home()).await
    }

    fn check_home(&self) -> Result<()> {
        if self.claimed.load(Ordering::Relaxed) {
            let id_file = self.path_of(&FileKey::installation());
            return match fs::symlink_metadata(&id_file) {
                Ok(_) => Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let detail = format!("{} has gone; is the right disk mounted?", id_file.display());
                    Err(self.trouble.unavailable(detail))
                }
                Err(error) => Err(self.trouble.of_io(&error)),
            };
        }
        match fs::metadata(&self.root) {
            Ok(metadata) if metadata.is_dir() => Ok(()),
            Ok(_) => Err(self.trouble.unavailable("it is no directory any more")),
            Err(error) => Err(self.trouble.of_io(&error)),
        }
    }

    /// Removes everything below a folder and counts the files. Links are removed, not followed.
    pub(crate) async fn remove_all(&self, folder: &FileKey) -> Result<u64> {
        self.check(folder, Way::Whole).await?;
        let (this, top) = (self.clone(), self.path_of(folder));
        self.blocking(move || {
            let count = remove_below(&top).map_err(|error| this.trouble.of_io(&error))?;
            let empty = top.ancestors().take_while(|path| *path != this.root);
            // The first folder that another write has use for ends it.
            empty.map(fs::remove_dir).take_while(io::Result::is_ok).for_each(drop);
            Ok(count)
        })
        .await
    }

    /// Removes everything below a folder except the named entries, and counts the files.
    pub(crate) async fn remove_all_but(&self, folder: &FileKey, kept: BTreeSet<String>) -> Result<u64> {
        self.check(folder, Way::Whole).await?;
        let (this, top) = (self.clone(), self.path_of(folder));
        self.blocking(move || {
            let is_kept = |name: &OsStr| name.to_str().is_some_and(|name| kept.contains(name));
            remove_entries(&top, is_kept).map_err(|error| this.trouble.of_io(&error))
        })
        .await
    }

    /// Removes the files of one folder that were last written before a moment.
    pub(crate) async fn remove_older(&self, folder: &FileKey, before: SystemTime) -> Result<u64> {
        self.check(folder, Way::Whole).await?;
        let (this, folder) = (self.clone(), self.path_of(folder));
        self.blocking(move || {
            let remove = || {
                let mut count = 0;
                for entry in fs::read_dir(&folder)? {
                    let entry = entry?;
                    let metadata = entry.metadata()?;
                    if !metadata.is_dir() && metadata.modified()? < before {
                        fs::remove_file(entry.path())?;
                        count += 1;
                    }
                }
                Ok(count)
            };
            absent_is_zero(remove()).map_err(|error| this.trouble.of_io(&error))
        })
        .await
    }

    /// Removes what killed processes left of earlier tries to write this file: `<name>#<number>` beside it, not touched
    /// since `before`. What belongs to a write that goes on beside this one is younger.
    pub(crate) async fn remove_tries(&self, key: &FileKey, before: SystemTime) -> Result<()> {
        let (this, path) = (self.clone(), self.path_of(key));
        self.blocking(move || {
            let remove = || {
                let (Some(folder), Some(name)) = (path.parent(), path.file_name().and_then(OsStr::to_str))
                else {
                    return Ok(0);
                };
                let mut count = 0;
                for entry in fs::read_dir(folder)? {
                    let entry = entry?;
                    let other = entry.file_name();
                    let number = other.to_str().and_then(|other| other.strip_prefix(name)?.strip_prefix('#'));
                    let is_try =
                        number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit()));
                    if is_try && entry.metadata()?.modified()? < before {
                        fs::remove_file(entry.path())?;
                        count += 1;
                    }
                }
                Ok(count)
            };
            absent_is_zero(remove()).map(drop).map_err(|error| this.trouble.of_io(&error))
        })
        .await
    }

    /// Reads a part of an open file. object_store's own stream reads 8 kB at a time, and never ends when the file shrinks.
    pub(crate) async fn read(
        &self,
        mut file: File,
        key: &FileKey,
        range: Range<u64>,
    ) -> Result<BoxStream<'static, Result<Bytes>>> {
        let (start, length) = (range.start, range.end - range.start);
        let trouble = self.trouble.clone();
        let file = self
            .blocking(move || {
                file.seek(SeekFrom::Start(start)).map_err(|error| trouble.of_io(&error))?;
                Ok(file)
            })
            .await?;
        let capacity = usize::try_from(length).map_or(READ_SIZE, |length| length.clamp(1, READ_SIZE));
        let reader = tokio::fs::File::from_std(file).take(length);
        let (trouble, key) = (self.trouble.clone(), key.clone());
        let mut missing = length;
        let short = {
            let (trouble, key) = (trouble.clone(), key.clone());
            move |missing: u64| trouble.other(format!("{key} ended {missing} bytes early"))
        };
        let chunks =
            ReaderStream::with_capacity(reader, capacity).map_err(move |error| trouble.of_io(&error));
        let stream = chunks.map(Some).chain(futures_util::stream::once(std::future::ready(None)));
        let stream = stream.filter_map(move |chunk| {
            let item = match chunk {
                Some(Ok(bytes)) => {
                    missing = missing.saturating_sub(bytes.len() as u64);
                    Some(Ok(bytes))
                }
                Some(Err(error)) => {
                    missing = 0;
                    Some(Err(error))
                }
                None if missing > 0 => Some(Err(short(missing))),
                None => None,
            };
            std::future::ready(item)
        });
        Ok(stream.boxed())
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result,
            // Only a runtime that is shutting down cancels such work.
            Err(error) => Err(self.trouble.unavailable(error.to_string())),
        }
    }
}

fn absent_is_zero(result: io::Result<u64>) -> io::Result<u64> {
    match result {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(0),
        other => other,
    }
}

fn remove_below(folder: &Path) -> io::Result<u64> {
    remove_entries(folder, |_| false)
}

fn remove_entries(folder: &Path, is_kept: impl Fn(&OsStr) -> bool) -> io::Result<u64> {
    let mut count = 0;
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return absent_is_zero(Err(error)),
    };
    for entry in entries {
        let entry = entry?;
        if is_kept(&entry.file_name()) {
            continue;
        }
        if entry.file_type()?.is_dir() {
            count += remove_below(&entry.path())?;
            match fs::remove_dir(entry.path()) {
                // Somebody wrote into it just now: that file stays, as it would on S3.
                Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {}
                result => absent_is_zero(result.map(|()| 0)).map(drop)?,
            }
        } else {
            let removed = absent_is_zero(fs::remove_file(entry.path()).map(|()| 1))?;
            // What an interrupted write left behind was no file of the store.
            if !is_unfinished(&entry.file_name().to_string_lossy()) {
                count += removed;
            }
        }
    }
    Ok(count)
}

/// While object_store writes `name`, the file is called `name#1`.
fn is_unfinished(name: &str) -> bool {
    name.rsplit_once('#').is_some_and(|(_, number)| number.bytes().all(|b| b.is_ascii_digit()))
}
