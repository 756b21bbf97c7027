//! Which members of `extra_data` are secret, and taking them out and putting them back.
//!
//! ComfyUI and its paid nodes expect their keys at the top. A member with a secret further inside is secret as a whole.
//! Values are never changed, only moved, so that what is not secret stays byte for byte as it came.

use std::fmt;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Words that make a name secret wherever they stand in it.
const WORDS: [&str; 16] = [
    "apikey",
    "auth",
    "authorization",
    "bearer",
    "cookie",
    "credential",
    "credentials",
    "jwt",
    "oauth",
    "passcode",
    "passphrase",
    "passwd",
    "password",
    "pwd",
    "secret",
    "token",
];

/// Parts of words that do: for names that are written together.
const PARTS: [&str; 6] = ["apikey", "accesskey", "privatekey", "password", "secret", "authorization"];

/// Words before `key` that make it one that opens something.
const KEYS: [&str; 6] = ["access", "api", "auth", "private", "secret", "service"];

/// Words at the end of a name that make it one that opens something, if its value looks like it …
const ENDS: [&str; 3] = ["key", "keys", "tokens"];

/// … unless one of these before it says that it is for something else.
const HARMLESS: [&str; 17] = [
    "cache",
    "count",
    "foreign",
    "group",
    "idempotency",
    "input",
    "lookup",
    "max",
    "min",
    "new",
    "num",
    "output",
    "partition",
    "primary",
    "public",
    "sort",
    "total",
];

/// How many letters and digits without a gap look like a key.
const KEY_LENGTH: usize = 16;

/// Members that are not looked into: they are what the client shows, and go into the pictures.
const SHOWN: [&str; 2] = ["extra_pnginfo", "workflow"];

/// How deep inside a member secrets are looked for …
const DEEPEST: usize = 4;

/// … and among how many members and items of `extra_data` together.
const MOST: usize = 10_000;

/// Names that are longer are none of anything secret.
const LONGEST: usize = 1024;

/// Clients send a field also when they have nothing for it.
const NOTHING: [&str; 4] = ["null", "\"\"", "{}", "[]"];

/// Whether a member of `extra_data` with this name holds a secret, whatever it is: `api_key_comfy_org`,
/// `auth_token_comfy_org`, `openaiApiKey`, `Authorization`. `max_tokens` and `keyframes` do not.
pub fn is_secret(name: &str) -> bool {
    says_secret(&words(name))
}

fn says_secret(words: &[String]) -> bool {
    words.iter().any(|word| {
        WORDS.contains(&word.as_str())
            || word.ends_with("token")
            || PARTS.iter().any(|part| word.contains(part))
    }) || words.windows(2).any(|pair| KEYS.contains(&pair[0].as_str()) && pair[1] == "key")
}

/// Whether a member is secret by its name and by the beginning of its value: a `license_key` is, if it looks like one.
fn is_secret_member(name: &str, value: &str) -> bool {
    if NOTHING.iter().any(|nothing| value.starts_with(nothing)) {
        return false;
    }
    let words = words(name);
    says_secret(&words) || (ends_in_key(&words) && looks_like_a_key(value))
}

fn ends_in_key(words: &[String]) -> bool {
    let Some((last, before)) = words.split_last() else { return false };
    ENDS.contains(&last.as_str()) && !before.iter().any(|word| HARMLESS.contains(&word.as_str()))
}

fn looks_like_a_key(value: &str) -> bool {
    let beginning = value.as_bytes().get(..LONGEST).unwrap_or(value.as_bytes());
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    beginning
        .split(|byte| !is_part(byte))
        .any(|run| run.len() >= KEY_LENGTH && run.iter().any(u8::is_ascii_digit))
}

/// Whether something inside of a value is secret by its name, as far as it is looked for. The text is walked through and
/// nothing of it is kept: it may be as long as a request.
fn holds_secret(value: &RawValue, left: &mut usize) -> bool {
    let text = value.get();
    let bytes = text.as_bytes();
    let (mut at, mut depth) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b'"' => {
                let end = end_of_string(bytes, at);
                let value = text.get(end..).unwrap_or_default().trim_start();
                if let Some(value) = value.strip_prefix(':')
                    && depth <= DEEPEST
                    && end - at <= LONGEST
                    && let Some(name) = text.get(at..end).and_then(name_of)
                    && is_secret_member(&name, value.trim_start())
                {
                    return true;
                }
                at = end;
                continue;
            }
            _ => {}
        }
        if matches!(byte, b'{' | b'[' | b',') && depth <= DEEPEST {
            *left = left.saturating_sub(1);
            if *left == 0 {
                return false;
            }
        }
        at += 1;
    }
    false
}

