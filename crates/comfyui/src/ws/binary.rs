//! Binary frames: previews and text from nodes.

use bytes::{Buf, Bytes};
use serde::Deserialize;

use crate::ids::PromptId;
use crate::ws::{DecodeError, Message};

/// An image that shows how far a node is.
#[derive(Debug, Clone)]
pub struct Preview {
    /// Encoding of the image.
    pub format: ImageFormat,
    /// The image file.
    pub image: Bytes,
    /// Where it comes from; `None` for clients that did not announce metadata, and before 0.3.45.
    pub source: Option<PreviewSource>,
}

/// Encoding of a preview.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ImageFormat {
    /// JPEG.
    Jpeg,
    /// PNG.
    Png,
    /// Something else; sniff it.
    Unknown,
}

/// Where a preview comes from.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct PreviewSource {
    /// The prompt.
    #[serde(default)]
    pub prompt_id: Option<PromptId>,
    /// The node.
    #[serde(default)]
    pub node_id: Option<String>,
    /// The node to show.
    #[serde(default)]
    pub display_node_id: Option<String>,
    #[serde(default)]
    image_type: Option<String>,
}

/// Text that a node shows while it works. It says the node, not the prompt.
#[derive(Debug, Clone)]
pub struct TextFrame {
    /// The node.
    pub node_id: String,
    /// The text.
    pub text: String,
}

/// Reads one binary frame.
///
/// # Errors
/// When it ends too early, contradicts itself, or is of a kind that does not exist.
///
/// ```
/// use comfyui::ws::{Message, ImageFormat, decode_binary};
/// let frame = bytes::Bytes::from_static(b"\0\0\0\x01\0\0\0\x02\x89PNG");
/// assert!(matches!(decode_binary(frame)?, Message::Preview(preview) if preview.format == ImageFormat::Png));
/// # Ok::<(), comfyui::ws::DecodeError>(())
/// ```
pub fn decode_binary(mut frame: Bytes) -> Result<Message, DecodeError> {
    let len = frame.len();
    let wrong = |what| DecodeError::Binary { len, what };
    let number = |frame: &mut Bytes| frame.try_get_u32().map_err(|_| wrong("ends too early"));
    match number(&mut frame)? {
        1 => {
            let format = match number(&mut frame)? {
                1 => ImageFormat::Jpeg,
                2 => ImageFormat::Png,
                _ => ImageFormat::Unknown,
            };
            Ok(Message::Preview(Preview { format, image: frame, source: None }))
        }
        3 => {
            let size = number(&mut frame)? as usize;
            if size > frame.len() {
                return Err(wrong("node id is longer than the frame"));
            }
            let node_id = String::from_utf8_lossy(&frame.split_to(size)).into_owned();
            let text = String::from_utf8_lossy(&frame).into_owned();
            Ok(Message::Text(TextFrame { node_id, text }))
        }
        4 => {
            let size = number(&mut frame)? as usize;
            if size > frame.len() {
                return Err(wrong("metadata is longer than the frame"));
            }
            let source: PreviewSource = crate::lenient::from_slice(&frame.split_to(size))
                .map_err(|_| wrong("metadata is not JSON"))?;
            let format = match source.image_type.as_deref() {
                Some("image/jpeg") => ImageFormat::Jpeg,
                Some("image/png") => ImageFormat::Png,
                _ => ImageFormat::Unknown,
            };
            Ok(Message::Preview(Preview { format, image: frame, source: Some(source) }))
        }
        _ => Err(wrong("unknown event")),
    }
}
