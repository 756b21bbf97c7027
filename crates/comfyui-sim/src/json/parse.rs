//! Reading: what `json.loads` accepts, no more and no less, with a bound on depth.

use super::{Dict, Json};

/// Nesting beyond this is refused (Python ends in a RecursionError near its own limit of 1,000).
pub const MAX_DEPTH: usize = 900;
/// Python refuses to convert longer digit strings to an integer.
const MAX_INTEGER_DIGITS: usize = 4300;

/// Why something is no JSON, not even in Python's eyes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not JSON: {problem} at byte {at}")]
pub struct ParseError {
    /// What was found or missed.
    pub problem: &'static str,
    /// Offset of it.
    pub at: usize,
}

impl Json {
    /// Reads one document as Python's `json.loads` does after decoding UTF-8.
    ///
    /// A lone surrogate escape becomes U+FFFD, because Rust's strings cannot hold it.
    ///
    /// # Errors
    /// When the bytes are not UTF-8, not JSON in Python's sense, or nested deeper than [`MAX_DEPTH`].
    pub fn parse(bytes: &[u8]) -> Result<Json, ParseError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| ParseError { problem: "invalid UTF-8", at: error.valid_up_to() })?;
        let mut reader = Reader { text, at: 0 };
        reader.skip_space();
        let value = reader.value(0)?;
        reader.skip_space();
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err(reader.error("extra data")),
        }
    }
}

impl std::str::FromStr for Json {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Json::parse(text.as_bytes())
    }
}

struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl Reader<'_> {
    fn error(&self, problem: &'static str) -> ParseError {
        ParseError { problem, at: self.at }
    }

    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, word: &str) -> bool {
        let found = self.text.as_bytes()[self.at..].starts_with(word.as_bytes());
        if found {
            self.at += word.len();
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Json, ParseError> {
        if depth > MAX_DEPTH {
            return Err(self.error("nested too deeply"));
        }
        match self.peek() {
            Some(b'"') => self.string().map(Json::Str),
            Some(b'{') => self.object(depth),
            Some(b'[') => self.array(depth),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(_) => self.word(),
            None => Err(self.error("value expected")),
        }
    }

    fn word(&mut self) -> Result<Json, ParseError> {
        const WORDS: [(&str, Json); 5] = [
            ("null", Json::Null),
            ("true", Json::Bool(true)),
            ("false", Json::Bool(false)),
            ("NaN", Json::Float(f64::NAN)),
            ("Infinity", Json::Float(f64::INFINITY)),
        ];
        for (word, value) in WORDS {
            if self.take(word) {
                return Ok(value);
            }
        }
        Err(self.error("value expected"))
    }

    fn object(&mut self, depth: usize) -> Result<Json, ParseError> {
        let mut members = Dict::new();
        self.at += 1;
        self.skip_space();
        if self.take("}") {
            return Ok(Json::Dict(members));
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error("property name in double quotes expected"));
            }
            let key = self.string()?;
            self.skip_space();
            if !self.take(":") {
                return Err(self.error("':' expected"));
            }
            self.skip_space();
            let value = self.value(depth + 1)?;
            members.insert(key, value);
            self.skip_space();
            if self.take("}") {
                return Ok(Json::Dict(members));
            }
            if !self.take(",") {
                return Err(self.error("',' expected"));
            }
            self.skip_space();
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, ParseError> {
        let mut values = Vec::new();
        self.at += 1;
        self.skip_space();
        if self.take("]") {
            return Ok(Json::List(values));
        }
        loop {
            values.push(self.value(depth + 1)?);
            self.skip_space();
            if self.take("]") {
                return Ok(Json::List(values));
            }
            if !self.take(",") {
                return Err(self.error("',' expected"));
            }
            self.skip_space();
        }
    }

    fn digits(&mut self) -> usize {
        let start = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        self.at - start
    }

    fn number(&mut self) -> Result<Json, ParseError> {
        let start = self.at;
        if self.take("-Infinity") {
            return Ok(Json::Float(f64::NEG_INFINITY));
        }
        self.take("-");
        // A leading zero stands alone: what follows it is then "extra data", as in Python.
        if !self.take("0") && self.digits() == 0 {
            return Err(self.error("value expected"));
        }
        let integer_end = self.at;
        if self.take(".") && self.digits() == 0 {
            self.at = integer_end;
        }
        let mantissa_end = self.at;
        if self.take("e") || self.take("E") {
            let _sign = self.take("+") || self.take("-");
            if self.digits() == 0 {
                self.at = mantissa_end;
            }
        }
        let text = &self.text[start..self.at];
        if self.at > integer_end {
            return text.parse().map(Json::Float).map_err(|_| self.error("number out of reach"));
        }
        if let Ok(value) = text.parse() {
            return Ok(Json::Int(value));
        }
        if text.len() > MAX_INTEGER_DIGITS {
            return Err(self.error("integer with too many digits"));
        }
        Ok(Json::BigInt(text.to_owned()))
    }

    fn string(&mut self) -> Result<String, ParseError> {
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let plain = rest.find(|c: char| c == '"' || c == '\\' || c < ' ').unwrap_or(rest.len());
            out.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(out);
                }
                Some(b'\\') => {
                    self.at += 1;
                    out.push(self.escape()?);
                }
                Some(_) => return Err(self.error("control character in a string")),
                None => return Err(self.error("unterminated string")),
            }
        }
    }

    fn escape(&mut self) -> Result<char, ParseError> {
        let Some(letter) = self.peek() else {
            return Err(self.error("unterminated string"));
        };
        let plain = match letter {
            b'"' | b'\\' | b'/' => char::from(letter),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                self.at += 1;
                return self.unicode_escape();
            }
            _ => return Err(self.error("invalid escape")),
        };
        self.at += 1;
        Ok(plain)
    }

    fn unicode_escape(&mut self) -> Result<char, ParseError> {
        let first = self.four_hex()?;
        if (0xD800..0xDC00).contains(&first) {
            let after_first = self.at;
            if self.take("\\u") {
                match self.four_hex() {
                    Ok(second) if (0xDC00..0xE000).contains(&second) => {
                        let code = 0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00);
                        return Ok(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                    }
                    // No pair: the second escape stands for itself and is read again.
                    _ => self.at = after_first,
                }
            }
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn four_hex(&mut self) -> Result<u32, ParseError> {
        let digits = self.text.as_bytes().get(self.at..self.at + 4).unwrap_or_default();
        let code = digits
            .iter()
            .try_fold(0, |code, digit| char::from(*digit).to_digit(16).map(|value| code * 16 + value));
        match code {
            Some(code) if digits.len() == 4 => {
                self.at += 4;
                Ok(code)
            }
            _ => Err(self.error("invalid \\u escape")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_python_accepts() {
        for (text, expected) in [
            (" [1, -0, 0.5e3, -Infinity] ", "[1, 0, 500.0, -Infinity]"),
            (r#"{"a": 1, "b": 2, "a": 3}"#, r#"{"a": 3, "b": 2}"#),
            (r#""\ud83d\ude00 \u00e9 \/ \ud83dx""#, "\"\\ud83d\\ude00 \\u00e9 / \\ufffdx\""),
            ("1e999", "Infinity"),
            ("123456789012345678901234567890123456789012", "123456789012345678901234567890123456789012"),
        ] {
            assert_eq!(Json::parse(text.as_bytes()).unwrap().dump(), expected, "{text}");
        }
    }

    #[test]
    fn refuses_what_python_refuses() {
        for text in [
            "",
            " ",
            "nul",
            "01",
            "1.",
            "1.e5",
            ".5",
            "+1",
            "-",
            "[1,]",
            "{\"a\":}",
            "{a: 1}",
            "{'a': 1}",
            "\"a",
            "\"\t\"",
            "\"\\x\"",
            "\"\\u12\"",
            "[1 2]",
            "1 2",
            "\u{feff}1",
            "infinity",
        ] {
            assert!(Json::parse(text.as_bytes()).is_err(), "{text:?}");
        }
        assert!(Json::parse(b"\"\xff\"").is_err());
        assert!(Json::parse("9".repeat(5000).as_bytes()).is_err());
    }

    #[test]
    fn deep_nesting_is_an_error_and_no_overflow() {
        assert!(Json::parse("[".repeat(1_000_000).as_bytes()).is_err());
        let nested = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        assert!(Json::parse(nested.as_bytes()).is_ok());
    }
}
