//! Any bytes as the id of an event: what names a place names the same one when it is written again, and places that differ in
//! their text alone are equal.

#![no_main]

use libfuzzer_sys::fuzz_target;
use remuda_store::FeedPlace;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(place) = text.parse::<FeedPlace>() else { return };
    let written = place.to_string();
    assert_eq!(written.parse(), Ok(place));
    assert!(written.len() <= text.len(), "no more than leading zeros is left out: {text}");
    assert_eq!(text.split('-').count(), 4);
    assert!(text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit()));
});
