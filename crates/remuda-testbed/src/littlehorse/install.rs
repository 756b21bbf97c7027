//! Where the server, Kafka and a Java that runs them are.

use super::error::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The environment variable that names the folder into which `cargo xtask test --littlehorse` has put them.
pub const GIVEN: &str = "REMUDA_TEST_LITTLEHORSE";

/// For programs that live for a minute: the quick compiler alone, and the simplest collector.
const JAVA: [&str; 4] =
    ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xss512k", "--enable-native-access=ALL-UNNAMED"];

/// `java/bin/java` and `jars/*.jar` below one folder.
#[derive(Debug, Clone)]
pub(super) struct Install {
    java: PathBuf,
    jars: PathBuf,
}

impl Install {
    pub(super) fn find() -> Result<Install, Error> {
        let missing = |why: String| Error::Missing { why };
        let folder = std::env::var_os(GIVEN).filter(|folder| !folder.is_empty());
        let folder = folder.map(PathBuf::from).ok_or_else(|| missing(format!("{GIVEN} is not set")))?;
        let install = Install { java: folder.join("java/bin/java"), jars: folder.join("jars") };
        match install.java.is_file() && install.jars.is_dir() {
            true => Ok(install),
            false => Err(missing(format!("{GIVEN}={} has no java and no jars", folder.display()))),
        }
    }

    /// A Java program of them, with this much memory.
    pub(super) fn program(&self, main: &str, megabytes: u32, log: &Path) -> Command {
        let mut classes = OsString::from(&self.jars);
        classes.push("/*");
        let mut settings = OsString::from("-Dlog4j2.configurationFile=");
        settings.push(log);
        let mut command = Command::new(&self.java);
        command.args(JAVA).args(["-Xms128m", &format!("-Xmx{megabytes}m")]);
        command.arg("--sun-misc-unsafe-memory-access=allow");
        command.arg(settings).arg("-cp").arg(classes).arg(main);
        command
    }
}
