//! The packages as `cargo metadata` tells them: ours and all that they depend on, for every platform.

use crate::run;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};

/// Our crates and everything below them.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    pub(super) packages: Vec<Package>,
}

/// One package in one version.
#[derive(Debug, Default)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(super) version: String,
    /// The SPDX expression.
    pub(super) licence: Option<String>,
    /// Where it comes from; `None` for a path in this repository.
    pub(super) source: Option<String>,
    /// Whether it is one of ours.
    pub(super) is_member: bool,
    /// Whether others can depend on it.
    pub(crate) is_library: bool,
    /// Whether there are features to choose from.
    pub(crate) has_features: bool,
    /// What its manifest names.
    pub(super) dependencies: Vec<Dependency>,
    /// Its manifest.
    pub(super) manifest: String,
    /// `name version` of the packages that lead to it.
    pub(super) used_by: Vec<String>,
}

/// A line of a `[dependencies]` table.
#[derive(Debug)]
pub(super) struct Dependency {
    pub(super) name: String,
    /// Whether it is needed only by tests, examples and benches.
    pub(super) dev: bool,
}

impl Workspace {
    pub(crate) fn load() -> Result<Self> {
        let printed = run::captured(run::cargo().args(["metadata", "--format-version", "1", "--locked"]))?;
        let metadata: Value = serde_json::from_slice(&printed).context("cargo metadata is not JSON")?;
        Self::from_metadata(&metadata)
    }

    /// Our own crates.
    pub(crate) fn members(&self) -> impl Iterator<Item = &Package> {
        self.packages.iter().filter(|package| package.is_member)
    }

    /// The versions of each name, sorted as they come.
    pub(super) fn by_name(&self) -> BTreeMap<&str, Vec<&Package>> {
        let mut names: BTreeMap<&str, Vec<&Package>> = BTreeMap::new();
        for package in &self.packages {
            names.entry(&package.name).or_default().push(package);
        }
        names
    }

    fn from_metadata(metadata: &Value) -> Result<Self> {
        let members: HashSet<&str> =
            list(metadata, "workspace_members")?.iter().filter_map(Value::as_str).collect();
        let mut packages = BTreeMap::new();
        for package in list(metadata, "packages")? {
            let id = text(package, "id")?;
            let package = Package::from_metadata(package, members.contains(id.as_str()))?;
            packages.insert(id, package);
        }
        let nodes = metadata.get("resolve").context("cargo metadata has no `resolve`")?;
        for node in list(nodes, "nodes")? {
            let Some(user) = packages.get(&text(node, "id")?) else {
                continue;
            };
            let user = format!("{} {}", user.name, user.version);
            for used in list(node, "dependencies")?.iter().filter_map(Value::as_str) {
                if let Some(package) = packages.get_mut(used) {
                    package.used_by.push(user.clone());
                }
            }
        }
        Ok(Self { packages: packages.into_values().collect() })
    }
}

impl Package {
    fn from_metadata(package: &Value, is_member: bool) -> Result<Self> {
        let optional = |key| package.get(key).and_then(Value::as_str).map(str::to_owned);
        let is_library = |target: &Value| {
            target["kind"].as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "lib"))
        };
        let dependency = |dependency: &Value| -> Result<Dependency> {
            Ok(Dependency { name: text(dependency, "name")?, dev: dependency["kind"] == "dev" })
        };
        Ok(Self {
            name: text(package, "name")?,
            version: text(package, "version")?,
            licence: optional("license"),
            source: optional("source"),
            is_member,
            is_library: list(package, "targets")?.iter().any(is_library),
            has_features: package["features"].as_object().is_some_and(|features| !features.is_empty()),
            dependencies: list(package, "dependencies")?.iter().map(dependency).collect::<Result<_>>()?,
            manifest: text(package, "manifest_path")?,
            used_by: Vec::new(),
        })
    }
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a [Value]> {
    let list = value.get(key).and_then(Value::as_array);
    list.map(Vec::as_slice).with_context(|| format!("cargo metadata has no list `{key}`"))
}

fn text(value: &Value, key: &str) -> Result<String> {
    let text = value.get(key).and_then(Value::as_str);
    text.map(str::to_owned).with_context(|| format!("cargo metadata has no text `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_workspace_is_read_as_it_is() {
        let workspace = Workspace::load().unwrap();
        let xtask = workspace.members().find(|member| member.name == "xtask").unwrap();
        assert!(!xtask.is_library && xtask.source.is_none());
        let clap = workspace.packages.iter().find(|package| package.name == "clap").unwrap();
        assert!(!clap.is_member && clap.is_library && clap.source.is_some());
        assert!(clap.used_by.contains(&format!("xtask {}", xtask.version)), "{:?}", clap.used_by);
    }
}
