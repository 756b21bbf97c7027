//! ComfyUI's messages, as texts and bytes.

use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::{Value, json};

use super::mailbox::Picture;

/// A picture without a word about it.
const PLAIN: u32 = 1;

/// A picture that says whose it is.
const LABELLED: u32 = 4;

/// A text message. `data` is JSON.
pub(super) fn message(kind: &str, data: impl std::fmt::Display) -> String {
    format!(r#"{{"type": {}, "data": {data}}}"#, Value::from(kind))
}

/// `status`; only the first one of a socket says who it is.
pub(super) fn status(remaining: i64, sid: Option<&str>) -> String {
    let mut data = json!({"status": {"exec_info": {"queue_remaining": remaining}}});
    if let Some(sid) = sid {
        data["sid"] = sid.into();
    }
    message("status", data)
}

/// A binary message of ComfyUI for those who understand labels and those who do not. `rename` puts the client's names in
/// the place of ours.
///
/// The second one comes later than the first: without labels a picture follows its step, with them it comes before.
pub(super) fn picture(
    event: u32,
    bytes: &Bytes,
    rename: impl Fn(&str) -> String,
) -> (Picture, Option<Picture>) {
    let labelled = (event == LABELLED).then(|| split_label(bytes)).flatten();
    let Some((label, image)) = labelled else {
        let whole = packet(event, &[], bytes);
        // A JPEG is a look at the work; a PNG may be a result that comes in no other way.
        let fleeting = event == PLAIN && bytes.starts_with(&1u32.to_be_bytes());
        return (Picture { labelled: Some(whole.clone()), plain: Some(whole), fleeting }, None);
    };
    let kind = serde_json::from_str::<Value>(label).ok();
    let png = kind.as_ref().and_then(|kind| kind["image_type"].as_str()) == Some("image/png");
    let label = rename(label);
    let length = u32::try_from(label.len()).unwrap_or(u32::MAX).to_be_bytes();
    let first = packet(LABELLED, &[&length, label.as_bytes()], image);
    let format = if png { 2u32 } else { 1 }.to_be_bytes();
    let second = packet(PLAIN, &[&format], image);
    let fleeting = !png;
    (
        Picture { labelled: Some(first), plain: None, fleeting },
        Some(Picture { labelled: None, plain: Some(second), fleeting }),
    )
}

fn split_label(bytes: &Bytes) -> Option<(&str, &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
    let (label, image) = rest.split_at_checked(length)?;
    Some((std::str::from_utf8(label).ok()?, image))
}

fn packet(event: u32, head: &[&[u8]], body: &[u8]) -> Bytes {
    let length = 4 + head.iter().map(|part| part.len()).sum::<usize>() + body.len();
    let mut out = BytesMut::with_capacity(length);
    out.put_u32(event);
    head.iter().for_each(|part| out.put_slice(part));
    out.put_slice(body);
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_labelled_picture_is_also_a_plain_one_and_has_the_clients_names() {
        let label = r#"{"node_id": "1", "prompt_id": "ours", "image_type": "image/png"}"#;
        let mut bytes = BytesMut::new();
        bytes.put_u32(u32::try_from(label.len()).unwrap());
        bytes.put_slice(label.as_bytes());
        bytes.put_slice(b"PICTURE");
        let (labelled, plain) = picture(4, &bytes.freeze(), |label| label.replace("ours", "the client's"));
        assert!(labelled.plain.is_none() && !labelled.fleeting);
        let labelled = labelled.labelled.unwrap();
        assert_eq!(labelled[..4], [0, 0, 0, 4]);
        let (label, image) =
            split_label(&labelled.slice(4..)).map(|(a, b)| (a.to_owned(), b.to_vec())).unwrap();
        assert!(label.contains(r#""prompt_id": "the client's""#), "{label}");
        assert_eq!(image, b"PICTURE");
        assert_eq!(plain.unwrap().plain.unwrap(), &b"\0\0\0\x01\0\0\0\x02PICTURE"[..]);
    }

    #[test]
    fn what_is_no_labelled_picture_goes_to_everybody_as_it_is() {
        for (event, bytes) in
            [(1, &b"\0\0\0\x01JPEG"[..]), (3, b"\0\0\0\x011text"), (4, b"\xff\xff\xff\xffx"), (9, b"")]
        {
            let (first, second) = picture(event, &Bytes::copy_from_slice(bytes), str::to_owned);
            let whole = [&event.to_be_bytes()[..], bytes].concat();
            assert_eq!((first.plain.as_deref(), second), (Some(&whole[..]), None));
            assert_eq!((first.labelled, first.fleeting), (first.plain, event == 1));
        }
    }
}
