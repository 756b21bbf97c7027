//! Any bytes as the headers that ask for a part of a file, one on each line.

#![no_main]

use fuzz::{get, post};
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

const FILE: &[u8] = b"0123456789abcdefghijklmnopqrstuvwxyz";

/// The address of a file of 36 bytes.
static ADDRESS: LazyLock<String> = LazyLock::new(|| {
    let made =
        post("/api/v1/assets?filename=a.txt", "application/octet-stream", FILE.to_vec()).expect("an answer");
    let made: serde_json::Value = serde_json::from_slice(&made.body).expect("JSON");
    format!("/api/v1/assets/{}", made["sha256"].as_str().expect("a hash"))
});

fuzz_target!(|bytes: &[u8]| {
    let mut lines = bytes.split(|byte| *byte == b'\n');
    let names = ["range", "if-range", "if-none-match", "if-match", "if-modified-since"];
    let headers: Vec<(&'static str, &[u8])> =
        names.into_iter().zip(&mut lines).filter(|(_, value)| !value.is_empty()).collect();
    let Some(answer) = get(&ADDRESS, &headers) else { return };
    match answer.status {
        200 => assert_eq!(answer.body, FILE),
        206 => {
            assert!(
                FILE.windows(answer.body.len().max(1)).any(|part| part == answer.body),
                "not a part of the file"
            );
            assert!(answer.headers.contains_key("content-range"));
        }
        304 | 412 | 416 => assert!(answer.body.len() < 500),
        status => assert!((400..500).contains(&status), "{status}"),
    }
});
