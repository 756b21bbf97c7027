//! What is in the data directory is for the user who runs Remuda, and for nobody else.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// What marks a folder as a data directory.
const OWNER: &str = "owner";

/// Makes the data directory, or closes the one that is there. A folder that holds other things, or that everybody may
/// write to, is left as it is: it is not ours alone.
pub(crate) fn data_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let found = std::fs::metadata(path)?.mode();
    if found & 0o077 == 0 {
        return Ok(());
    }
    let is_ours = path.join(OWNER).is_file() || std::fs::read_dir(path)?.next().is_none();
    if !is_ours || found & 0o1000 != 0 {
        tracing::warn!(
            path = %path.display(),
            "other users can look into the data directory, and it holds other things too: give Remuda a folder of its own with --data"
        );
        return Ok(());
    }
    close(path, found, 0o700);
    Ok(())
}

/// Opens or makes a file that only this user can read, whatever the umask says.
pub(crate) fn file(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    let found = file.metadata()?.mode();
    if found & 0o077 != 0 {
        close(path, found, 0o600);
    }
    Ok(file)
}

fn close(path: &Path, before: u32, mode: u32) {
    match std::fs::set_permissions(path, Permissions::from_mode(mode)) {
        Ok(()) => {
            let before = format!("{:o}", before & 0o777);
            tracing::info!(path = %path.display(), mode.before = before, "other users had access here; now only this one has");
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), %error, "other users have access here, and the mode cannot be changed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_new_directory_and_one_of_an_earlier_release_are_closed() {
        let place = tempfile::tempdir().unwrap();
        let data = place.path().join("a/b");
        data_directory(&data).unwrap();
        assert_eq!((mode(&data), mode(data.parent().unwrap())), (0o700, 0o700));
        std::fs::write(data.join(OWNER), "x").unwrap();
        set(&data, 0o755);
        set(&data.join(OWNER), 0o644);
        data_directory(&data).unwrap();
        drop(file(&data.join(OWNER)).unwrap());
        drop(file(&data.join("new")).unwrap());
        assert_eq!((mode(&data), mode(&data.join(OWNER)), mode(&data.join("new"))), (0o700, 0o600, 0o600));
        assert_eq!(std::fs::read_to_string(data.join(OWNER)).unwrap(), "x");
    }

    #[test]
    fn what_is_not_ours_alone_stays_as_it_is() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().join("home");
        std::fs::create_dir(&home).unwrap();
        std::fs::write(home.join("letter"), "x").unwrap();
        set(&home, 0o755);
        data_directory(&home).unwrap();
        assert_eq!(mode(&home), 0o755);
        let shared = place.path().join("tmp");
        std::fs::create_dir(&shared).unwrap();
        set(&shared, 0o1777);
        data_directory(&shared).unwrap();
        assert_eq!(mode(&shared), 0o1777);
    }
}
