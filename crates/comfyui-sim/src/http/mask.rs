//! A mask over a picture: the alpha of the one goes into a copy of the other.

use super::paths;
use crate::engine::Dirs;
use crate::json::Json;
use crate::media;
use std::io;
use std::path::Path;

/// Writes the picture that `original` (JSON with `filename`, `type?`, `subfolder?`) names to `target`, with the
/// alpha of the picture in `mask`.
///
/// As in ComfyUI a reference to a file that is not there, or may not be read, writes nothing and is no error.
pub(crate) fn save(dirs: &Dirs, original: Option<&str>, mask: &Path, target: &Path) -> io::Result<()> {
    let broken = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let original = original.ok_or_else(|| broken("no original_ref"))?;
    let original = Json::parse(original.as_bytes()).map_err(|error| broken(&error.to_string()))?;
    let text = |key: &str| original.get(key).and_then(Json::as_str);
    let filename = text("filename").ok_or_else(|| broken("original_ref without filename"))?;
    let (filename, annotated) = paths::annotation(filename);
    if filename.is_empty() || filename.starts_with('/') || filename.contains("..") {
        return Ok(());
    }
    let dir = match annotated.or(text("type")).unwrap_or("output") {
        "output" => &dirs.output,
        "input" => &dirs.input,
        "temp" => &dirs.temp,
        _ => return Ok(()),
    };
    let folder = paths::resolve(dir, text("subfolder").unwrap_or_default());
    if !paths::within(dir, &folder) {
        return Ok(());
    }
    let path = folder.join(filename);
    if !path.is_file() {
        return Ok(());
    }
    let bytes = std::fs::read(&path)?;
    let image = |bytes: &[u8]| media::decode::any(bytes).map_err(|error| broken(&error.to_string()));
    let picture = image(&bytes)?;
    let mask = image(&std::fs::read(mask)?)?;
    if (mask.width(), mask.height()) != (picture.width(), picture.height()) {
        return Err(broken("mask and picture differ in size"));
    }
    let opaque = vec![255; mask.width() as usize * mask.height() as usize];
    let alpha = mask.alpha().map_or(opaque, <[u8]>::to_vec);
    let masked = picture.with_alpha(alpha).ok_or_else(|| broken("mask and picture differ in size"))?;
    let texts = texts(&bytes);
    let texts: Vec<_> = texts.iter().map(|(key, text)| (key.as_str(), text.as_str())).collect();
    std::fs::write(target, media::png::encode(&masked, &texts))
}

/// The text chunks of a PNG, which carry the workflow.
fn texts(bytes: &[u8]) -> Vec<(String, String)> {
    let Ok(reader) = png::Decoder::new(io::Cursor::new(bytes)).read_info() else {
        return Vec::new();
    };
    let info = reader.info();
    let latin = info.uncompressed_latin1_text.iter().map(|chunk| (chunk.keyword.clone(), chunk.text.clone()));
    let unicode =
        info.utf8_text.iter().filter_map(|chunk| Some((chunk.keyword.clone(), chunk.get_text().ok()?)));
    latin.chain(unicode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::Image;

    #[test]
    fn the_alpha_of_the_mask_and_the_texts_of_the_picture_come_together() {
        let base = tempfile::tempdir().unwrap();
        let dirs = Dirs::below(base.path());
        std::fs::create_dir_all(dirs.input.join("sub")).unwrap();
        let picture = Image::solid(2, 1, [9, 8, 7]);
        let file = media::png::encode(&picture, &[("prompt", "{}"), ("workflow", "é")]);
        std::fs::write(dirs.input.join("sub/a.png"), file).unwrap();
        let mask_path = base.path().join("mask.png");
        let mask = Image::solid(2, 1, [0, 0, 0]).with_alpha(vec![0, 200]).unwrap();
        std::fs::write(&mask_path, media::png::encode(&mask, &[])).unwrap();
        let target = base.path().join("out.png");
        let original = r#"{"filename": "a.png", "subfolder": "sub", "type": "input"}"#;
        save(&dirs, Some(original), &mask_path, &target).unwrap();
        let written = std::fs::read(&target).unwrap();
        let result = media::png::decode(&written).unwrap();
        assert_eq!(result.alpha().unwrap(), [0, 200]);
        assert_eq!(result.pixel(1, 0), [9, 8, 7]);
        assert_eq!(
            texts(&written),
            [("prompt", "{}"), ("workflow", "é")].map(|(k, v)| (k.to_owned(), v.to_owned()))
        );
    }

    #[test]
    fn a_reference_to_nothing_writes_nothing() {
        let base = tempfile::tempdir().unwrap();
        let dirs = Dirs::below(base.path());
        let target = base.path().join("out.png");
        for original in [
            r#"{"filename": "missing.png"}"#,
            r#"{"filename": "../x.png", "type": "input"}"#,
            r#"{"filename": "x.png", "type": "elsewhere"}"#,
            r#"{"filename": "x.png", "subfolder": "../.."}"#,
        ] {
            save(&dirs, Some(original), &target, &target).unwrap();
            assert!(!target.exists(), "{original}");
        }
        assert!(save(&dirs, None, &target, &target).is_err());
        assert!(save(&dirs, Some("nonsense"), &target, &target).is_err());
    }
}
