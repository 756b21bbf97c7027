//! `multipart/form-data`, read field by field; files go to disk while they arrive.

use super::body::{BodyError, RequestBody};
use super::disposition::Disposition;
use bytes::BytesMut;
use std::path::Path;
use tempfile::NamedTempFile;
use tokio::io::AsyncWriteExt;

/// More than this before a line ends is no header.
const HEADERS: usize = 64 * 1024;
/// The text fields of one form, together.
const TEXTS: usize = 8 * 1024 * 1024;
/// As aiohttp's own limit.
const FIELDS: usize = 1000;

/// Why a form could not be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FormError {
    /// The body as such.
    #[error(transparent)]
    Body(#[from] BodyError),
    /// No boundary, a field without name, an end in the middle.
    #[error("the form is malformed")]
    Malformed,
    /// The disk.
    #[error("cannot keep an uploaded file: {0}")]
    Io(#[from] std::io::Error),
}

/// All fields, in the order they came.
#[derive(Debug, Default)]
pub(crate) struct Form {
    fields: Vec<(String, Value)>,
}

/// What a field holds.
#[derive(Debug)]
pub(crate) enum Value {
    Text(String),
    /// A field without file name whose type is not text.
    Bytes(Vec<u8>),
    File(Upload),
}

/// A file on its way.
#[derive(Debug)]
pub(crate) struct Upload {
    pub(crate) filename: String,
    pub(crate) file: NamedTempFile,
}

impl Form {
    /// The first field of that name.
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.fields.iter().find(|(key, _)| key == name).map(|(_, value)| value)
    }

    /// The first field of that name, taken out.
    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        let at = self.fields.iter().position(|(key, _)| key == name)?;
        Some(self.fields.remove(at).1)
    }

    pub(crate) fn from_pairs(pairs: Vec<(String, String)>) -> Self {
        Self { fields: pairs.into_iter().map(|(key, value)| (key, Value::Text(value))).collect() }
    }
}

/// Reads a form. Files are kept in `dir` until somebody moves them.
pub(crate) async fn read(body: &mut RequestBody, boundary: &str, dir: &Path) -> Result<Form, FormError> {
    let mut reader =
        Reader { body, buffer: BytesMut::new(), delimiter: format!("\r\n--{boundary}").into_bytes() };
    let mut form = Form::default();
    let mut texts = 0;
    let mut more = reader.skip_to_first_boundary().await?;
    while more {
        if form.fields.len() >= FIELDS {
            return Err(FormError::Malformed);
        }
        let headers = reader.headers().await?;
        let Disposition { name, filename } = headers.disposition;
        let name = name.ok_or(FormError::Malformed)?;
        let value = match filename.filter(|filename| !filename.is_empty()) {
            Some(filename) => Value::File(Upload { filename, file: reader.file(dir).await? }),
            None => {
                let bytes = reader.bytes(&mut texts).await?;
                if headers.text {
                    Value::Text(String::from_utf8(bytes).map_err(|_| FormError::Malformed)?)
                } else {
                    Value::Bytes(bytes)
                }
            }
        };
        form.fields.push((name, value));
        more = reader.after_boundary().await?;
    }
    Ok(form)
}

/// The boundary that a content type names.
pub(crate) fn boundary(content_type: &str) -> Option<String> {
    let parameter = |part: &str| {
        let (key, value) = part.split_once('=')?;
        key.trim().eq_ignore_ascii_case("boundary").then(|| value.trim().trim_matches('"').to_owned())
    };
    content_type.split(';').skip(1).find_map(parameter).filter(|boundary| !boundary.is_empty())
}

struct Headers {
    disposition: Disposition,
    text: bool,
}

struct Reader<'a> {
    body: &'a mut RequestBody,
    buffer: BytesMut,
    delimiter: Vec<u8>,
}

/// A stretch of a field's content.
enum Piece {
    Some(BytesMut),
    /// The last stretch; the boundary behind it has been consumed.
    Last(BytesMut),
}

