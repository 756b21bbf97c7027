//! The smallest HTTP/1.1 client that hides nothing: header case and order, reason, who closes.

use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// An answer as it came over the wire.
#[derive(Debug, Clone, Default)]
pub struct Received {
    pub status: u16,
    pub reason: String,
    /// In the order and case of the wire.
    pub headers: Vec<(String, String)>,
    /// Without transfer coding, still with content coding.
    pub body: Vec<u8>,
}

impl Received {
    /// The first header of that name.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(known, _)| known.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The body without content coding.
    pub fn content(&self) -> Result<Vec<u8>, String> {
        match self.header("content-encoding") {
            None => Ok(self.body.clone()),
            Some("gzip") => {
                let mut plain = Vec::new();
                std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&self.body[..]), &mut plain)
                    .map_err(|error| format!("body is not gzip: {error}"))?;
                Ok(plain)
            }
            Some(other) => Err(format!("unknown content-encoding {other}")),
        }
    }
}

/// Sends one request on a connection of its own and reads the answer.
pub async fn send(
    server: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(String, String)],
    body: Option<&[u8]>,
    deadline: Duration,
) -> Result<Received, String> {
    timeout(deadline, exchange(server, method, path, headers, body))
        .await
        .unwrap_or_else(|_| Err(format!("no answer within {deadline:?}")))
}

async fn exchange(
    server: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(String, String)],
    body: Option<&[u8]>,
) -> Result<Received, String> {
    let stream = TcpStream::connect(server).await.map_err(|error| format!("cannot connect: {error}"))?;
    let (mut reader, mut writer) = stream.into_split();
    let mut head = format!("{method} {path} HTTP/1.1\r\n");
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        head.push_str(&format!("Host: {server}\r\n"));
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if let Some(body) = body {
        head.push_str(&format!("Content-Length: {}\r\n", body.len()));
    }
    head.push_str("\r\n");
    let write = async {
        writer.write_all(head.as_bytes()).await?;
        if let Some(body) = body {
            writer.write_all(body).await?;
        }
        writer.flush().await
    };
    let mut bytes = Vec::new();
    // A server that refuses a large body may answer before it has read all of it, so both directions run.
    let (written, read) = tokio::join!(write, read_answer(&mut reader, &mut bytes, method));
    read.map_err(|error| match written {
        Ok(()) => error,
        Err(write_error) => format!("{error} (while sending: {write_error})"),
    })
}

async fn read_answer(
    reader: &mut (impl AsyncReadExt + Unpin),
    bytes: &mut Vec<u8>,
    method: &str,
) -> Result<Received, String> {
    let head_end = loop {
        if let Some(end) = find(bytes, b"\r\n\r\n") {
            break end;
        }
        if more(reader, bytes).await? == 0 {
            return Err(format!("connection closed after {} bytes of an answer", bytes.len()));
        }
    };
    let mut answer = parse_head(&bytes[..head_end])?;
    bytes.drain(..head_end + 4);
    if method == "HEAD" || matches!(answer.status, 204 | 304) {
        return Ok(answer);
    }
    if answer.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
        answer.body = read_chunked(reader, bytes).await?;
    } else if let Some(length) = answer.header("content-length") {
        let length: usize = length.parse().map_err(|_| format!("content-length {length:?} is no number"))?;
        while bytes.len() < length {
            if more(reader, bytes).await? == 0 {
                return Err(format!("connection closed after {} of {length} bytes of a body", bytes.len()));
            }
        }
        answer.body = bytes.drain(..length).collect();
    } else {
        while more(reader, bytes).await? > 0 {}
        answer.body = std::mem::take(bytes);
    }
    Ok(answer)
}

async fn read_chunked(
    reader: &mut (impl AsyncReadExt + Unpin),
    bytes: &mut Vec<u8>,
) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    loop {
        let line_end = loop {
            if let Some(end) = find(bytes, b"\r\n") {
                break end;
            }
            if more(reader, bytes).await? == 0 {
                return Err("connection closed inside a chunked body".to_owned());
            }
        };
        let size = String::from_utf8_lossy(&bytes[..line_end]).into_owned();
        let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16)
            .map_err(|_| format!("chunk size {size:?}"))?;
        while bytes.len() < line_end + 2 + size + 2 {
            if more(reader, bytes).await? == 0 {
                return Err("connection closed inside a chunk".to_owned());
            }
        }
        body.extend_from_slice(&bytes[line_end + 2..line_end + 2 + size]);
        bytes.drain(..line_end + 2 + size + 2);
        if size == 0 {
            return Ok(body);
        }
    }
}

async fn more(reader: &mut (impl AsyncReadExt + Unpin), bytes: &mut Vec<u8>) -> Result<usize, String> {
    reader.read_buf(bytes).await.map_err(|error| format!("connection lost: {error}"))
}

fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    bytes.windows(wanted.len()).position(|window| window == wanted)
}

fn parse_head(head: &[u8]) -> Result<Received, String> {
    let head = String::from_utf8_lossy(head);
    let mut lines = head.split("\r\n");
    let status_line = lines.next().unwrap_or_default();
    let mut words = status_line.splitn(3, ' ');
    words.next();
    let status = words
        .next()
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| format!("status line {status_line:?}"))?;
    Ok(Received {
        status,
        reason: words.next().unwrap_or_default().to_owned(),
        headers: lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect(),
        body: Vec::new(),
    })
}

/// Sends bytes as they are and reads until the server closes or, with `answers` complete answers there,
/// says nothing for a while. Returns what was read and whether the server closed.
pub async fn send_raw(server: SocketAddr, request: &[u8], answers: usize) -> Result<(Vec<u8>, bool), String> {
    const QUIET: Duration = Duration::from_secs(1);
    const DEADLINE: Duration = Duration::from_secs(60);
    let mut stream = TcpStream::connect(server).await.map_err(|error| format!("cannot connect: {error}"))?;
    stream.write_all(request).await.map_err(|error| format!("cannot send: {error}"))?;
    let mut bytes = Vec::new();
    loop {
        let seen = bytes.windows(7).filter(|window| *window == b"HTTP/1.").count();
        let patience = if seen < answers { DEADLINE } else { QUIET };
        match timeout(patience, stream.read_buf(&mut bytes)).await {
            Err(_) if seen < answers => {
                return Err(format!("{seen} of {answers} answers within {DEADLINE:?}"));
            }
            Err(_) => return Ok((bytes, false)),
            Ok(Ok(0)) => return Ok((bytes, true)),
            Ok(Ok(_)) => {}
            Ok(Err(error)) => return Err(format!("connection lost: {error}")),
        }
    }
}

/// Sends the same request many times on one connection without waiting in between, and reads all the answers.
pub async fn send_many(server: SocketAddr, request: &[u8], count: usize) -> Result<(), String> {
    let stream = TcpStream::connect(server).await.map_err(|error| format!("cannot connect: {error}"))?;
    let (mut reader, mut writer) = stream.into_split();
    let write = async {
        for _ in 0..count {
            writer.write_all(request).await?;
        }
        writer.flush().await
    };
    let read = async {
        let mut bytes = Vec::new();
        for _ in 0..count {
            read_answer(&mut reader, &mut bytes, "POST").await?;
        }
        Ok(())
    };
    let (written, read) = tokio::join!(write, read);
    written.map_err(|error| format!("cannot send: {error}")).and(read)
}