/// Where the text that begins here with a quote is over.
fn end_of_string(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn name_of(quoted: &str) -> Option<String> {
    serde_json::from_str(quoted).ok()
}

/// The words of a name, in lower case: `apiKey_v2` is `api`, `key`, `v2`.
fn words(name: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut small_before = false;
    for letter in name.chars() {
        let ends = !letter.is_alphanumeric() || (letter.is_uppercase() && small_before);
        if ends && !word.is_empty() {
            words.push(std::mem::take(&mut word));
        }
        if letter.is_alphanumeric() {
            word.extend(letter.to_lowercase());
        }
        small_before = letter.is_lowercase() || letter.is_numeric();
    }
    if !word.is_empty() {
        words.push(word);
    }
    // `token2` is another token.
    for word in &mut words {
        let bare = word.trim_end_matches(|letter: char| letter.is_ascii_digit());
        if !bare.is_empty() {
            word.truncate(bare.len());
        }
    }
    words
}

/// `extra_data` in two parts.
pub struct Split {
    /// What anybody may read.
    pub open: Box<RawValue>,
    /// The secret members, as a JSON object.
    pub secret: String,
    /// Their names.
    pub names: Vec<String>,
}

/// Never shows what is secret.
impl fmt::Debug for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Split").field("names", &self.names).finish_non_exhaustive()
    }
}

/// Takes the secret members out of `extra_data`. `None`: it has none.
pub fn split(extra_data: &RawValue) -> Option<Split> {
    let members: Members<'_> = serde_json::from_str(extra_data.get()).ok()?;
    let mut left = MOST;
    let (secret, open): (Vec<_>, Vec<_>) = members.0.into_iter().partition(|(name, value)| {
        is_secret_member(name, value.get())
            || (!SHOWN.contains(&name.as_str()) && holds_secret(value, &mut left))
    });
    if secret.is_empty() {
        return None;
    }
    let mut names: Vec<String> = secret.iter().map(|(name, _)| name.clone()).collect();
    names.dedup();
    let open = RawValue::from_string(object(&open)).ok()?;
    Some(Split { open, secret: object(&secret), names })
}

/// Puts the secret members back. `None`: one of them is no JSON object, so something was changed in between.
pub fn join(open: Option<&RawValue>, secret: &str) -> Option<Box<RawValue>> {
    let open: Members<'_> = match open {
        Some(open) => serde_json::from_str(open.get()).ok()?,
        None => Members::default(),
    };
    let secret: Members<'_> = serde_json::from_str(secret).ok()?;
    let all: Vec<_> = open.0.into_iter().chain(secret.0).collect();
    RawValue::from_string(object(&all)).ok()
}

fn object(members: &[(String, &RawValue)]) -> String {
    let mut text = String::from("{");
    for (n, (name, value)) in members.iter().enumerate() {
        if n > 0 {
            text.push(',');
        }
        text.push_str(&serde_json::Value::from(name.as_str()).to_string());
        text.push(':');
        text.push_str(value.get());
    }
    text.push('}');
    text
}

