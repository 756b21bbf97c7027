//! Values as Python converts and compares them, which is what ComfyUI's validation goes by.

use std::cmp::Ordering;

use serde_json::Value;

/// A number, whole ones exact: seeds go up to 2^64-1, beyond what a float can hold.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Int(i128),
    Float(f64),
}

impl Number {
    /// Reads a JSON number from its text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if !text.starts_with(|first: char| first == '-' || first.is_ascii_digit()) {
            return None;
        }
        text.parse().map(Self::Int).ok().or_else(|| text.parse().map(Self::Float).ok())
    }

    pub(super) fn of(value: &Value) -> Option<Self> {
        match value {
            Value::Number(number) => Self::parse(&number.to_string()),
            Value::Bool(on) => Some(Self::Int(i128::from(*on))),
            _ => None,
        }
    }

    pub(super) fn is_finite(self) -> bool {
        match self {
            Self::Int(_) => true,
            Self::Float(number) => number.is_finite(),
        }
    }

    /// Exact, where a conversion to floats would lose digits; None for NaN.
    pub(super) fn compare(self, other: Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Int(left), Self::Int(right)) => Some(left.cmp(&right)),
            (Self::Float(left), Self::Float(right)) => left.partial_cmp(&right),
            (Self::Int(left), Self::Float(right)) => compare_mixed(left, right),
            (Self::Float(left), Self::Int(right)) => compare_mixed(right, left).map(Ordering::reverse),
        }
    }
}

fn compare_mixed(whole: i128, float: f64) -> Option<Ordering> {
    if float.is_nan() {
        return None;
    }
    // The cast saturates, which keeps the order: nothing whole is beyond the ends of i128.
    let cut = float.trunc();
    Some(whole.cmp(&(cut as i128)).then_with(|| 0.0_f64.total_cmp(&(float - cut))))
}

/// A value that was converted, and whether that was a surprise.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Converted {
    pub(super) number: Number,
    /// What the conversion did, when it is likely not what was meant.
    pub(super) surprise: Option<&'static str>,
}

/// What Python's `int()` makes of a JSON value (given as its text).
pub(super) fn to_int(raw: &str, value: &Value) -> Option<Converted> {
    let plain = |number| Some(Converted { number, surprise: None });
    match value {
        Value::Bool(on) => {
            let surprise = Some("a truth value is taken as 0 or 1");
            Some(Converted { number: Number::Int(i128::from(*on)), surprise })
        }
        Value::String(text) => {
            let number = Number::Int(python_digits(text)?.parse().ok()?);
            Some(Converted { number, surprise: Some("a text is taken as a number") })
        }
        Value::Number(_) => match Number::parse(raw)? {
            Number::Float(float) if !float.is_finite() => None,
            Number::Float(float) => {
                let surprise = (float.fract() != 0.0).then_some("the fraction is cut off");
                Some(Converted { number: Number::Int(float.trunc() as i128), surprise })
            }
            whole => plain(whole),
        },
        _ => None,
    }
}

/// What Python's `float()` makes of a JSON value (given as its text).
pub(super) fn to_float(raw: &str, value: &Value) -> Option<Converted> {
    match value {
        Value::Bool(on) => {
            let surprise = Some("a truth value is taken as 0 or 1");
            Some(Converted { number: Number::Int(i128::from(*on)), surprise })
        }
        Value::String(text) => {
            let number = Number::Float(text.trim().replace('_', "").parse().ok()?);
            Some(Converted { number, surprise: Some("a text is taken as a number") })
        }
        Value::Number(_) => Some(Converted { number: Number::parse(raw)?, surprise: None }),
        _ => None,
    }
}

/// The digits of a text that `int()` takes: space around, one sign, single underscores between digits.
fn python_digits(text: &str) -> Option<String> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let groups =
        digits.split('_').all(|group| !group.is_empty() && group.bytes().all(|b| b.is_ascii_digit()));
    groups.then(|| text.trim_start_matches('+').replace('_', ""))
}

/// Whether Python would call two values equal: `1 == 1.0 == True`.
pub(super) fn python_equal(left: &Value, right: &Value) -> bool {
    match (Number::of(left), Number::of(right)) {
        (Some(left), Some(right)) => left.compare(right) == Some(Ordering::Equal),
        (None, None) => left == right,
        _ => false,
    }
}

/// A value under which equal ones are found: the same for two values exactly when [`python_equal`] says so.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Text(String),
    Int(i128),
    /// The bits of a float that is no whole number.
    Float(u64),
    /// Anything else, its keys in order.
    Other(String),
}

