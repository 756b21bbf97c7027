//! Values turned into the declared type of an input, with Python's rules and Python's complaints.

use crate::json::{Json, repr_str};

/// Python refuses to read longer digit strings as an integer.
const MAX_INTEGER_DIGITS: usize = 4300;

/// The value as `INT`, `FLOAT`, `STRING` or `BOOLEAN`; other types keep it as it is.
///
/// The error is the text of Python's exception.
pub(super) fn convert(kind: &str, value: &Json) -> Result<Json, String> {
    match kind {
        "INT" => to_int(value),
        "FLOAT" => to_float(value),
        "STRING" => Ok(Json::Str(value.str())),
        "BOOLEAN" => Ok(Json::Bool(value.is_truthy())),
        _ => Ok(value.clone()),
    }
}

fn to_int(value: &Json) -> Result<Json, String> {
    match value {
        Json::Int(_) | Json::BigInt(_) => Ok(value.clone()),
        Json::Bool(value) => Ok(Json::from(u8::from(*value))),
        Json::Float(value) if value.is_nan() => Err("cannot convert float NaN to integer".into()),
        Json::Float(value) if value.is_infinite() => Err("cannot convert float infinity to integer".into()),
        Json::Float(value) => Ok(integer(&format!("{:.0}", value.trunc()))),
        Json::Str(text) => int_of_text(text)
            .ok_or_else(|| format!("invalid literal for int() with base 10: {}", repr_str(text))),
        _ => Err(format!(
            "int() argument must be a string, a bytes-like object or a real number, not '{}'",
            value.type_name()
        )),
    }
}

fn integer(digits: &str) -> Json {
    match digits.parse() {
        Ok(value) => Json::Int(value),
        Err(_) => Json::BigInt(digits.to_owned()),
    }
}

/// What `float(value)` gives, or the text of its exception.
pub(super) fn to_float(value: &Json) -> Result<Json, String> {
    match value {
        Json::BigInt(_) => match value.as_f64() {
            Some(float) if float.is_finite() => Ok(Json::Float(float)),
            _ => Err("int too large to convert to float".into()),
        },
        Json::Str(text) => float_of_text(text)
            .map(Json::Float)
            .ok_or_else(|| format!("could not convert string to float: {}", repr_str(text))),
        _ => value.as_f64().map(Json::Float).ok_or_else(|| {
            format!("float() argument must be a string or a real number, not '{}'", value.type_name())
        }),
    }
}

/// Digits without their underscores; `None` if one is not between two digits.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'_' && !(is_digit(at.checked_sub(1)) && is_digit(at.checked_add(1))) {
            return None;
        }
    }
    Some(text.replace('_', ""))
}

/// What `int(text)` gives.
pub(super) fn int_of_text(text: &str) -> Option<Json> {
    let text = without_underscores(text.trim())?;
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    if digits.is_empty() || digits.len() > MAX_INTEGER_DIGITS || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() { Some(Json::Int(0)) } else { Some(integer(&format!("{sign}{digits}"))) }
}

/// What `float(text)` gives.
fn float_of_text(text: &str) -> Option<f64> {
    without_underscores(text.trim())?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(kind: &str, value: &str, expected: Result<&str, &str>) {
        let value = Json::parse(value.as_bytes()).unwrap();
        let got = convert(kind, &value).map(|converted| converted.dump());
        assert_eq!(got, expected.map(str::to_owned).map_err(str::to_owned), "{kind} of {value}");
    }

    #[test]
    fn values_become_what_python_makes_of_them() {
        check("INT", "64.9", Ok("64"));
        check("INT", "-0.5", Ok("0"));
        check("INT", "true", Ok("1"));
        check("INT", r#"" +1_000 ""#, Ok("1000"));
        check("INT", r#""18446744073709551615""#, Ok("18446744073709551615"));
        check("INT", "1e40", Ok("10000000000000000303786028427003666890752"));
        check("FLOAT", "0", Ok("0.0"));
        check("FLOAT", r#""1e-05""#, Ok("1e-05"));
        check("FLOAT", r#""nan""#, Ok("NaN"));
        check("FLOAT", "true", Ok("1.0"));
        check("STRING", r#"{"a": [1, null, true]}"#, Ok(r#""{'a': [1, None, True]}""#));
        check("BOOLEAN", r#""""#, Ok("false"));
        check("BOOLEAN", r#""false""#, Ok("true"));
        check("IMAGE", "5", Ok("5"));
    }

    #[test]
    fn complaints_are_pythons() {
        check("INT", r#""wide""#, Err("invalid literal for int() with base 10: 'wide'"));
        check("INT", r#""1__0""#, Err("invalid literal for int() with base 10: '1__0'"));
        check(
            "INT",
            "null",
            Err("int() argument must be a string, a bytes-like object or a real number, not 'NoneType'"),
        );
        check("INT", "NaN", Err("cannot convert float NaN to integer"));
        check("INT", "Infinity", Err("cannot convert float infinity to integer"));
        check("FLOAT", r#""x""#, Err("could not convert string to float: 'x'"));
        check("FLOAT", "{}", Err("float() argument must be a string or a real number, not 'dict'"));
    }
}
