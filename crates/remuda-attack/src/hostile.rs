//! A ComfyUI that means harm: a good one behind it answers what is not worth lying about.
//!
//! It works on bytes, not on messages: what it has to say no HTTP library would send.

use anyhow::{Context, Result};
use flate2::Compression;
use flate2::write::GzEncoder;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The longest head of a request.
const LONGEST_HEAD: usize = 64 << 10;
const PIECE: usize = 64 << 10;

/// What it answers.
#[derive(Debug, Clone)]
pub(crate) enum Lie {
    /// A body without end, with this status.
    Endless(u16),
    /// A gzip stream that unpacks without end.
    Gzip,
    /// This body.
    Body(Arc<Vec<u8>>),
    /// This beginning, then filler up to this many bytes, then this end.
    Filled(&'static str, u64, &'static str),
    /// A page.
    Page,
    /// One byte a second, for ever.
    Trickle,
    /// Another address.
    Redirect(String),
    /// Websocket: messages without pause, after the handshake.
    Flood,
    /// Websocket: one message without end.
    LongFrame,
}

/// Lies about paths that begin so.
pub(crate) type Lies = Vec<(&'static str, Lie)>;

/// A running one. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Hostile {
    stop: CancellationToken,
    /// How many lies it has begun.
    pub(crate) told: Arc<AtomicUsize>,
}

impl Hostile {
    /// Listens, and passes on to `good` what it does not lie about.
    pub(crate) async fn start(port: u16, good: &str, lies: Lies) -> Result<Hostile> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.context("cannot play a ComfyUI")?;
        let (stop, told) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let hostile = Hostile { stop: stop.clone(), told: told.clone() };
        let (good, lies) = (good.to_owned(), Arc::new(lies));
        let connections = TaskTracker::new();
        // Ends with the token, and its connections with it.
        tokio::spawn(async move {
            while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
                let Ok((client, _)) = accepted else { continue };
                let (good, lies, told, stop) = (good.clone(), lies.clone(), told.clone(), stop.clone());
                connections.spawn(async move {
                    // Whoever hangs up on a liar is right.
                    let _ = stop.run_until_cancelled(serve(client, &good, &lies, &told)).await;
                });
            }
        });
        Ok(hostile)
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn serve(mut client: TcpStream, good: &str, lies: &Lies, told: &AtomicUsize) -> Result<()> {
    let mut head = Vec::new();
    let mut piece = [0; 4096];
    let end = loop {
        if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            break at + 4;
        }
        let read = client.read(&mut piece).await?;
        anyhow::ensure!(read > 0 && head.len() < LONGEST_HEAD, "no request");
        head.extend_from_slice(&piece[..read]);
    };
    let text = String::from_utf8_lossy(&head[..end]).into_owned();
    let path = text.split(' ').nth(1).unwrap_or_default().to_owned();
    let lie = lies.iter().find(|(prefix, _)| path.starts_with(prefix)).map(|(_, lie)| lie);
    match lie {
        Some(Lie::Flood | Lie::LongFrame) | None => {}
        Some(lie) => {
            told.fetch_add(1, Ordering::Relaxed);
            return tell(&mut client, lie).await;
        }
    }
    let mut server = TcpStream::connect(good).await?;
    let upgrade = text.to_ascii_lowercase().contains("upgrade: websocket");
    // Each request has a connection of its own, so that each is looked at.
    let passed = match upgrade {
        true => text,
        false => {
            let kept = text.lines().filter(|line| !line.to_ascii_lowercase().starts_with("connection:"));
            let kept: Vec<&str> = kept.filter(|line| !line.is_empty()).collect();
            format!("{}\r\nConnection: close\r\n\r\n", kept.join("\r\n"))
        }
    };
    server.write_all(passed.as_bytes()).await?;
    server.write_all(&head[end..]).await?;
    if let Some(lie) = lie
        && upgrade
    {
        told.fetch_add(1, Ordering::Relaxed);
        return flood(&mut client, &mut server, lie).await;
    }
    tokio::io::copy_bidirectional(&mut client, &mut server).await?;
    Ok(())
}

