//! What a file is, by the ending of its name first.

use std::fmt;

/// What kind of thing a file holds.
///
/// ```
/// use comfyui::outputs::MediaKind;
///
/// assert_eq!(MediaKind::Model3d.to_string(), "3d model");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MediaKind {
    /// A still picture.
    Image,
    /// A picture that moves: GIF, animated WebP or PNG.
    AnimatedImage,
    /// A video.
    Video,
    /// A sound.
    Audio,
    /// A mesh or scene.
    Model3d,
    /// A latent that ComfyUI can load again.
    Latent,
    /// A text file.
    Text,
    /// Something else.
    Other,
}

impl fmt::Display for MediaKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::AnimatedImage => "animated image",
            Self::Video => "video",
            Self::Audio => "audio",
            Self::Model3d => "3d model",
            Self::Latent => "latent",
            Self::Text => "text",
            Self::Other => "other",
        })
    }
}

/// Said of a file whose ending says nothing.
const UNKNOWN: &str = "application/octet-stream";

/// Endings of 3D files; most of them have no media type that says so.
const MODEL_3D: [&str; 13] =
    ["glb", "gltf", "obj", "fbx", "stl", "ply", "dae", "usd", "usdz", "3mf", "splat", "ksplat", "spz"];

/// The media type of a file by its ending.
pub(super) fn mime(filename: &str) -> &'static str {
    match ending(filename).as_str() {
        // Container and codec in one: players go by this type.
        "opus" => "audio/ogg",
        "glb" => "model/gltf-binary",
        "ts" => "video/mp2t",
        ending => mime_guess::from_ext(ending).first_raw().unwrap_or(UNKNOWN),
    }
}

/// What a file is: by its ending, else by what the node says, else by the key it stands under.
pub(super) fn kind(filename: &str, mime: &str, key: &str, format: Option<&str>, animated: bool) -> MediaKind {
    let ending = ending(filename);
    if MODEL_3D.contains(&ending.as_str()) {
        return MediaKind::Model3d;
    }
    if ending == "latent" {
        return MediaKind::Latent;
    }
    let moves = animated || key == "gifs" || matches!(ending.as_str(), "gif" | "apng");
    // VideoHelperSuite's formats are no media types (video/h264-mp4), but begin like one.
    let known = [mime, format.unwrap_or_default()].into_iter().find_map(|mime| by_mime(mime, moves));
    known.unwrap_or_else(|| by_key(key, moves))
}

fn by_mime(mime: &str, moves: bool) -> Option<MediaKind> {
    match mime.split('/').next()? {
        "image" if moves => Some(MediaKind::AnimatedImage),
        "image" => Some(MediaKind::Image),
        "video" => Some(MediaKind::Video),
        "audio" => Some(MediaKind::Audio),
        "model" => Some(MediaKind::Model3d),
        "text" => Some(MediaKind::Text),
        _ if mime == "application/json" => Some(MediaKind::Text),
        _ => None,
    }
}

fn by_key(key: &str, moves: bool) -> MediaKind {
    match key {
        "images" | "image" if moves => MediaKind::AnimatedImage,
        "images" | "image" => MediaKind::Image,
        "gifs" | "video" | "videos" => MediaKind::Video,
        "audio" | "audios" => MediaKind::Audio,
        "3d" => MediaKind::Model3d,
        "latents" => MediaKind::Latent,
        "text" => MediaKind::Text,
        _ => MediaKind::Other,
    }
}

fn ending(filename: &str) -> String {
    let name = filename.rsplit(['/', '\\']).next().unwrap_or(filename);
    name.rsplit_once('.').map_or(String::new(), |(_, ending)| ending.to_ascii_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ending_counts_most() {
        use MediaKind::*;
        let cases = [
            ("a.png", "images", None, false, Image, "image/png"),
            ("a.PNG", "images", None, true, AnimatedImage, "image/png"),
            ("a.webp", "images", None, true, AnimatedImage, "image/webp"),
            ("a.mp4", "images", None, true, Video, "video/mp4"),
            ("a.webm", "images", None, true, Video, "video/webm"),
            ("a.gif", "images", None, false, AnimatedImage, "image/gif"),
            ("a.webp", "gifs", Some("image/webp"), false, AnimatedImage, "image/webp"),
            ("a.mp4", "gifs", Some("video/h264-mp4"), false, Video, "video/mp4"),
            ("a.mkv", "gifs", Some("video/ffv1-mkv"), false, Video, "video/x-matroska"),
            ("a.svg", "images", None, false, Image, "image/svg+xml"),
            ("a.flac", "audio", None, false, Audio, "audio/flac"),
            ("a.mp3", "audio", None, false, Audio, "audio/mpeg"),
            ("a.opus", "audio", None, false, Audio, "audio/ogg"),
            ("a.glb", "3d", None, false, Model3d, "model/gltf-binary"),
            ("a.latent", "latents", None, false, Latent, UNKNOWN),
            ("a.txt", "images", None, false, Text, "text/plain"),
            ("a.json", "files", None, false, Text, "application/json"),
            ("noending", "audio", None, false, Audio, UNKNOWN),
            ("a.qqq", "gifs", Some("video/nonsense"), false, Video, UNKNOWN),
            ("a.b/noending", "things", None, false, Other, UNKNOWN),
            ("a.zip", "files", None, false, Other, "application/zip"),
        ];
        for (name, key, format, animated, expected, expected_mime) in cases {
            let mime = mime(name);
            assert_eq!(
                (kind(name, mime, key, format, animated), mime),
                (expected, expected_mime),
                "{name} {key}"
            );
        }
    }
}
