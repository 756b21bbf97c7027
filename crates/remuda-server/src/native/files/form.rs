//! The form of an upload, read as it comes: the file goes where it is to be kept, whatever fields follow it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use axum::extract::Request;
use axum::extract::multipart::Field;
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _};
use http::{StatusCode, header};
use percent_encoding::percent_decode_str;
use remuda_core::Tenant;
use remuda_files::{BoxError, Staged};

use super::picture;
use crate::error::ApiError;
use crate::form;
use crate::options::Limits;
use crate::routes::timely;
use crate::service::{ServiceError, UploadRoom, upload_room};
use crate::share::Visit;
use crate::state::AppState;

/// How many fields a form may have.
const MOST_FIELDS: usize = 64;

/// How long a field may be that is not the file.
const LONGEST_FIELD: usize = 64 << 10;

/// Where the file goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Keep {
    /// Into the file store.
    Stored,
    /// Into memory, because it is worked with.
    InMemory,
}

/// The file of a form.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) filename: String,
    pub(super) mime: Option<String>,
    pub(super) content: Content,
}

#[derive(Debug)]
pub(super) enum Content {
    Staged(Staged),
    InMemory(Bytes),
}

/// A form with the field `image`.
#[derive(Debug)]
pub(super) struct Form {
    pub(super) image: Sent,
    /// The room that it has.
    pub(super) room: UploadRoom,
    pub(super) texts: Texts,
}

/// The other fields of a form, by name.
#[derive(Debug, Default)]
pub(super) struct Texts(HashMap<String, String>);

impl Texts {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Why there is no form.
#[derive(Debug)]
pub(super) enum NoForm {
    /// It is none, or has no file in it.
    Bad,
    TooLarge(u64),
    Trouble(ApiError),
}

impl From<ApiError> for NoForm {
    fn from(error: ApiError) -> Self {
        Self::Trouble(error)
    }
}

impl From<ServiceError> for NoForm {
    fn from(error: ServiceError) -> Self {
        match error {
            ServiceError::TooLong(limit) => Self::TooLarge(limit),
            other => Self::Trouble(other.into()),
        }
    }
}

impl IntoResponse for NoForm {
    fn into_response(self) -> Response {
        match self {
            Self::Bad => StatusCode::BAD_REQUEST.into_response(),
            Self::TooLarge(limit) => {
                (StatusCode::PAYLOAD_TOO_LARGE, format!("Maximum request body size {limit} exceeded."))
                    .into_response()
            }
            Self::Trouble(error) => error.into_response(),
        }
    }
}

/// Reads a form.
pub(super) async fn read(
    state: &AppState,
    tenant: &Tenant,
    request: Request,
    keep: Keep,
) -> Result<Form, NoForm> {
    let room = upload_room(state, tenant).await?;
    let room = match keep {
        Keep::Stored => room,
        Keep::InMemory => room.no_more_than(picture::LARGEST),
    };
    let length = request.headers().get(header::CONTENT_LENGTH);
    let length = length.and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if let Some(length) = length {
        // A form is a little longer than its file.
        if length > room.longest.saturating_add(LONGEST_FIELD as u64) {
            return Err(room.refusal().into());
        }
        room.cover(length.saturating_sub(LONGEST_FIELD as u64))?;
    }
    let patience = state.limits.body_time;
    let mut form = form::Form::read(request).await.map_err(|_| NoForm::Bad)?;
    let mut image = None;
    let mut texts = Texts::default();
    for _ in 0..MOST_FIELDS {
        let taken = form.counter();
        let next = tokio::time::timeout(patience, form.next()).await.map_err(|_| NoForm::Bad)?;
        let Some(field) = next.map_err(|_| NoForm::Bad)? else {
            return image.map(|image| Form { image, room, texts }).ok_or(NoForm::Bad);
        };
        let told = field.headers().get(header::CONTENT_DISPOSITION);
        let told = told.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let Disposition { name, filename } = Disposition::parse(&told.unwrap_or_default());
        match (name.as_deref(), filename) {
            (Some("image"), Some(filename)) if image.is_none() && !filename.is_empty() => {
                let mime = field.content_type().map(str::to_owned);
                image =
                    Some(Sent { filename, mime, content: keep_it(state, field, taken, keep, &room).await? });
            }
            // A file without a name cannot be kept.
            (Some("image"), _) if image.is_none() => return Err(NoForm::Bad),
            (Some(name), None) => {
                let bytes = in_memory(pieces(field, taken, &state.limits), LONGEST_FIELD).await?;
                let text = String::from_utf8(bytes.into()).map_err(|_| NoForm::Bad)?;
                texts.0.entry(name.to_owned()).or_insert(text);
            }
            // What is not asked for is read over.
            _ => {
                let skipped = tokio::time::timeout(patience, form::skip(field, taken)).await;
                skipped.map_err(|_| NoForm::Bad)?.map_err(|_| NoForm::Bad)?;
            }
        }
    }
    Err(NoForm::Bad)
}

fn pieces(
    field: Field<'_>,
    taken: Arc<AtomicUsize>,
    limits: &Limits,
) -> impl Stream<Item = Result<Bytes, BoxError>> + Send {
    timely(form::pieces(field, taken).map(|chunk| chunk.map_err(BoxError::from)), limits)
}

async fn keep_it(
    state: &AppState,
    field: Field<'_>,
    taken: Arc<AtomicUsize>,
    keep: Keep,
    room: &UploadRoom,
) -> Result<Content, NoForm> {
    let pieces = pieces(field, taken, &state.limits);
    match keep {
        Keep::InMemory => {
            let longest = usize::try_from(room.longest).unwrap_or(usize::MAX);
            let read = in_memory(pieces, longest).await;
            Ok(Content::InMemory(read.map_err(|error| match error {
                NoForm::TooLarge(_) => room.refusal().into(),
                other => other,
            })?))
        }
        Keep::Stored => {
            let staged = state.files.stage(room.counted(pieces), Some(room.longest)).await;
            Ok(Content::Staged(staged.map_err(|error| room.not_kept(error))?))
        }
    }
}

async fn in_memory(
    pieces: impl Stream<Item = Result<Bytes, BoxError>>,
    longest: usize,
) -> Result<Bytes, NoForm> {
    let mut pieces = std::pin::pin!(pieces);
    let mut all = BytesMut::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| NoForm::Bad)?;
        if all.len() + piece.len() > longest {
            return Err(NoForm::TooLarge(longest as u64));
        }
        if let Some(visit) = Visit::current() {
            visit.read(piece.len()).await.map_err(|error| NoForm::Trouble(error.into()))?;
        }
        all.extend_from_slice(&piece);
    }
    Ok(all.freeze())
}

