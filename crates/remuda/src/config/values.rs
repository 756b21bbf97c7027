//! The kinds of values that settings have: how they are written, and how they are shown.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use super::redact;
use url::Url;

/// A duration as people write it: `30s`, `1h30m`, `7d`, or plain seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span(pub(crate) Duration);

/// Units of a duration in milliseconds, the largest first.
const TIMES: &[(&str, u64)] =
    &[("w", 604_800_000), ("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted =
            || format!("`{text}` is not a duration; write one such as 30s, 5m, 1h30m or 7d, or seconds");
        let text = text.trim();
        if text.is_empty() {
            return Err(wanted());
        }
        if text.bytes().all(|byte| byte.is_ascii_digit()) {
            return text.parse().map(|seconds| Self(Duration::from_secs(seconds))).map_err(|_| wanted());
        }
        // Half a second, as other programs write it.
        if let Some((whole, part)) = text.split_once('.')
            && (1..=3).contains(&part.len())
            && [whole, part].iter().all(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
        {
            let whole: u64 = whole.parse().map_err(|_| wanted())?;
            let part: u64 = format!("{part:0<3}").parse().map_err(|_| wanted())?;
            let millis = whole.checked_mul(1000).and_then(|whole| whole.checked_add(part));
            return millis.map(|millis| Self(Duration::from_millis(millis))).ok_or_else(wanted);
        }
        let (mut rest, mut total) = (text, 0_u64);
        while !rest.is_empty() {
            let (number, unit, tail) = number_and_word(rest).ok_or_else(wanted)?;
            let (_, factor) = TIMES.iter().find(|(name, _)| *name == unit).ok_or_else(wanted)?;
            total =
                number.checked_mul(*factor).and_then(|part| total.checked_add(part)).ok_or_else(wanted)?;
            rest = tail;
        }
        Ok(Self(Duration::from_millis(total)))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX);
        if left == 0 {
            return f.write_str("0s");
        }
        // Weeks are read and not written: "7d" is what people say.
        for (unit, factor) in &TIMES[1..] {
            let count = left / factor;
            left %= factor;
            if count > 0 {
                write!(f, "{count}{unit}")?;
            }
        }
        Ok(())
    }
}

/// Splits `30s…` into the number, the word after it, and the rest.
fn number_and_word(text: &str) -> Option<(u64, &str, &str)> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number = text[..digits].parse().ok()?;
    let after = text[digits..].trim_start();
    let word = after.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(after.len());
    Some((number, &after[..word], after[word..].trim_start()))
}

/// A number of bytes as people write it: `32MiB`, `10GB`, or plain bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

/// Units of a size, the largest binary ones first: those are what is written.
const SIZES: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("`{text}` is not a size; write one such as 512KiB, 32MiB or 10GB, or bytes");
        let (number, unit, rest) = number_and_word(text.trim()).ok_or_else(wanted)?;
        let unit = if unit.is_empty() { "B" } else { unit };
        let (_, factor) =
            SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or_else(wanted)?;
        match number.checked_mul(*factor) {
            Some(bytes) if rest.is_empty() => Ok(Self(bytes)),
            _ => Err(wanted()),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = SIZES[..4].iter().find(|(_, factor)| self.0 >= *factor && self.0.is_multiple_of(*factor));
        match whole {
            Some((unit, factor)) => write!(f, "{}{unit}", self.0 / factor),
            None => write!(f, "{}B", self.0),
        }
    }
}

/// Where to listen. A name is resolved when the socket is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Listen {
    /// A name or a number, an IPv6 number without its brackets.
    pub(crate) host: String,
    /// The port; 0 takes a free one.
    pub(crate) port: u16,
}

impl Listen {
    /// The host that is never left unless somebody says so.
    pub(crate) const LOOPBACK: &'static str = "127.0.0.1";

