//! Where settings are read from, in a form that a test can fill.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::flags::Given;

/// Environment variables.
pub(crate) trait Strings {
    /// The value of a variable; one that is not text is an error, with the reason.
    fn get(&self, name: &str) -> Result<Option<String>, String>;

    /// The names of all variables that are text.
    fn names(&self) -> BTreeSet<String>;
}

/// The variables of this process.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProcessEnv;

impl Strings for ProcessEnv {
    fn get(&self, name: &str) -> Result<Option<String>, String> {
        match std::env::var(name) {
            Ok(value) => Ok(Some(value)),
            Err(std::env::VarError::NotPresent) => Ok(None),
            Err(std::env::VarError::NotUnicode(_)) => Err("the value is not UTF-8 text".to_owned()),
        }
    }

    fn names(&self) -> BTreeSet<String> {
        std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()).collect()
    }
}

impl Strings for BTreeMap<&str, &str> {
    fn get(&self, name: &str) -> Result<Option<String>, String> {
        Ok(BTreeMap::get(self, name).map(|value| (*value).to_owned()))
    }

    fn names(&self) -> BTreeSet<String> {
        self.keys().map(|name| (*name).to_owned()).collect()
    }
}

/// Everything that settings come from.
pub(crate) struct Sources<'a> {
    /// The flags that were given.
    pub(crate) flags: &'a Given,
    /// The environment.
    pub(crate) env: &'a dyn Strings,
    /// The folder where `remuda.toml` is looked for.
    pub(crate) dir: PathBuf,
}
