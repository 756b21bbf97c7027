//! Files as Java's `Properties` reads them.

/// Reads the pairs of a properties text, in their order.
///
/// Comments begin with `#` or `!`; a key ends at `=`, `:` or white space; a backslash at the end of a line joins it with the
/// next; `\t`, `\n`, `\r`, `\f` and `\uXXXX` are what they are in Java, and any other escaped character is itself.
pub fn parse(text: &str) -> Result<Vec<(String, String)>, String> {
    let mut pairs = Vec::new();
    let mut lines = text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        let mut logical = line.trim_start_matches(BLANK).to_owned();
        if logical.is_empty() || logical.starts_with(['#', '!']) {
            continue;
        }
        while ends_open(&logical) {
            logical.pop();
            let Some((_, next)) = lines.next() else { break };
            logical.push_str(next.trim_start_matches(BLANK));
        }
        let (key, value) = split(&logical);
        let plain = |text| unescape(text).map_err(|reason| format!("line {}: {reason}", number + 1));
        pairs.push((plain(key)?, plain(value)?));
    }
    Ok(pairs)
}

const BLANK: [char; 3] = [' ', '\t', '\u{c}'];

/// Whether the last backslash of a line is not itself escaped.
fn ends_open(line: &str) -> bool {
    line.bytes().rev().take_while(|byte| *byte == b'\\').count() % 2 == 1
}

/// Key and value, both still escaped.
fn split(line: &str) -> (&str, &str) {
    let mut escaped = false;
    let end = line.find(|c: char| {
        let ends = !escaped && (c == '=' || c == ':' || BLANK.contains(&c));
        escaped = c == '\\' && !escaped;
        ends
    });
    let Some(end) = end else { return (line, "") };
    let rest = line[end..].trim_start_matches(BLANK);
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest);
    (&line[..end], rest.trim_start_matches(BLANK))
}

fn unescape(text: &str) -> Result<String, String> {
    let mut units: Vec<u16> = Vec::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let plain = match c {
            '\\' => match chars.next() {
                None => break,
                Some('t') => '\t',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('f') => '\u{c}',
                Some('u') => {
                    let digits: String = chars.by_ref().take(4).collect();
                    let unit = if digits.len() == 4 { u16::from_str_radix(&digits, 16).ok() } else { None };
                    units.push(unit.ok_or_else(|| format!("\\u{digits} is not a character"))?);
                    continue;
                }
                Some(other) => other,
            },
            c => c,
        };
        units.extend_from_slice(plain.encode_utf16(&mut [0; 2]));
    }
    String::from_utf16(&units).map_err(|_| "half of a character".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &[(&str, &str)]) {
        let pairs = parse(text).unwrap();
        let pairs: Vec<(&str, &str)> = pairs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(pairs, expected, "{text:?}");
    }

    #[test]
    fn pairs_are_read_as_java_does() {
        check(
            "LHC_API_HOST=server\nLHC_API_PORT = 2023\r\n",
            &[("LHC_API_HOST", "server"), ("LHC_API_PORT", "2023")],
        );
        check("a:b\nc d\ne\t:\tf\ng", &[("a", "b"), ("c", "d"), ("e", "f"), ("g", "")]);
        check("  # no\n ! no\n\n \t\n  x = #y ! z  ", &[("x", "#y ! z  ")]);
        check("url=http://h:1/p?a=b", &[("url", "http://h:1/p?a=b")]);
        check("a = = b", &[("a", "= b")]);
    }

    #[test]
    fn escapes_and_continuations_are_read_as_java_does() {
        check("a\\=b\\ c\\:d = e", &[("a=b c:d", "e")]);
        check("path=C:\\\\temp\\\\", &[("path", "C:\\temp\\")]);
        check("long = one, \\\n      two\nnext=1", &[("long", "one, two"), ("next", "1")]);
        check("a=1\\\n# not a comment", &[("a", "1# not a comment")]);
        check("end=x\\", &[("end", "x")]);
        check("t=\\t\\n\\u00e4\\ud83d\\udc0e\\q", &[("t", "\t\nä🐎q")]);
    }

    #[test]
    fn what_is_no_character_is_told_with_its_line() {
        assert_eq!(parse("a=1\nb=\\u12").unwrap_err(), "line 2: \\u12 is not a character");
        assert_eq!(parse("b=\\ud83d").unwrap_err(), "line 1: half of a character");
    }

    /// As Java's `store` writes it.
    fn escaped(text: &str) -> String {
        let mut out = String::new();
        for unit in text.encode_utf16() {
            match char::from_u32(unit.into()) {
                Some(c) if c.is_ascii_alphanumeric() => out.push(c),
                Some(c @ (' ' | '=' | ':' | '#' | '!' | '\\')) => out.extend(['\\', c]),
                _ => out.push_str(&format!("\\u{unit:04x}")),
            }
        }
        out
    }

    proptest::proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "(\\PC|[\\\\\n\r\t =:#!u0-9a-f]){0,200}") {
            drop(parse(&text));
        }

        #[test]
        fn what_java_writes_is_read_back(pairs in proptest::collection::vec((".{1,20}", ".{0,20}"), 0..5)) {
            let text: String = pairs.iter().map(|(key, value)| format!("{}={}\n", escaped(key), escaped(value))).collect();
            proptest::prop_assert_eq!(parse(&text).unwrap(), pairs);
        }
    }
}