    /// Whether only this machine can reach it.
    pub(crate) fn is_loopback(&self) -> bool {
        self.host.parse::<IpAddr>().map_or(self.host.eq_ignore_ascii_case("localhost"), |ip| ip.is_loopback())
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || {
            format!("`{text}` is not an address to listen on; write HOST:PORT, for example 127.0.0.1:8080")
        };
        if let Ok(port) = text.parse() {
            return Ok(Self { host: Self::LOOPBACK.to_owned(), port });
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(wanted)?;
        if host.contains(':') && !host.starts_with('[') {
            // The last group of an IPv6 number could as well be the port.
            return Err(wanted());
        }
        Ok(Self { host: host_name(host).ok_or_else(wanted)?, port: port.parse().map_err(|_| wanted())? })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

/// A host without its port: a name, an IPv4 number, or an IPv6 number in or without brackets.
pub(super) fn host_name(text: &str) -> Option<String> {
    let bracketed = text.strip_prefix('[').and_then(|inner| inner.strip_suffix(']'));
    if bracketed.is_some() || text.contains(':') {
        let number = bracketed.unwrap_or(text);
        return number.parse::<Ipv6Addr>().is_ok().then(|| number.to_owned());
    }
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    (!text.is_empty() && text.chars().all(fine)).then(|| text.to_owned())
}

/// Text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl Secret {
    /// The text itself, for the one place that needs it.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // What cannot be in a header would fail at the first request, far from where it was written.
        if text.chars().any(|c| c.is_whitespace() || c.is_control() || !c.is_ascii()) {
            return Err(
                "a key has no blanks, line ends or letters outside ASCII; was it copied whole?".to_owned()
            );
        }
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(redact::HIDDEN)
    }
}

/// Which store holds the tasks.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// A file of our own.
    Sqlite(PathBuf),
    /// A server; the address with its password.
    Postgres(String),
}

impl FromStr for StoreUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(text.to_owned()));
        }
        let path = text.strip_prefix("sqlite:").map(|path| path.strip_prefix("//").unwrap_or(path));
        match path {
            Some("") => Err("`sqlite:` lacks the path of the file; write sqlite:PATH".to_owned()),
            Some(":memory:") => Err("a store in memory would lose its tasks; write sqlite:PATH".to_owned()),
            Some(path) => Ok(Self::Sqlite(PathBuf::from(path))),
            None => Err(format!(
                "`{}` is not a store; write sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE",
                redact::addresses(text)
            )),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(url) => f.write_str(&redact::addresses(url)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A ComfyUI to use, and the labels that tasks can require of it.
///
/// As text it is the address and then the labels, with blanks between them: `http://10.0.0.5:8188 gpu=4090 fast`.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ComfyUi {
    /// Its address.
    pub(crate) url: Url,
    /// Its labels, `NAME` or `NAME=VALUE`.
    pub(crate) labels: Vec<String>,
}

impl FromStr for ComfyUi {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut words = text.split_whitespace();
        let url = http_url(words.next().unwrap_or_default())?;
        let labels: Vec<String> = words.map(str::to_owned).collect();
        match labels.iter().find(|label| !is_label(label)) {
            Some(label) => Err(format!(
                "`{label}` is not a label; write NAME or NAME=VALUE with letters, digits and . _ - / :"
            )),
            None => Ok(Self { url, labels }),
        }
    }
}

/// Whether it can be a label: a name, or a name and a value.
pub(super) fn is_label(text: &str) -> bool {
    let fine = |part: &str| {
        !part.is_empty()
            && part.chars().all(|c| c.is_alphanumeric() || matches!(c, '.' | '_' | '-' | '/' | ':'))
    };
    match text.split_once('=') {
        Some((name, value)) => fine(name) && fine(value),
        None => fine(text),
    }
}

impl fmt::Display for ComfyUi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(redact::addresses(self.url.as_str()).trim_end_matches('/'))?;
        self.labels.iter().try_for_each(|label| write!(f, " {label}"))
    }
}

impl fmt::Debug for ComfyUi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An http or https address; `HOST:PORT` alone means http.
pub(super) fn http_url(text: &str) -> Result<Url, String> {
    let wanted = || {
        format!("`{}` is not an address; write one such as http://127.0.0.1:8188", redact::addresses(text))
    };
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url = Url::parse(&whole).map_err(|_| wanted())?;
    let fine =
        matches!(url.scheme(), "http" | "https") && url.has_host() && !text.contains(char::is_whitespace);
    if fine { Ok(url) } else { Err(wanted()) }
}

/// The address of a server of ours: keys are given apart from it, so that the address can be shown.
pub(super) fn server_url(text: &str) -> Result<Url, String> {
    let url = http_url(text)?;
    if url.username().is_empty() && url.password().is_none() {
        Ok(url)
    } else {
        Err("the address has a user or a password in it; give the API key with --key or REMUDA_API_KEY"
            .to_owned())
    }
}

