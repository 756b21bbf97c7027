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