impl Reader<'_> {
    async fn fill(&mut self) -> Result<(), FormError> {
        match self.body.chunk().await? {
            Some(chunk) => {
                self.buffer.extend_from_slice(&chunk);
                Ok(())
            }
            None => Err(FormError::Malformed),
        }
    }

    /// One line without its end.
    async fn line(&mut self) -> Result<BytesMut, FormError> {
        loop {
            if let Some(at) = self.buffer.iter().position(|&byte| byte == b'\n') {
                let mut line = self.buffer.split_to(at + 1);
                line.truncate(at);
                if line.last() == Some(&b'\r') {
                    line.truncate(at - 1);
                }
                return Ok(line);
            }
            if self.buffer.len() > HEADERS {
                return Err(FormError::Malformed);
            }
            self.fill().await?;
        }
    }

    /// Skips what may stand before the first boundary. Says whether a field follows.
    async fn skip_to_first_boundary(&mut self) -> Result<bool, FormError> {
        let boundary = self.delimiter[2..].to_vec();
        loop {
            // The last line of an empty form need not end.
            let closing = [boundary.as_slice(), b"--"].concat();
            while self.buffer.len() < closing.len() && closing.starts_with(&self.buffer) {
                self.fill().await?;
            }
            if self.buffer.starts_with(&closing) {
                return Ok(false);
            }
            if self.line().await?.as_ref() == boundary {
                return Ok(true);
            }
        }
    }

    /// Says whether another field follows a boundary that ended one.
    async fn after_boundary(&mut self) -> Result<bool, FormError> {
        while self.buffer.len() < 2 {
            self.fill().await?;
        }
        if self.buffer.starts_with(b"--") {
            return Ok(false);
        }
        match self.line().await?.is_empty() {
            true => Ok(true),
            false => Err(FormError::Malformed),
        }
    }

    async fn headers(&mut self) -> Result<Headers, FormError> {
        let mut headers = Headers { disposition: Disposition::default(), text: true };
        let mut length = 0;
        loop {
            let line = self.line().await?;
            length += line.len();
            if line.is_empty() {
                return Ok(headers);
            }
            if length > HEADERS {
                return Err(FormError::Malformed);
            }
            let line = String::from_utf8_lossy(&line);
            let (name, value) = line.split_once(':').ok_or(FormError::Malformed)?;
            let value = value.trim();
            match name.trim().to_ascii_lowercase().as_str() {
                "content-disposition" => headers.disposition = Disposition::parse(value),
                "content-type" => headers.text = value.starts_with("text/"),
                _ => {}
            }
        }
    }

    async fn piece(&mut self) -> Result<Piece, FormError> {
        loop {
            if let Some(at) = find(&self.buffer, &self.delimiter) {
                let last = self.buffer.split_to(at);
                let _ = self.buffer.split_to(self.delimiter.len());
                return Ok(Piece::Last(last));
            }
            // The end of the buffer may be the start of a boundary.
            let sure = self.buffer.len().saturating_sub(self.delimiter.len());
            if sure > 0 {
                return Ok(Piece::Some(self.buffer.split_to(sure)));
            }
            self.fill().await?;
        }
    }

    async fn file(&mut self, dir: &Path) -> Result<NamedTempFile, FormError> {
        let dir = dir.to_owned();
        let file = tokio::task::spawn_blocking(move || NamedTempFile::new_in(dir))
            .await
            .map_err(std::io::Error::other)??;
        let mut writer = tokio::fs::File::from_std(file.as_file().try_clone()?);
        loop {
            let (piece, last) = match self.piece().await? {
                Piece::Some(piece) => (piece, false),
                Piece::Last(piece) => (piece, true),
            };
            writer.write_all(&piece).await?;
            if last {
                writer.flush().await?;
                return Ok(file);
            }
        }
    }

    async fn bytes(&mut self, texts: &mut usize) -> Result<Vec<u8>, FormError> {
        let mut bytes = Vec::new();
        loop {
            let (piece, last) = match self.piece().await? {
                Piece::Some(piece) => (piece, false),
                Piece::Last(piece) => (piece, true),
            };
            *texts += piece.len();
            if *texts > TEXTS {
                return Err(FormError::Malformed);
            }
            bytes.extend_from_slice(&piece);
            if last {
                return Ok(bytes);
            }
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    // The first byte of a boundary is rare in most files, so most of the work is a scan for it.
    let mut from = 0;
    while let Some(at) = haystack[from..].iter().position(|&byte| byte == needle[0]) {
        let at = from + at;
        if haystack[at..].starts_with(needle) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read_in_chunks(text: &[u8], size: usize) -> Result<Form, FormError> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let mut body = RequestBody::of_chunks(text.chunks(size.max(1)), u64::MAX);
        runtime.block_on(read(&mut body, "RIG", dir.path()))
    }

    fn file_text(value: &Value) -> Vec<u8> {
        match value {
            Value::File(upload) => std::fs::read(upload.file.path()).unwrap_or_default(),
            other => panic!("not a file: {other:?}"),
        }
    }

    const FORM: &[u8] = b"--RIG\r\nContent-Disposition: form-data; name=\"overwrite\"\r\n\r\ntrue\r\n\
        --RIG\r\nContent-Disposition: form-data; name=\"raw\"\r\nContent-Type: image/png\r\n\r\n\x00\xff\r\n\
        --RIG\r\nContent-Disposition: form-data; name=\"empty\"\r\n\r\n\r\n--RIG--\r\n";

    #[test]
    fn fields_are_read_however_the_body_is_cut() {
        for size in [1, 2, 3, 7, 20, 1000] {
            let form = read_in_chunks(FORM, size).unwrap();
            assert!(matches!(form.get("overwrite"), Some(Value::Text(text)) if text == "true"), "{size}");
            assert!(matches!(form.get("raw"), Some(Value::Bytes(bytes)) if bytes == b"\x00\xff"), "{size}");
            assert!(matches!(form.get("empty"), Some(Value::Text(text)) if text.is_empty()), "{size}");
        }
    }

    #[test]
    fn malformed_forms_are_refused() {
        let cases: [&[u8]; 6] = [
            b"",
            b"--x\r\nbroken",
            b"--RIG\r\nbroken\r\n\r\nx\r\n--RIG--",
            b"--RIG\r\nContent-Disposition: form-data\r\n\r\nx\r\n--RIG--",
            b"--RIG\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\nno end",
            b"--RIG\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n\xff\xfe\r\n--RIG--",
        ];
        for text in cases {
            assert!(read_in_chunks(text, 5).is_err(), "{:?}", String::from_utf8_lossy(text));
        }
        assert!(read_in_chunks(b"--RIG--", 3).unwrap().fields.is_empty());
    }

    #[test]
    fn boundaries_are_found_in_content_types() {
        assert_eq!(boundary("multipart/form-data; boundary=x").as_deref(), Some("x"));
        assert_eq!(boundary("multipart/form-data; charset=y; Boundary=\"a b\"").as_deref(), Some("a b"));
        assert_eq!(boundary("multipart/form-data"), None);
    }

    proptest! {
        #[test]
        fn a_file_arrives_as_it_was_sent(content in prop::collection::vec(prop::sample::select(b"\r\n-RIGx".to_vec()), 0..80), size in 1_usize..30) {
            prop_assume!(find(&content, b"\r\n--RIG").is_none());
            let mut text = b"--RIG\r\nContent-Disposition: form-data; name=\"image\"; filename=\"a\"\r\n\r\n".to_vec();
            text.extend_from_slice(&content);
            text.extend_from_slice(b"\r\n--RIG--\r\n");
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let dir = tempfile::tempdir().unwrap();
            let mut body = RequestBody::of_chunks(text.chunks(size), u64::MAX);
            let form = runtime.block_on(read(&mut body, "RIG", dir.path())).unwrap();
            prop_assert_eq!(file_text(form.get("image").unwrap()), content);
        }

        #[test]
        fn no_bytes_make_the_reader_panic(text in prop::collection::vec(any::<u8>(), 0..200), size in 1_usize..30) {
            let _ = read_in_chunks(&text, size);
        }
    }
}
