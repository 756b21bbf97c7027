//! Query strings as ComfyUI reads them: whatever is there more than once counts once, and what is unknown does not matter.

use std::collections::HashMap;

use http::Uri;
use url::form_urlencoded;

/// The parameters of a request.
#[derive(Debug, Default)]
pub(crate) struct Pairs(HashMap<String, String>);

impl Pairs {
    pub(crate) fn of(uri: &Uri) -> Self {
        let mut pairs = HashMap::new();
        for (name, value) in form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()) {
            pairs.entry(name.into_owned()).or_insert(value.into_owned());
        }
        Self(pairs)
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Whether a switch is on: `true` in any case, as ComfyUI has it.
    pub(crate) fn is_true(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| value.eq_ignore_ascii_case("true"))
    }
}
