//! Which requests a fault is about.

use std::fmt;
use std::str::FromStr;

/// A method and a path pattern, such as `POST /prompt`, `/history/*` or `GET /view`.
///
/// Without a method all methods match. `*` stands for any text without a slash, `**` for any text. Routes are
/// named without `/api`; requests are matched with and without it, and the query does not count.
///
/// ```
/// use comfyui_sim::faults::RouteFilter;
///
/// let filter: RouteFilter = "GET /history/*".parse()?;
/// assert!(filter.matches("GET", "/history/7db19e3e"));
/// assert!(filter.matches("GET", "/api/history/7db19e3e"));
/// assert!(!filter.matches("POST", "/history/7db19e3e"));
/// assert!(!filter.matches("GET", "/history"));
/// # Ok::<(), comfyui_sim::faults::RouteFilterError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteFilter {
    method: Option<String>,
    pattern: String,
}

/// Why a text is no [`RouteFilter`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteFilterError {
    /// There is no path, or it does not begin with a slash.
    #[error(
        "`{0}` is no route: expected a path such as `/prompt`, optionally after a method as in `POST /prompt`"
    )]
    NoPath(String),
    /// The word before the path is not a method.
    #[error("`{method}` in `{route}` is no HTTP method")]
    BadMethod {
        /// What stands in the place of the method.
        method: String,
        /// The whole text.
        route: String,
    },
    /// `/sim/...` is how faults are controlled, so no fault may hit it.
    #[error("`{0}` cannot be hit by faults")]
    ControlRoute(String),
}

impl RouteFilter {
    /// Whether a request for `path` (without query) is meant.
    pub fn matches(&self, method: &str, path: &str) -> bool {
        self.method.as_deref().is_none_or(|wanted| wanted == method)
            && glob(self.pattern.as_bytes(), without_api(path).as_bytes())
    }
}

impl FromStr for RouteFilter {
    type Err = RouteFilterError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        let (method, path) = match text.split_once(char::is_whitespace) {
            Some((method, path)) => (Some(method), path.trim_start()),
            None => (None, text),
        };
        if !path.starts_with('/') {
            return Err(RouteFilterError::NoPath(text.to_owned()));
        }
        if path == "/sim" || path.starts_with("/sim/") {
            return Err(RouteFilterError::ControlRoute(text.to_owned()));
        }
        if let Some(method) = method
            && !method.bytes().all(|byte| byte.is_ascii_alphabetic())
        {
            return Err(RouteFilterError::BadMethod { method: method.to_owned(), route: text.to_owned() });
        }
        Ok(Self { method: method.map(str::to_ascii_uppercase), pattern: without_api(path).to_owned() })
    }
}

impl fmt::Display for RouteFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(method) = &self.method {
            write!(f, "{method} ")?;
        }
        f.write_str(&self.pattern)
    }
}

fn without_api(path: &str) -> &str {
    match path.strip_prefix("/api") {
        Some(rest) if rest.starts_with('/') => rest,
        _ => path,
    }
}

fn glob(pattern: &[u8], text: &[u8]) -> bool {
    match pattern {
        [] => text.is_empty(),
        [b'*', b'*', rest @ ..] => (0..=text.len()).any(|at| glob(rest, &text[at..])),
        [b'*', rest @ ..] => {
            let end = text.iter().position(|&byte| byte == b'/').unwrap_or(text.len());
            (0..=end).any(|at| glob(rest, &text[at..]))
        }
        [byte, rest @ ..] => text.first() == Some(byte) && glob(rest, &text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::{RouteFilter, RouteFilterError};

    fn filter(text: &str) -> RouteFilter {
        text.parse().unwrap()
    }

    #[test]
    fn patterns_match_as_documented() {
        let check = |pattern: &str, method: &str, path: &str, expected: bool| {
            assert_eq!(filter(pattern).matches(method, path), expected, "{pattern} on {method} {path}");
        };
        check("POST /prompt", "POST", "/prompt", true);
        check("post /prompt", "POST", "/api/prompt", true);
        check("POST /api/prompt", "POST", "/prompt", true);
        check("POST /prompt", "GET", "/prompt", false);
        check("/prompt", "GET", "/prompt", true);
        check("/history/*", "GET", "/history/a/b", false);
        check("/history/**", "GET", "/history/a/b", true);
        check("/**", "GET", "/", true);
        check("/view*", "GET", "/view_metadata", true);
        check("/apiary", "GET", "/apiary", true);
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        let error = |text: &str| text.parse::<RouteFilter>().unwrap_err();
        assert_eq!(error("POST"), RouteFilterError::NoPath("POST".into()));
        assert!(matches!(error("P0ST /x"), RouteFilterError::BadMethod { .. }));
        assert!(matches!(error("GET /sim/stats"), RouteFilterError::ControlRoute(_)));
    }
}