impl Key {
    pub(super) fn of(value: &Value) -> Self {
        match (value, Number::of(value)) {
            (Value::String(text), _) => Self::Text(text.clone()),
            (_, Some(Number::Int(whole))) => Self::Int(whole),
            (_, Some(Number::Float(float))) => {
                let whole = float.trunc() as i128;
                let exact = float.fract() == 0.0 && whole != i128::MAX && whole != i128::MIN;
                if exact { Self::Int(whole) } else { Self::Float(float.to_bits()) }
            }
            (other, None) => {
                let mut other = other.clone();
                other.sort_all_objects();
                Self::Other(other.to_string())
            }
        }
    }
}

/// Whether a JSON text holds a number that is too large for a float, such as `1e999`, which Python reads as infinity.
pub(super) fn overflows(json: &str) -> bool {
    let is_part = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    let mut rest = json;
    while let Some(start) = rest.find(|c: char| c == '"' || c.is_ascii_digit()) {
        if rest[start..].starts_with('"') {
            rest = &rest[crate::lenient::end_of_string(rest.as_bytes(), start)..];
            continue;
        }
        let number = &rest[start..];
        let end = number.find(|c: char| !is_part(c)).unwrap_or(number.len());
        let (number, behind) = number.split_at(end);
        if number.contains(['e', 'E', '.']) && number.parse::<f64>().is_ok_and(f64::is_infinite) {
            return true;
        }
        rest = behind;
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn int(raw: &str) -> Option<(i128, bool)> {
        let value: Value = serde_json::from_str(raw).unwrap();
        to_int(raw, &value).map(|converted| match converted.number {
            Number::Int(number) => (number, converted.surprise.is_some()),
            Number::Float(_) => panic!("{converted:?}"),
        })
    }

    #[test]
    fn int_converts_as_python_does() {
        assert_eq!(int("18446744073709551615"), Some((u64::MAX.into(), false)));
        assert_eq!(int("64.0"), Some((64, false)));
        assert_eq!(int("64.9"), Some((64, true)));
        assert_eq!(int("-0.5"), Some((0, true)));
        assert_eq!(int("true"), Some((1, true)));
        assert_eq!(int("\" +1_000 \""), Some((1000, true)));
        for refused in ["\"64.9\"", "\"wide\"", "\"\"", "\"1__0\"", "\"_1\"", "null", "{}"] {
            assert_eq!(int(refused), None, "{refused}");
        }
    }

    #[test]
    fn float_takes_words_that_are_no_finite_numbers() {
        let float = |raw: &str| {
            let value: Value = serde_json::from_str(raw).unwrap();
            to_float(raw, &value).map(|converted| converted.number.is_finite())
        };
        assert_eq!(float("\"nan\""), Some(false));
        assert_eq!(float("\"-Infinity\""), Some(false));
        assert_eq!(float("\" 1e-05\""), Some(true));
        assert_eq!(float("7"), Some(true));
        assert_eq!(float("\"high\""), None);
    }

    #[test]
    fn numbers_compare_exactly() {
        let less = |left: &str, right: &str| {
            Number::parse(left).unwrap().compare(Number::parse(right).unwrap()) == Some(Ordering::Less)
        };
        assert!(less("18446744073709551614", "18446744073709551615"));
        assert!(less("18446744073709551615", "18446744073709551616"));
        assert!(less("1", "1.5") && less("1.5", "2") && less("-2", "-1.5") && less("-1.5", "-1"));
        assert!(less("5", "1e300") && less("-1e300", "5"));
        assert!(!less("2", "2.0") && !less("2.0", "2"));
    }

    #[test]
    fn equality_is_pythons() {
        assert!(python_equal(&json!(1), &json!(1.0)) && python_equal(&json!(true), &json!(1)));
        assert!(python_equal(&json!("a"), &json!("a")) && python_equal(&json!(null), &json!(null)));
        assert!(!python_equal(&json!("1"), &json!(1)) && !python_equal(&json!(null), &json!(0)));
    }

    #[test]
    fn keys_are_equal_exactly_when_values_are() {
        let values = [
            json!(1),
            json!(1.0),
            json!(true),
            json!("1"),
            json!(null),
            json!(0),
            json!(false),
            json!(0.5),
            json!(1e300),
            json!(1e301),
            json!([1]),
            json!({"a": 1, "b": 2}),
            json!({"b": 2, "a": 1}),
            json!(u64::MAX),
            json!(-0.0),
        ];
        for one in &values {
            for other in &values {
                assert_eq!(Key::of(one) == Key::of(other), python_equal(one, other), "{one} {other}");
            }
        }
    }

    #[test]
    fn only_numbers_outside_strings_overflow() {
        assert!(overflows("{\"a\": [1, -1e999]}") && overflows("1e400"));
        assert!(!overflows("{\"1e999\": \"\\\"1e999\", \"b\": 1e-999, \"c\": 1.5e300, \"é\": 12}"));
    }
}
