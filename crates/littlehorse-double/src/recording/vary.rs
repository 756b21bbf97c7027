//! What differs from run to run without meaning anything.

use std::collections::BTreeMap;

use serde_json::Value;

/// Stands for every time.
pub(super) const TIME: &str = "<time>";

/// Ports, by the order in which they are seen.
#[derive(Debug, Default)]
pub(super) struct Ports(Vec<i64>);

impl Ports {
    fn name(&mut self, port: i64) -> String {
        let place = self.0.iter().position(|known| *known == port).unwrap_or_else(|| {
            self.0.push(port);
            self.0.len() - 1
        });
        format!("<port {}>", place + 1)
    }
}

/// A message without times, ports and stack frames.
pub(super) fn settle(message: Value, ports: &mut Ports) -> Value {
    match message {
        Value::String(text) => Value::String(without_frames(&without_times(&text))),
        Value::Array(items) => items.into_iter().map(|item| settle(item, ports)).collect(),
        Value::Object(fields) => {
            let field = |(name, value): (String, Value)| match (name.as_str(), value.as_i64()) {
                ("port", Some(port)) => (name, Value::String(ports.name(port))),
                _ => (name, settle(value, ports)),
            };
            // Sorted, since JSON objects have no order.
            let sorted: BTreeMap<String, Value> = fields.into_iter().map(field).collect();
            Value::Object(sorted.into_iter().collect())
        }
        other => other,
    }
}

/// Metadata without what says only who the client is.
pub(super) fn settle_metadata(metadata: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let value = |name: &str, value: &str| match name {
        "user-agent" => "<agent>".to_owned(),
        // Servers take it with and without the word.
        "authorization" if value.trim_start_matches("Bearer").trim().starts_with("token-") => {
            "<token>".to_owned()
        }
        _ => value.to_owned(),
    };
    metadata.iter().map(|(name, text)| (name.clone(), value(name, text))).collect()
}

fn without_times(text: &str) -> String {
    let mut settled = String::new();
    let mut rest = text;
    while !rest.is_empty() {
        match time_length(rest) {
            Some(length) => {
                settled.push_str(TIME);
                rest = &rest[length..];
            }
            None => {
                let next = rest.chars().next().map_or(1, char::len_utf8);
                settled.push_str(&rest[..next]);
                rest = &rest[next..];
            }
        }
    }
    settled
}

/// How long the time is with which a text begins.
fn time_length(text: &str) -> Option<usize> {
    const SHAPE: &[u8] = b"dddd-dd-dd dd:dd:dd";
    let bytes = text.as_bytes();
    let head = bytes.get(..SHAPE.len())?;
    let fits = |(have, want): (&u8, &u8)| match want {
        b'd' => have.is_ascii_digit(),
        b' ' => matches!(have, b' ' | b'T'),
        _ => have == want,
    };
    if !head.iter().zip(SHAPE).all(fits) {
        return None;
    }
    let mut length = SHAPE.len();
    if bytes.get(length) == Some(&b'.') {
        length += 1;
        length += bytes[length..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    }
    if bytes.get(length) == Some(&b'Z') {
        length += 1;
    }
    Some(length)
}

/// A Python stack trace says where the SDK is installed; only its last line has a meaning.
fn without_frames(text: &str) -> String {
    const TRACE: &str = "Traceback (most recent call last):\n";
    match text.trim_end().rsplit_once('\n') {
        Some((_, last)) if text.starts_with(TRACE) => format!("{TRACE}  [frames left out]\n{last}\n"),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_ports_and_frames_are_all_the_same() {
        let mut ports = Ports::default();
        let of = |value, ports: &mut Ports| settle(value, ports);
        assert_eq!(
            of(json!("[2026-11-15 06:59:41.642705] ä\n[2026-11-15T06:59:41Z] b"), &mut ports),
            "[<time>] ä\n[<time>] b"
        );
        assert_eq!(of(json!("2026-11-15 06:59"), &mut ports), "2026-11-15 06:59");
        let hosts = json!([{"port": 7}, {"port": 5}, {"port": 7}, {"count": 7}]);
        let settled = json!([{"port": "<port 1>"}, {"port": "<port 2>"}, {"port": "<port 1>"}, {"count": 7}]);
        assert_eq!(of(hosts, &mut ports), settled);
        let trace = "Traceback (most recent call last):\n  File \"x\"\n    y\nRuntimeError: z\n";
        let short = "Traceback (most recent call last):\n  [frames left out]\nRuntimeError: z\n";
        assert_eq!(of(json!(trace), &mut ports), short);
        assert_eq!(of(json!(short), &mut ports), short);
    }
}