/// Name and file name of a field, as ComfyUI's server reads them: the extended form (RFC 5987) wins over the plain one,
/// escapes in the plain one stay, and slashes at its start go.
#[derive(Debug, Default, PartialEq, Eq)]
struct Disposition {
    name: Option<String>,
    filename: Option<String>,
}

impl Disposition {
    fn parse(header: &str) -> Self {
        let mut this = Self::default();
        let mut extended = None;
        let (_, mut rest) = header.split_once(';').unwrap_or_default();
        while let Some((key, after)) = rest.split_once('=') {
            let (value, after) = value(after.trim_start());
            match key.trim().to_ascii_lowercase().as_str() {
                "name" => this.name = Some(value),
                "filename" => this.filename = Some(value.trim_start_matches(['/', '\\']).to_owned()),
                "filename*" => extended = decoded(&value),
                _ => {}
            }
            rest = after.split_once(';').unwrap_or_default().1;
        }
        this.filename = extended.or(this.filename);
        this
    }
}

/// A token, or what stands between quotes, and what comes after it.
fn value(text: &str) -> (String, &str) {
    let Some(inner) = text.strip_prefix('"') else {
        let end = text.find(';').unwrap_or(text.len());
        return (text[..end].trim_end().to_owned(), &text[end..]);
    };
    let mut value = String::new();
    let mut characters = inner.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return (value, &inner[at + 1..]),
            '\\' => value.extend(characters.next().map(|(_, escaped)| escaped)),
            other => value.push(other),
        }
    }
    (value, "")
}

/// `charset'language'percent-encoded`.
fn decoded(text: &str) -> Option<String> {
    let mut parts = text.splitn(3, '\'');
    let charset = parts.next()?;
    let name = parts.nth(1)?;
    let known = charset.is_empty() || charset.eq_ignore_ascii_case("utf-8");
    known.then(|| percent_decode_str(name).decode_utf8().ok().map(|name| name.into_owned())).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_are_read_as_recorded() {
        for (parameters, expected) in [
            (r#"filename="raw_a.png""#, Some("raw_a.png")),
            (r#"filename="имя 画.png""#, Some("имя 画.png")),
            ("filename*=utf-8''%D0%B8%D0%BC%D1%8F%202.png", Some("имя 2.png")),
            (r#"filename="fallback.png"; filename*=utf-8''%D0%B8%203.png"#, Some("и 3.png")),
            (r#"filename="a%20b.png""#, Some("a%20b.png")),
            (r#"filename="a\"b.png""#, Some("a\"b.png")),
            (r#"filename="dir\\file.png""#, Some("dir\\file.png")),
            (r#"filename="a;b.png""#, Some("a;b.png")),
            (r#"filename="//existing/y.png""#, Some("existing/y.png")),
            (r#"filename=token.png ; x=y"#, Some("token.png")),
            (r#"filename="""#, Some("")),
            ("x=y", None),
            (r#"filename="open"#, Some("open")),
        ] {
            let found = Disposition::parse(&format!("form-data; name=\"image\"; {parameters}"));
            assert_eq!(found.name.as_deref(), Some("image"), "{parameters}");
            assert_eq!(found.filename.as_deref(), expected, "{parameters}");
        }
        assert_eq!(Disposition::parse("form-data"), Disposition::default());
    }
}
