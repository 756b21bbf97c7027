//! Any bytes as a frame on the websocket, text or binary.

#![no_main]

use comfyui::ws::{Message, decode_binary, decode_text};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(Message::Preview(preview)) = decode_binary(bytes.to_vec().into()) {
        assert!(bytes.ends_with(&preview.image), "a preview holds bytes that were not sent");
    }
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(message) = decode_text(text) {
        let _ = (message.prompt_id(), message.timestamp(), format!("{message:?}"));
    }
    // A frame with a type is always a message, however odd the rest of it. Written anew, because the text may
    // have doubled keys, which are refused.
    let Ok(frame) = serde_json::from_str::<Value>(text) else {
        return;
    };
    if frame.get("type").is_some_and(Value::is_string) {
        assert!(decode_text(&frame.to_string()).is_ok(), "a frame with a type is lost");
    }
});
