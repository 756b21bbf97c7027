//! `GET /view`: files of the three folders, as they are or recoded.

use super::call::Call;
use super::file;
use super::mime;
use super::paths;
use super::reply::Reply;
use crate::media::{self, Image};
use bytes::Bytes;
use http::StatusCode;
use http::header::{self, HeaderMap, HeaderValue};
use std::path::Path;

/// Types that a browser would run; they are sent as something it only saves.
const DANGEROUS: [&str; 5] =
    ["text/html", "text/html-sandboxed", "application/xhtml+xml", "text/javascript", "text/css"];

/// `GET /view`
pub(crate) async fn view(call: &mut Call) -> Reply {
    let Some(name) = call.query("filename") else {
        return Reply::empty(StatusCode::NOT_FOUND);
    };
    let (name, annotated) = paths::annotation(name);
    if name.is_empty() || name.starts_with('/') || name.contains("..") {
        return Reply::empty(StatusCode::BAD_REQUEST);
    }
    let kind = annotated.unwrap_or_else(|| call.query("type").unwrap_or("output"));
    let Some(dir) = call.dir_of_type(kind) else {
        return Reply::empty(StatusCode::BAD_REQUEST);
    };
    let dir = match call.query("subfolder") {
        Some(subfolder) => {
            let below = paths::resolve(dir, subfolder);
            if !paths::within(dir, &below) {
                return Reply::empty(StatusCode::FORBIDDEN);
            }
            below
        }
        None => dir.to_owned(),
    };
    // A folder inside the name is cut off.
    let name = name.rsplit('/').next().unwrap_or(name);
    let path = dir.join(name);
    if !tokio::fs::metadata(&path).await.is_ok_and(|metadata| metadata.is_file()) {
        return Reply::empty(StatusCode::NOT_FOUND);
    }
    let channel = call.query("channel").unwrap_or("rgba");
    if let Some(preview) = call.query("preview") {
        return recoded(&path, name, Recoding::preview(preview, call.query("channel"))).await;
    }
    match channel {
        "rgb" => recoded(&path, name, Recoding::Opaque).await,
        "a" => recoded(&path, name, Recoding::Alpha).await,
        _ => as_it_is(call, &path, name).await,
    }
}

async fn as_it_is(call: &Call, path: &Path, name: &str) -> Reply {
    let guessed = mime::guess(name).unwrap_or_else(|| "application/octet-stream".to_owned());
    let content_type = match guessed.as_str() {
        dangerous if DANGEROUS.contains(&dangerous) => "application/octet-stream",
        // ComfyUI enters this one into its table itself.
        "application/javascript" => "application/javascript; charset=utf-8",
        harmless => harmless,
    };
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_DISPOSITION, disposition(name));
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_str(content_type).unwrap_or(HeaderValue::from_static("application/octet-stream")),
    );
    file::send(path, call.headers(), headers).await
}

/// How a picture is to be changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Recoding {
    Jpeg {
        quality: u8,
    },
    /// With or without its alpha channel.
    Webp {
        opaque: bool,
    },
    Opaque,
    Alpha,
}

impl Recoding {
    /// `webp;90`, `jpeg` and so on; what is neither is WebP.
    fn preview(wish: &str, channel: Option<&str>) -> Self {
        let mut parts = wish.split(';');
        let format = parts.next().unwrap_or_default();
        let channel = channel.unwrap_or("");
        if format != "jpeg" || channel.contains('a') {
            return Self::Webp { opaque: channel == "rgb" };
        }
        let quality = wish.rsplit(';').next().and_then(|last| last.parse().ok()).unwrap_or(90_u8);
        Self::Jpeg { quality }
    }

    fn apply(self, image: Image) -> Option<(&'static str, Vec<u8>)> {
        match self {
            Self::Jpeg { quality } => {
                Some(("image/jpeg", media::jpeg::encode(&image, quality.clamp(1, 100)).ok()?))
            }
            Self::Webp { opaque } => {
                let image = if opaque { image.without_alpha() } else { image };
                Some(("image/webp", media::webp::encode_still(&image, &[]).ok()?))
            }
            Self::Opaque => Some(("image/png", media::png::encode(&image.without_alpha(), &[]))),
            Self::Alpha => {
                let (width, height) = (image.width(), image.height());
                let alpha = match image.alpha() {
                    Some(alpha) => alpha.to_vec(),
                    None => vec![255; width as usize * height as usize],
                };
                let black = Image::solid(width, height, [0, 0, 0]).with_alpha(alpha)?;
                Some(("image/png", media::png::encode(&black, &[])))
            }
        }
    }
}

/// Recodes a picture; what is none is trouble.
async fn recoded(path: &Path, name: &str, recoding: Recoding) -> Reply {
    let Ok(bytes) = tokio::fs::read(path).await else {
        return Reply::trouble();
    };
    let recode = move || recoding.apply(media::decode::any(&bytes).ok()?);
    match tokio::task::spawn_blocking(recode).await {
        Ok(Some((content_type, bytes))) => {
            let mut reply =
                Reply::bytes(StatusCode::OK, HeaderValue::from_static(content_type), Bytes::from(bytes));
            reply.headers.insert(header::CONTENT_DISPOSITION, disposition(name));
            reply
        }
        _ => Reply::trouble(),
    }
}

fn disposition(name: &str) -> HeaderValue {
    let printable: String = name.chars().filter(|character| !character.is_control()).collect();
    HeaderValue::from_str(&format!("filename=\"{printable}\""))
        .or_else(|_| HeaderValue::from_bytes(format!("filename=\"{printable}\"").as_bytes()))
        .unwrap_or(HeaderValue::from_static("filename=\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn previews_are_chosen_as_comfyui_does() {
        let check = |wish, channel, expected| {
            assert_eq!(Recoding::preview(wish, channel), expected, "{wish} {channel:?}")
        };
        check("webp;50", None, Recoding::Webp { opaque: false });
        check("jpeg", None, Recoding::Jpeg { quality: 90 });
        check("jpeg;30", None, Recoding::Jpeg { quality: 30 });
        check("jpeg;30", Some("a"), Recoding::Webp { opaque: false });
        check("jpeg;x", Some("rgb"), Recoding::Jpeg { quality: 90 });
        check("png", Some("rgb"), Recoding::Webp { opaque: true });
    }
}