/// On or off, in the words that people use in an environment.
pub(super) fn switch(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

/// ComfyUIs with commas between them.
pub(super) fn comfyuis(text: &str) -> Result<Vec<ComfyUi>, String> {
    let all = parts(text).map(str::parse).collect::<Result<Vec<ComfyUi>, _>>()?;
    for (number, one) in all.iter().enumerate() {
        // Two runners on one ComfyUI would take each other's prompts for foreign ones.
        if all[..number].iter().any(|earlier| earlier.url == one.url) {
            return Err(format!("{one} is there twice"));
        }
    }
    Ok(all)
}

/// The origin of a web page, as a browser writes it: without a slash at its end.
pub(super) fn origin(text: &str) -> Result<String, String> {
    let origin = text.trim_end_matches('/');
    let host = origin.split_once("://").map(|(_, host)| host);
    if origin == "*" || host.is_some_and(|host| !host.is_empty() && !host.contains(['/', '?', '#'])) {
        Ok(origin.to_owned())
    } else {
        Err(format!("`{text}` is not an origin; write one such as https://example.org, or *"))
    }
}

/// A name that can stand in an address and in a log line.
pub(super) fn name(text: &str) -> Result<(), String> {
    let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    if text.len() <= 64 && text.chars().all(fine) {
        Ok(())
    } else {
        Err(format!("`{text}` is not a name; write up to 64 letters, digits and . _ -"))
    }
}

/// The parts of a list that is written with commas.
pub(super) fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_and_shown() {
        for (text, seconds, shown) in [
            ("1800", 1800, "30m"),
            ("30s", 30, "30s"),
            ("90s", 90, "1m30s"),
            ("1h30m", 5400, "1h30m"),
            ("1h 30m", 5400, "1h30m"),
            ("7d", 604_800, "7d"),
            ("2w", 1_209_600, "14d"),
            ("0", 0, "0s"),
        ] {
            let span: Span = text.parse().expect(text);
            assert_eq!(span.0.as_secs(), seconds, "{text}");
            assert_eq!(span.to_string(), shown);
            assert_eq!(shown.parse(), Ok(span));
        }
        assert_eq!("1500ms".parse::<Span>().expect("milliseconds").to_string(), "1s500ms");
        for text in ["", "s", "30x", "-5s", "1.5h", "five", "99999999999999999999", "30s5"] {
            assert!(text.parse::<Span>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_read_and_shown() {
        for (text, bytes, shown) in [
            ("32MiB", 33_554_432, "32MiB"),
            ("32 mib", 33_554_432, "32MiB"),
            ("10GB", 10_000_000_000, "9765625KiB"),
            ("1024", 1024, "1KiB"),
            ("1000", 1000, "1000B"),
        ] {
            let size: Size = text.parse().expect(text);
            assert_eq!((size.0, size.to_string().as_str()), (bytes, shown), "{text}");
            assert_eq!(shown.parse(), Ok(size));
        }
        for text in ["", "MiB", "3M", "-1", "1.5GiB", "99999999TiB", "1MiB2"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn places_to_listen_are_loopback_unless_a_host_is_named() {
        for (text, shown, loopback) in [
            ("9000", "127.0.0.1:9000", true),
            ("localhost:80", "localhost:80", true),
            ("[::1]:80", "[::1]:80", true),
            ("127.0.0.5:1", "127.0.0.5:1", true),
            ("0.0.0.0:8080", "0.0.0.0:8080", false),
            ("[::]:8080", "[::]:8080", false),
            ("gpu-box.lan:8080", "gpu-box.lan:8080", false),
        ] {
            let listen: Listen = text.parse().expect(text);
            assert_eq!((listen.to_string().as_str(), listen.is_loopback()), (shown, loopback), "{text}");
        }
        for text in
            ["", ":8080", "::1", "localhost", "localhost:http", "1.2.3.4:70000", "http://x:1", "a b:1"]
        {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
    }

    #[test]
    fn stores_say_what_they_want() {
        assert_eq!("sqlite:a/b.db".parse(), Ok(StoreUrl::Sqlite("a/b.db".into())));
        assert_eq!("sqlite:///a/b.db".parse(), Ok(StoreUrl::Sqlite("/a/b.db".into())));
        let store: StoreUrl = "postgres://u:p@h/d".parse().expect("an address");
        assert_eq!(format!("{store:?}"), "postgres://u:***@h/d");
        for text in ["", "sqlite:", "sqlite::memory:", "mysql://h/d", "remuda.db"] {
            assert!(text.parse::<StoreUrl>().expect_err(text).contains("sqlite:PATH"), "{text}");
        }
    }

    #[test]
    fn a_comfyui_has_an_address_and_labels() {
        let comfyui: ComfyUi = "127.0.0.1:8188 gpu=4090  fast".parse().expect("an address");
        assert_eq!(comfyui.url.as_str(), "http://127.0.0.1:8188/");
        assert_eq!(comfyui.labels, ["gpu=4090", "fast"]);
        assert_eq!(comfyui.to_string(), "http://127.0.0.1:8188 gpu=4090 fast");
        for text in ["", "ftp://x", "http://", "http://h gpu=", "http://h =x", "http://h a;b"] {
            assert!(text.parse::<ComfyUi>().is_err(), "{text}");
        }
    }
}
