//! Content types by file ending, as the recorded server gave them.

/// Where Python's table and the crate's differ, as recorded.
const OWN: [(&str, &str); 12] = [
    ("js", "application/javascript"),
    ("mjs", "application/javascript"),
    ("wav", "audio/x-wav"),
    ("flac", "audio/flac"),
    ("opus", "audio/ogg"),
    ("ogg", "audio/ogg"),
    ("mkv", "video/x-matroska"),
    ("exr", "image/aces"),
    ("glb", "model/gltf-binary"),
    ("gltf", "model/gltf+json"),
    ("webp", "image/webp"),
    ("gz", "application/gzip"),
];

/// The type of a file by its name, if the ending is known.
pub(crate) fn guess(name: &str) -> Option<String> {
    let file = name.rsplit('/').next().unwrap_or(name);
    let ending = file.rsplit_once('.')?.1.to_ascii_lowercase();
    if let Some((_, own)) = OWN.iter().find(|(own, _)| *own == ending) {
        return Some((*own).to_owned());
    }
    // Python has no entry for Markdown and the like in the table the server used.
    if matches!(ending.as_str(), "md" | "latent" | "safetensors" | "map" | "ts" | "yaml" | "yml") {
        return None;
    }
    mime_guess::from_ext(&ending).first_raw().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::guess;

    #[test]
    fn recorded_endings_have_their_recorded_types() {
        let cases = [
            ("f_00001_.png", Some("image/png")),
            ("f.js", Some("application/javascript")),
            ("f.svg", Some("image/svg+xml")),
            ("f.mp4", Some("video/mp4")),
            ("f.webm", Some("video/webm")),
            ("f.gif", Some("image/gif")),
            ("f.flac", Some("audio/flac")),
            ("f.mp3", Some("audio/mpeg")),
            ("f.opus", Some("audio/ogg")),
            ("f.wav", Some("audio/x-wav")),
            ("f.glb", Some("model/gltf-binary")),
            ("f.latent", None),
            ("f.json", Some("application/json")),
            ("f.txt", Some("text/plain")),
            ("f.safetensors", None),
            ("f.mov", Some("video/quicktime")),
            ("f.mkv", Some("video/x-matroska")),
            ("f.avif", Some("image/avif")),
            ("f.exr", Some("image/aces")),
            ("f.html", Some("text/html")),
            ("F.PNG", Some("image/png")),
            ("noending", None),
        ];
        for (name, expected) in cases {
            assert_eq!(guess(name).as_deref(), expected, "{name}");
        }
    }
}