async fn tell(client: &mut TcpStream, lie: &Lie) -> Result<()> {
    let chunked = |status: u16, more: &str| {
        format!(
            "HTTP/1.1 {status} X\r\nContent-Type: application/json\r\n{more}Transfer-Encoding: chunked\r\n\r\n"
        )
    };
    match lie {
        Lie::Endless(status) => {
            client.write_all(chunked(*status, "").as_bytes()).await?;
            write_chunk(client, b"{\"a\":\"").await?;
            let piece = vec![b'x'; PIECE];
            loop {
                write_chunk(client, &piece).await?;
            }
        }
        Lie::Gzip => {
            client.write_all(chunked(200, "Content-Encoding: gzip\r\n").as_bytes()).await?;
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(b"{\"a\":\"")?;
            let piece = vec![b'x'; 1 << 20];
            loop {
                encoder.write_all(&piece)?;
                let packed = std::mem::take(encoder.get_mut());
                if !packed.is_empty() {
                    write_chunk(client, &packed).await?;
                }
                tokio::task::yield_now().await;
            }
        }
        Lie::Body(body) => {
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}\r\n",
                body.len()
            );
            client.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await?;
            client.write_all(body).await?;
        }
        Lie::Filled(before, size, after) => {
            client.write_all(chunked(200, "").as_bytes()).await?;
            write_chunk(client, before.as_bytes()).await?;
            let piece = vec![b'x'; PIECE];
            for _ in 0..size / PIECE as u64 {
                write_chunk(client, &piece).await?;
            }
            write_chunk(client, after.as_bytes()).await?;
            client.write_all(b"0\r\n\r\n").await?;
        }
        Lie::Page => {
            let page = "<!doctype html><script>alert(1)</script>";
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: {}\r\n", page.len());
            client.write_all(format!("{head}Connection: close\r\n\r\n{page}").as_bytes()).await?;
        }
        Lie::Trickle => {
            client.write_all(chunked(200, "").as_bytes()).await?;
            loop {
                write_chunk(client, b" ").await?;
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        }
        Lie::Redirect(to) => {
            let head = format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n");
            client.write_all(format!("{head}Connection: close\r\n\r\n").as_bytes()).await?;
        }
        Lie::Flood | Lie::LongFrame => {}
    }
    client.shutdown().await?;
    Ok(())
}

async fn write_chunk(client: &mut TcpStream, bytes: &[u8]) -> Result<()> {
    client.write_all(format!("{:x}\r\n", bytes.len()).as_bytes()).await?;
    client.write_all(bytes).await?;
    client.write_all(b"\r\n").await?;
    Ok(())
}

/// Lets the good one shake hands, and then speaks itself.
async fn flood(client: &mut TcpStream, server: &mut TcpStream, lie: &Lie) -> Result<()> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        anyhow::ensure!(server.read(&mut byte).await? > 0, "no handshake");
        head.push(byte[0]);
    }
    client.write_all(&head).await?;
    if let Lie::LongFrame = lie {
        // A text message that says it has 2^40 bytes.
        client.write_all(&[0x81, 127, 0, 0, 1, 0, 0, 0, 0, 0]).await?;
        let piece = vec![b'x'; PIECE];
        loop {
            client.write_all(&piece).await?;
        }
    }
    let mut burst = Vec::new();
    for n in 0..500 {
        let text = match n % 3 {
            0 => r#"{"type":"status","data":{"status":{"exec_info":{"queue_remaining":1}}}}"#.to_owned(),
            1 => format!(
                r#"{{"type":"progress","data":{{"value":{n},"max":500,"prompt_id":"x","node":"{n}"}}}}"#
            ),
            _ => format!(r#"{{"type":"executing","data":{{"node":"{}","prompt_id":"x"}}}}"#, "y".repeat(n)),
        };
        frame(&mut burst, 0x81, text.as_bytes());
        frame(&mut burst, 0x82, &[0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0xd8]);
        frame(&mut burst, 0x89, b"ping");
    }
    loop {
        client.write_all(&burst).await?;
    }
}

fn frame(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    out.push(kind);
    match u8::try_from(payload.len()) {
        Ok(length) if length < 126 => out.push(length),
        _ => {
            out.push(126);
            out.extend_from_slice(&u16::try_from(payload.len()).unwrap_or(u16::MAX).to_be_bytes());
        }
    }
    out.extend_from_slice(payload);
}
