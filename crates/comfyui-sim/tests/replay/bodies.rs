//! Request bodies that are recorded only by description, made again.

use crate::recording::from_hex;
use comfyui_sim::media::{Audio, Image, mp4};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// Small files that were uploaded, whole: three 8×8 pictures, and one of another size.
const UPLOADS: &[&str] = &[
    "89504e470d0a1a0a0000000d49484452000000080000000808020000004b6d29dc0000001149444154789c63606462c68a18869604009648018173ad4f580000000049454e44ae426082",
    "89504e470d0a1a0a0000000d49484452000000080000000808020000004b6d29dc0000000f49444154789c63e0c4011886960400a3e606c1e05cc2e90000000049454e44ae426082",
    "89504e470d0a1a0a0000000d49484452000000080000000808020000004b6d29dc0000001149444154789c63e01291c38a1886960400d8130f01c092d3b40000000049454e44ae426082",
    "89504e470d0a1a0a0000000d49484452000000080000000808020000004b6d29dc0000001149444154789c633891628415310c2d0900564657813cbd9f890000000049454e44ae426082",
];

/// Size of one part that is too large to be recorded and whose bytes do not matter.
const LARGE: u64 = 1024 * 1024;

/// The bytes of an uploaded file. Equal to the recorded ones wherever they can be known; `input.mp4` is a
/// video of our own, filled up to the recorded size, and the files of about 100 MiB are zeros.
pub fn upload_bytes(description: &Value) -> Vec<u8> {
    let len = description["len"].as_u64().expect("len");
    let sha256 = description["sha256"].as_str().expect("sha256");
    let head = from_hex(description["head_hex"].as_str().expect("head_hex"));
    if len <= head.len() as u64 {
        return head;
    }
    // A video header and nothing but zeros after it.
    let mut header_only = head[..12].to_vec();
    header_only.resize(len.min(LARGE) as usize, 0);
    let candidates = UPLOADS.iter().map(|digits| from_hex(digits)).chain([header_only]);
    for candidate in candidates {
        if hex(&Sha256::digest(&candidate)) == sha256 {
            return candidate;
        }
    }
    if head.get(4..8) == Some(b"ftyp") {
        return video_of_size(len as usize);
    }
    assert!(len > LARGE, "the recorded upload {description} is not known");
    vec![0; len as usize]
}

/// A playable video of exactly that size: the rest is a `free` box.
fn video_of_size(len: usize) -> Vec<u8> {
    // As many frames as the recorded one has, and sound.
    let frames = vec![Image::solid(64, 48, [40, 80, 120]); 10];
    let sound = Audio::silence(8000, 1, 1.0);
    let mut video = mp4::encode(&frames, 10.0, Some(&sound), &[]).expect("a small video");
    let rest = len.checked_sub(video.len() + 8).expect("the sample is smaller than the recorded video");
    video.extend_from_slice(&u32::try_from(rest + 8).expect("small").to_be_bytes());
    video.extend_from_slice(b"free");
    video.resize(len, 0);
    video
}

/// A multipart body as the recording client (aiohttp) wrote it, and its content type.
pub fn multipart(parts: &[Value]) -> (String, Vec<u8>) {
    const BOUNDARY: &str = "replay0123456789abcdef";
    let mut body = Vec::new();
    for part in parts {
        let name = part["name"].as_str().expect("name");
        let (content, content_type) = match part.get("value") {
            Some(value) => (value.as_str().expect("value").as_bytes().to_vec(), "text/plain; charset=utf-8"),
            None => {
                (upload_bytes(&part["value_binary"]), part["content_type"].as_str().expect("content_type"))
            }
        };
        let mut head = format!(
            "--{BOUNDARY}\r\nContent-Type: {content_type}\r\nContent-Disposition: form-data; name=\"{name}\""
        );
        if let Some(filename) = part.get("filename").and_then(Value::as_str) {
            head.push_str(&format!("; filename=\"{}\"", percent_encoded(filename)));
        }
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(b"\r\n\r\n");
        body.extend_from_slice(&content);
        body.extend_from_slice(b"\r\n");
    }
    body.extend_from_slice(format!("--{BOUNDARY}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={BOUNDARY}"), body)
}

/// aiohttp percent-encodes file names in the header; the server does not decode them.
fn percent_encoded(text: &str) -> String {
    use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
    const ALL_BUT_UNRESERVED: &AsciiSet =
        &NON_ALPHANUMERIC.remove(b'.').remove(b'_').remove(b'-').remove(b'~');
    utf8_percent_encode(text, ALL_BUT_UNRESERVED).to_string()
}

/// Bodies that were left out of the recording because of their size, by the note of the exchange.
pub fn left_out(note: &str) -> Option<Vec<u8>> {
    let mebibytes = match note {
        "JSON of 101 MiB" => 101,
        "JSON of 20 MiB is accepted" => 20,
        _ => return None,
    };
    let mut body = br#"{"prompt": {"1": {"class_type": "RigText", "inputs": {"text": ""#.to_vec();
    body.resize(body.len() + mebibytes * 1024 * 1024, b'x');
    body.extend_from_slice(br#""}}}, "client_id": "large"}"#);
    Some(body)
}

/// Requests recorded in words, made again.
pub fn raw(text: &str) -> Vec<u8> {
    if text != "POST /prompt with Content-Encoding: gzip and a gzip body" {
        return text.as_bytes().to_vec();
    }
    let body =
        br#"{"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "chunked"}}}, "client_id": "x"}"#;
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut encoder, body).expect("writing to memory");
    let body = encoder.finish().expect("writing to memory");
    let mut request = format!(
        "POST /prompt HTTP/1.1\r\nHost: 127.0.0.1:8188\r\nContent-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: {}\r\n\r\n",
        body.len()
    )
    .into_bytes();
    request.extend_from_slice(&body);
    request
}

/// Lower-case hex digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