/// The members of an object in their order, also those that are there twice, values unread.
#[derive(Default)]
struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Vec<(String, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Fields).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_without_a_value_is_no_secret() {
        let split = |text: &str| split(&RawValue::from_string(text.to_owned()).unwrap());
        assert!(split(r#"{"api_key_comfy_org": "", "auth_token_comfy_org": null, "token": {}}"#).is_none());
        let found = split(r#"{"api_key_comfy_org": "", "token": "t"}"#).unwrap();
        assert_eq!(found.names, ["token"]);
        assert_eq!(found.open.get(), r#"{"api_key_comfy_org":""}"#);
    }

    #[test]
    fn secrets_are_known_by_their_names() {
        for name in [
            "api_key_comfy_org",
            "auth_token_comfy_org",
            "token",
            "accessToken",
            "authtoken",
            "openaiApiKey",
            "OPENAI_API_KEY",
            "apikey",
            "client-secret",
            "password",
            "Authorization",
            "x-auth",
            "aws.access.key",
            "private_key",
            "OAuth",
            "apitoken1",
            "password2",
            "passcode",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "extra_pnginfo",
            "client_id",
            "preview_method",
            "max_tokens",
            "maxNewTokens",
            "tokenizer",
            "keyframes",
            "monkey",
            "key_frame",
            "author",
            "create_time",
            "",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn what_is_called_a_key_is_one_if_it_looks_like_it() {
        for name in ["key", "license_key", "openaiKeys", "tokens", "user_tokens"] {
            for value in ["\"sk-0123456789abcd\"", "[\"a\", \"f81d4fae7dec11d0a765\"]"] {
                assert!(is_secret_member(name, value), "{name} {value}");
            }
            for value in ["\"own\"", "12", "\"a sentence of some words, 1 or 2\"", "\"\"", "null"] {
                assert!(!is_secret_member(name, value), "{name} {value}");
            }
        }
        assert!(!is_secret_member("cache_key", "\"f81d4fae7dec11d0a765\""));
        assert!(!is_secret_member("max_tokens", "1234567890123456"));
    }

    #[test]
    fn a_member_with_a_secret_inside_is_secret_as_a_whole() {
        let split = |text: &str| split(&RawValue::from_string(text.to_owned()).unwrap());
        let text = r#"{"a": {"b": [{"api_key": "x"}]}, "c": {"d": 1}, "workflow": {"token": "shown"}}"#;
        let found = split(text).unwrap();
        assert_eq!(found.names, ["a"]);
        assert_eq!(found.open.get(), r#"{"c":{"d": 1},"workflow":{"token": "shown"}}"#);
        assert_eq!(found.secret, r#"{"a":{"b": [{"api_key": "x"}]}}"#);
        assert!(split(r#"{"a": {"b": {"api_key": ""}}}"#).is_none());
        let nested =
            |depth: usize| format!("{}{{\"token\": \"x\"}}{}", "{\"a\": ".repeat(depth), "}".repeat(depth));
        assert!(split(&nested(4)).is_some() && split(&nested(5)).is_none());
        for inside in [
            r#"{"say": "\"token\": 1", "x": ["token", "{[\\", "]"]}"#,
            r#"{"token" : null, "t": {"password": [] , "secret" :{}}}"#,
            r#"["token", ":", {"a": "\\"}, 1e999]"#,
        ] {
            assert!(split(&format!(r#"{{"a": {inside}}}"#)).is_none(), "{inside}");
            let found = split(&format!(r#"{{"a": [{inside}, {{"\u0074oken" : [1]}}]}}"#));
            assert_eq!(found.map(|split| split.names), Some(vec!["a".to_owned()]), "{inside}");
        }
        let many = format!(r#"{{"a": [{}1], "b": {{"token": "x"}}}}"#, "1,".repeat(20_000));
        assert!(split(&many).is_none(), "it is not looked for without end");
    }

    #[test]
    fn what_is_taken_out_comes_back_and_the_rest_is_as_it_came() {
        let text = r#"{"extra_pnginfo": {"workflow": {"n": 1.50, "token": "shown"}}, "api_key_comfy_org": "sk-1","a":1e3, "\u0061pi_key": ["x"], "api_key":"y"}"#;
        let whole = RawValue::from_string(text.to_owned()).unwrap();
        let split = split(&whole).unwrap();
        assert_eq!(split.names, ["api_key_comfy_org", "api_key"]);
        let open = r#"{"extra_pnginfo":{"workflow": {"n": 1.50, "token": "shown"}},"a":1e3}"#;
        assert_eq!(split.open.get(), open);
        assert_eq!(split.secret, r#"{"api_key_comfy_org":"sk-1","api_key":["x"],"api_key":"y"}"#);
        assert!(!format!("{split:?}").contains("sk-1"));
        let joined = join(Some(&split.open), &split.secret).unwrap();
        assert_eq!(joined.get(), format!("{},{}", &open[..open.len() - 1], &split.secret[1..]));
        assert_eq!(join(None, "{}").unwrap().get(), "{}");
        assert!(join(Some(&split.open), "sk-1").is_none());
    }

    #[test]
    fn without_secrets_nothing_is_touched() {
        for text in [r#"{"a": 1}"#, "{}", "[]", "null", r#""token""#] {
            assert!(split(&RawValue::from_string(text.to_owned()).unwrap()).is_none(), "{text}");
        }
    }
}
