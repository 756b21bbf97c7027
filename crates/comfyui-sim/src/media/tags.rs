//! Vorbis comments, the `key=value` texts of FLAC, Ogg and Opus.

/// What the files name as their maker.
pub(super) const VENDOR: &str = "comfyui-sim";

/// A list of comments: lengths in front, little-endian. What would make it longer than `limit` is left out.
pub(super) fn vorbis_comments(metadata: &[(&str, &str)], limit: usize) -> Vec<u8> {
    let mut out = Vec::new();
    text(&mut out, VENDOR.as_bytes());
    let count_at = out.len();
    out.extend([0; 4]);
    let mut count = 0u32;
    for (key, value) in metadata {
        let comment = format!("{}={value}", key.replace('=', "_"));
        if out.len() + 4 + comment.len() <= limit {
            text(&mut out, comment.as_bytes());
            count += 1;
        }
    }
    out[count_at..count_at + 4].copy_from_slice(&count.to_le_bytes());
    out
}

fn text(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}
