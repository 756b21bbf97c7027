//! What the client wants back: the answer as JSON, or the bytes of a file.

use http::{HeaderMap, header};
use remuda_core::OutputFile;

/// How many ranges of an `Accept` are looked at.
const MOST: usize = 64;

/// One range of an `Accept`.
#[derive(Debug, Clone, PartialEq)]
struct Range {
    kind: String,
    sub: String,
    /// From 0, never, to 1000.
    weight: u16,
}

impl Range {
    fn matches(&self, mime: &str) -> bool {
        let (kind, sub) = split(mime);
        (self.kind == "*" || self.kind.eq_ignore_ascii_case(kind))
            && (self.sub == "*" || self.sub.eq_ignore_ascii_case(sub))
    }

    /// 0 for everything, 1 for a kind, 2 for one type.
    fn precision(&self) -> u8 {
        u8::from(self.kind != "*") + u8::from(self.sub != "*")
    }
}

/// What is sent back.
#[derive(Debug, PartialEq)]
pub(super) enum Choice<'a> {
    /// Everything, as JSON.
    Json,
    /// This file.
    File(&'a OutputFile),
    /// Nothing that is there is wanted.
    Nothing,
}

/// What a client accepts, the dearest first.
#[derive(Debug, PartialEq)]
pub(super) struct Accept(Vec<Range>);

impl Accept {
    /// From the headers of a request. None: everything.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let values = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        let mut ranges: Vec<Range> =
            values.flat_map(|value| value.split(',')).filter_map(range).take(MOST).collect();
        // Stable: among equals the order of the client counts.
        ranges.sort_by_key(|range| (u16::MAX - range.weight, 2 - range.precision()));
        Self(ranges)
    }

    /// Chooses among the JSON and the files. `*/*` means JSON: it is what comes without any `Accept`.
    pub(super) fn choose<'a>(&self, files: &'a [OutputFile]) -> Choice<'a> {
        if self.0.is_empty() {
            return Choice::Json;
        }
        for range in self.0.iter().filter(|range| range.weight > 0) {
            if range.matches("application/json") && !self.refuses("application/json") {
                return Choice::Json;
            }
            let matching =
                || files.iter().filter(|file| range.matches(&file.mime) && !self.refuses(&file.mime));
            // A preview on the way is not what the graph was made for, unless there is nothing else.
            let found = matching().find(|file| file.file_type != "temp").or_else(|| matching().next());
            if let Some(file) = found {
                return Choice::File(file);
            }
        }
        Choice::Nothing
    }

    /// Whether the most precise word on a type is `q=0`.
    fn refuses(&self, mime: &str) -> bool {
        let words = self.0.iter().filter(|range| range.matches(mime));
        words.max_by_key(|range| range.precision()).is_some_and(|range| range.weight == 0)
    }
}

fn split(mime: &str) -> (&str, &str) {
    let essence = mime.split(';').next().unwrap_or_default().trim();
    essence.split_once('/').unwrap_or((essence, ""))
}

fn range(text: &str) -> Option<Range> {
    let (kind, sub) = split(text);
    if kind.is_empty() || sub.is_empty() {
        return None;
    }
    let mut weight = 1000;
    for parameter in text.split(';').skip(1) {
        let Some((name, value)) = parameter.split_once('=') else { continue };
        if name.trim().eq_ignore_ascii_case("q") {
            let q: f64 = value.trim().parse().ok().filter(|q: &f64| q.is_finite())?;
            weight = (q.clamp(0.0, 1.0) * 1000.0).round() as u16;
        }
    }
    Some(Range { kind: kind.to_owned(), sub: sub.to_owned(), weight })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use remuda_core::Sha256;

    fn file(n: i32, mime: &str, file_type: &str) -> OutputFile {
        OutputFile {
            n,
            key: String::new(),
            filename: format!("{n}"),
            subfolder: String::new(),
            node_id: "1".to_owned(),
            output: "images".to_owned(),
            file_type: file_type.to_owned(),
            mime: mime.to_owned(),
            size: 1,
            sha256: Sha256::of(b""),
        }
    }

    /// What is chosen: `json`, `-`, or the number of the file.
    fn chosen(accept: &'static str) -> String {
        let files = [
            file(0, "image/png", "temp"),
            file(1, "image/png", "output"),
            file(2, "image/webp", "output"),
            file(3, "video/mp4", "output"),
        ];
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
        match Accept::of(&headers).choose(&files) {
            Choice::Json => "json".to_owned(),
            Choice::File(file) => file.filename.clone(),
            Choice::Nothing => "-".to_owned(),
        }
    }

    #[test]
    fn the_dearest_that_is_there_is_chosen() {
        for (accept, choice) in [
            ("*/*", "json"),
            ("application/json", "json"),
            ("application/json, text/plain, */*", "json"),
            ("text/html,application/xhtml+xml,*/*;q=0.8", "json"),
            ("image/png", "1"),
            ("IMAGE/PNG", "1"),
            ("image/*", "1"),
            ("image/webp, image/png", "2"),
            ("image/png;q=0.2, video/*;q=0.9", "3"),
            ("image/*, image/png;q=0", "2"),
            ("image/*;q=0.1, application/json", "json"),
            ("image/*, application/json;q=0.1", "1"),
            ("image/*, */*;q=0.5", "1"),
            ("image/*, */*", "1"),
            ("audio/*, */*;q=0.5", "json"),
            ("audio/*", "-"),
            ("audio/*, */*;q=0.5, application/json;q=0", "1"),
            ("image/png;q=0", "-"),
            ("nonsense", "json"),
        ] {
            assert_eq!(chosen(accept), choice, "{accept}");
        }
        assert_eq!(Accept::of(&HeaderMap::new()).choose(&[]), Choice::Json);
    }
}
