//! Taking secrets out of `extra_data` and putting them back, in the table of everything that must grow with its input; see
//! the one of the crate `comfyui`.

use std::hint::black_box;

use remuda_core::secrets;
use remuda_testbed::growth::{Case, case, check};
use serde_json::value::RawValue;

/// Splits a text and joins it again.
fn there_and_back(text: String) -> Box<dyn FnMut()> {
    let extra_data = RawValue::from_string(text).unwrap();
    Box::new(move || {
        let split = secrets::split(black_box(&extra_data)).expect("a secret");
        black_box(secrets::join(Some(&split.open), &split.secret).expect("it goes together"));
    })
}

fn object(n: usize, member: impl Fn(usize) -> String) -> String {
    format!("{{{}}}", (0..n).map(member).collect::<Vec<_>>().join(","))
}

fn table() -> Vec<Case> {
    let covers = &["secrets::split", "secrets::join", "secrets::is_secret"];
    vec![
        case(covers, "every second member secret", 500, |n| {
            there_and_back(object(n, |at| match at % 2 {
                0 => format!(r#""api_key_{at}":"k""#),
                _ => format!(r#""member_{at}":{{"a":[{at}]}}"#),
            }))
        }),
        case(covers, "one name many times", 500, |n| {
            there_and_back(object(n, |_| r#""api_key":"k","open":1"#.to_owned()))
        }),
        case(covers, "long values without a secret, each looked into", 100, |n| {
            let inside = object(n, |at| format!(r#""m{at}":"{at}""#));
            there_and_back(format!(
                r#"{{"api_key":"k","a":{inside},"b":[{inside}],"c":"{}"}}"#,
                "x".repeat(n)
            ))
        }),
        case(covers, "many brackets", 2_000, |n| {
            let nested = "[".repeat(60) + &"]".repeat(60);
            let items = vec![nested; n / 60].join(",");
            there_and_back(format!(r#"{{"api_key":"k","deep":[{items}]}}"#))
        }),
        case(covers, "a name of many words, and one of one", 2_000, |n| {
            let (words, word) = ("a_".repeat(n), "a".repeat(n));
            there_and_back(format!(r#"{{"api_key":"k","{words}":1,"{word}":1,"in":{{"{words}":1}}}}"#))
        }),
        case(covers, "names that end in key, with long values", 2_000, |n| {
            let value = "a ".repeat(n);
            there_and_back(format!(r#"{{"api_key":"k","some_key":"{value}","in":{{"a_key":"{value}"}}}}"#))
        }),
    ]
}

#[test]
fn secrets_are_moved_in_proportion_to_what_came() {
    check(&table());
}
