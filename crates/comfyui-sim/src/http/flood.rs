//! Answers that are larger, or come more slowly, than anybody should have to take.

use super::reply::Body;
use bytes::Bytes;
use flate2::{Compress, Compression, FlushCompress, Status};
use futures_util::{Stream, StreamExt, stream};
use http::header::{self, HeaderValue};
use http::{Response, StatusCode, response::Parts};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use std::io;
use std::time::Duration;

/// Bodies are made in pieces of this size.
const PIECE: usize = 256 * 1024;

/// What one compressed block unpacks to.
const BLOCK: usize = 1 << 20;

/// A body of blanks, which JSON allows anywhere: whoever reads it learns only at its end that there is nothing in it.
pub(super) fn endless(status: u16, bytes: u64) -> Response<Body> {
    let piece = Bytes::from(vec![b' '; PIECE]);
    let pieces = bytes.div_ceil(PIECE as u64);
    let mut response = Response::new(body(repeated(piece, pieces)));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
    as_json(&mut response);
    response
}

/// One compressed block over and over. Each is independent of the others, so the same bytes serve for all of them.
pub(super) fn gzip_bomb(bytes: u64) -> Response<Body> {
    // Magic number, deflate, no flags, no time, best compression, unknown system.
    let head = Bytes::from_static(&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 2, 255]);
    let blocks = bytes.div_ceil(BLOCK as u64);
    let packed = stream::iter([head]).chain(repeated(block(), blocks));
    let mut response = Response::new(body(packed));
    response.headers_mut().insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    as_json(&mut response);
    response
}

/// Blanks as a deflate block that ends on a byte and refers to nothing before it.
fn block() -> Bytes {
    let blanks = vec![b' '; BLOCK];
    let mut packer = Compress::new(Compression::best(), false);
    let mut packed = Vec::with_capacity(BLOCK / 64);
    // There is room for all of it, so one call does it.
    match packer.compress_vec(&blanks, &mut packed, FlushCompress::Full) {
        Ok(Status::Ok | Status::BufError | Status::StreamEnd) => packed.into(),
        Err(_) => Bytes::new(),
    }
}

/// The answer with that many more classes.
pub(super) fn object_info(parts: Parts, real: Bytes, nodes: u64) -> Response<Body> {
    let (start, end) = around_last_brace(&real);
    let more = stream::iter(0..nodes.div_ceil(256)).map(move |group| {
        let last = nodes.min((group + 1) * 256);
        let texts = (group * 256..last).map(|n| {
            format!(
                ", \"Flood{n}\": {{\"input\": {{\"required\": {{\"image\": [\"IMAGE\"], \"model\": [[\"a.safetensors\", \
                 \"b.safetensors\"], {{\"tooltip\": \"one of many\"}}], \"strength\": [\"FLOAT\", {{\"default\": 1.0, \"min\": \
                 -10.0, \"max\": 10.0, \"step\": 0.01}}], \"steps\": [\"INT\", {{\"default\": 20, \"min\": 1, \"max\": 10000}}]}}, \
                 \"optional\": {{\"text\": [\"STRING\", {{\"multiline\": true}}]}}}}, \"output\": [\"IMAGE\"], \
                 \"output_is_list\": [false], \"output_name\": [\"IMAGE\"], \"name\": \"Flood{n}\", \"display_name\": \
                 \"Flood {n}\", \"category\": \"flood\", \"python_module\": \"custom_nodes.flood\", \"output_node\": false}}"
            )
        });
        Bytes::from(texts.collect::<String>())
    });
    around(parts, start, more, end)
}

/// The answer with a text of that length among the outputs of its first entry; as it is when there is none.
pub(super) fn history(parts: Parts, real: Bytes, bytes: u64) -> Response<Body> {
    const MARK: &[u8] = b"\"outputs\": {";
    let Some(at) = real.windows(MARK.len()).position(|window| window == MARK) else {
        return around(parts, real, stream::empty(), Bytes::new());
    };
    let (start, end) = (real.slice(..at + MARK.len()), real.slice(at + MARK.len()..));
    let open = Bytes::from_static(b"\"flood\": {\"text\": [\"");
    let comma = if end.first() == Some(&b'}') { "" } else { ", " };
    let close = Bytes::from(format!("\"]}}{comma}"));
    let text = repeated(Bytes::from(vec![b'x'; PIECE]), bytes.div_ceil(PIECE as u64));
    around(parts, start, stream::iter([open]).chain(text).chain(stream::iter([close])), end)
}

/// The answer, byte by byte.
pub(super) fn trickle(parts: Parts, real: Bytes, delay: Duration) -> Response<Body> {
    let slow = stream::iter(0..real.len()).then(move |at| {
        let byte = real.slice(at..=at);
        async move {
            tokio::time::sleep(delay).await;
            byte
        }
    });
    around(parts, Bytes::new(), slow, Bytes::new())
}

fn around_last_brace(real: &Bytes) -> (Bytes, Bytes) {
    let at = real.iter().rposition(|&byte| byte == b'}').unwrap_or(real.len());
    (real.slice(..at), real.slice(at..))
}

fn repeated(piece: Bytes, times: u64) -> impl Stream<Item = Bytes> + Send + 'static {
    stream::iter((0..times).map(move |_| piece.clone()))
}

fn around(
    mut parts: Parts,
    start: Bytes,
    middle: impl Stream<Item = Bytes> + Send + 'static,
    end: Bytes,
) -> Response<Body> {
    parts.headers.remove(header::CONTENT_LENGTH);
    let all = stream::iter([start]).chain(middle).chain(stream::iter([end]));
    Response::from_parts(parts, body(all.filter(|piece| std::future::ready(!piece.is_empty()))))
}

fn body(pieces: impl Stream<Item = Bytes> + Send + 'static) -> Body {
    StreamBody::new(pieces.map(|piece| Ok::<_, io::Error>(Frame::data(piece)))).boxed_unsync()
}

fn as_json(response: &mut Response<Body>) {
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
}
