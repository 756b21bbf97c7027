//! Any bytes as a form: the first byte chooses the route, the first line the content type or nothing.

#![no_main]

use fuzz::post;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Some((first, rest)) = bytes.split_first() else { return };
    let route = ["/upload/image", "/upload/mask", "/api/v1/assets?filename=a.png", "/api/upload/image"]
        [usize::from(first % 4)];
    let (kind, body) = match rest.iter().position(|byte| *byte == b'\n') {
        Some(end) if first & 0x80 != 0 => {
            (String::from_utf8_lossy(&rest[..end]).into_owned(), &rest[end + 1..])
        }
        _ => ("multipart/form-data; boundary=b".to_owned(), rest),
    };
    post(route, &kind, body.to_vec());
});
