//! Any bytes as an answer of ComfyUI: whatever is JSON reads as JSON, and a repaired text stays repaired.

#![no_main]

use comfyui::lenient;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    let lenient: Option<Value> = lenient::from_slice(bytes).ok();
    if let Ok(strict) = serde_json::from_slice::<Value>(bytes) {
        assert_eq!(lenient, Some(strict));
    }
    let repaired = lenient::replace_non_finite(bytes);
    assert_eq!(lenient::replace_non_finite(&repaired), repaired, "a second repair finds something left");
});
