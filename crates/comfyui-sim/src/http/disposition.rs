//! `Content-Disposition` in multipart fields, read as aiohttp reads it.

use percent_encoding::percent_decode_str;
use std::collections::HashMap;

/// Name and file name of a field. Both are `None` when the header cannot be read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Disposition {
    pub(crate) name: Option<String>,
    pub(crate) filename: Option<String>,
}

impl Disposition {
    pub(crate) fn parse(header: &str) -> Self {
        let params = parameters(header).unwrap_or_default();
        Self { name: chosen(&params, "name"), filename: chosen(&params, "filename") }
    }
}

/// The extended form (RFC 5987) wins over the plain one.
fn chosen(params: &HashMap<String, String>, name: &str) -> Option<String> {
    params.get(&format!("{name}*")).or_else(|| params.get(name)).cloned()
}

fn parameters(header: &str) -> Option<HashMap<String, String>> {
    let mut parts = header.split(';').map(str::to_owned).collect::<Vec<_>>().into_iter().peekable();
    if !is_token(parts.next()?.trim()) {
        return None;
    }
    let mut params = HashMap::new();
    while let Some(item) = parts.next() {
        if item.is_empty() {
            continue;
        }
        let (key, value) = item.split_once('=')?;
        let (key, value) = (key.trim().to_ascii_lowercase(), value.trim_start());
        if params.contains_key(&key) {
            return None;
        }
        if !is_token(&key) {
            continue;
        }
        let value = if key.ends_with('*') {
            match extended(value) {
                Some(value) => value,
                None => continue,
            }
        } else if let Some(inner) = quoted(value.trim_end()) {
            unescape(inner)
        } else if is_token(value) {
            value.to_owned()
        } else {
            // A semicolon inside the quotes has split the value in two.
            let joined = format!("{value};{}", parts.peek()?);
            let unquoted = unescape(quoted(&joined)?);
            parts.next();
            unquoted
        };
        params.insert(key, value);
    }
    Some(params)
}

/// What stands between the quotes, without slashes at its start.
fn quoted(text: &str) -> Option<&str> {
    let inner = text.strip_prefix('"')?.strip_suffix('"')?;
    Some(inner.trim_start_matches(['\\', '/']))
}

/// `charset'language'percent-encoded`; only UTF-8 is known here.
fn extended(value: &str) -> Option<String> {
    if !is_token(value) {
        return None;
    }
    let mut parts = value.splitn(3, '\'');
    let charset = parts.next()?;
    let text = parts.nth(1).filter(|text| !text.contains('\''))?;
    if !(charset.is_empty() || charset.eq_ignore_ascii_case("utf-8")) {
        return None;
    }
    Some(percent_decode_str(text).decode_utf8().ok()?.into_owned())
}

fn unescape(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match characters.peek() {
            Some(&next) if character == '\\' && next.is_ascii() => {
                plain.push(next);
                characters.next();
            }
            _ => plain.push(character),
        }
    }
    plain
}

fn is_token(text: &str) -> bool {
    let separators = "()<>@,;:\\\"/[]?={} \t";
    !text.is_empty() && text.chars().all(|c| c.is_ascii() && !c.is_ascii_control() && !separators.contains(c))
}

#[cfg(test)]
mod tests {
    use super::Disposition;

    #[test]
    fn file_names_are_read_as_recorded() {
        let check = |parameter: &str, expected: Option<&str>| {
            let header = format!("form-data; name=\"image\"; {parameter}");
            let read = Disposition::parse(&header);
            assert_eq!(read.filename.as_deref(), expected, "{header}");
            assert_eq!(read.name.as_deref(), Some("image"), "{header}");
        };
        check(r#"filename="raw_a.png""#, Some("raw_a.png"));
        check(r#"filename="../raw_evil.png""#, Some("../raw_evil.png"));
        check(r#"filename="/tmp/raw_evil.png""#, Some("tmp/raw_evil.png"));
        check(r#"filename="//existing/y.png""#, Some("existing/y.png"));
        check(r#"filename="имя 画.png""#, Some("имя 画.png"));
        check("filename*=utf-8''%D0%B8%D0%BC%D1%8F%202.png", Some("имя 2.png"));
        check(r#"filename="fallback.png"; filename*=utf-8''%D0%B8%203.png"#, Some("и 3.png"));
        check(r#"filename="a%20b.png""#, Some("a%20b.png"));
        check(r#"filename="a\"b.png""#, Some("a\"b.png"));
        check(r#"filename="dir\\file.png""#, Some("dir\\file.png"));
        check(r#"filename="a;b.png""#, Some("a;b.png"));
        check(r#"filename="""#, Some(""));
        check("filename=plain.png", Some("plain.png"));
    }

    #[test]
    fn what_cannot_be_read_has_no_name() {
        for header in ["", "form-data; name", "form-data; name=\"a\"; name=\"b\"", "form data; name=\"a\""] {
            assert_eq!(Disposition::parse(header), Disposition::default(), "{header}");
        }
    }
}
