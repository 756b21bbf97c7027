//! Pings, and hanging up on clients that send too many.
//!
//! The HTTP library answers pings without telling us, so the frames are looked at on their way. The real server says GOAWAY
//! with `too_many_pings` before it hangs up; here it just hangs up.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::Instant;

/// What a client says before its first frame.
const PREFACE: usize = 24;
/// Frame types, and the flag of an answered ping.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PING: u8 = 6;
const ANSWERED: u8 = 1;
/// How many early pings are forgiven, until something is sent to the client.
const FORGIVEN: usize = 2;

/// Reads the heads of frames, wherever the bytes are cut.
#[derive(Debug)]
struct Frames {
    skip: usize,
    head: [u8; 9],
    have: usize,
}

impl Frames {
    fn new(skip: usize) -> Self {
        Self { skip, head: [0; 9], have: 0 }
    }

    /// Calls with the type and the flags of every frame that begins here.
    fn feed(&mut self, mut bytes: &[u8], mut begins: impl FnMut(u8, u8)) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (self.head.len() - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == self.head.len() {
                let [a, b, c, kind, flags, ..] = self.head;
                self.skip = usize::from(a) << 16 | usize::from(b) << 8 | usize::from(c);
                self.have = 0;
                begins(kind, flags);
            }
        }
    }
}

/// How often a client may ping.
#[derive(Debug)]
struct Rule {
    least: Duration,
    last: Option<Instant>,
    strikes: usize,
}

impl Rule {
    /// Whether it was one too many.
    fn ping(&mut self, now: Instant) -> bool {
        match self.last.is_some_and(|last| now.saturating_duration_since(last) < self.least) {
            true => self.strikes += 1,
            false => self.last = Some(now),
        }
        self.strikes > FORGIVEN
    }

    /// Something was sent to the client, which may ping to see that it arrives.
    fn forgive(&mut self) {
        self.last = None;
        self.strikes = 0;
    }
}

/// A connection whose pings are counted.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    socket: S,
    said: Frames,
    told: Frames,
    rule: Rule,
    count: Arc<AtomicUsize>,
}

impl<S> Watched<S> {
    pub(crate) fn new(socket: S, least: Duration, count: Arc<AtomicUsize>) -> Self {
        let rule = Rule { least, last: None, strikes: 0 };
        Self { socket, said: Frames::new(PREFACE), told: Frames::new(0), rule, count }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.socket).poll_read(context, buffer);
        let mut too_many = false;
        this.said.feed(&buffer.filled()[before..], |kind, flags| {
            if kind == PING && flags & ANSWERED == 0 {
                this.count.fetch_add(1, Ordering::Relaxed);
                too_many |= this.rule.ping(Instant::now());
            }
        });
        match too_many {
            true => Poll::Ready(Err(io::Error::other("too_many_pings"))),
            false => read,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.socket).poll_write(context, bytes);
        if let Poll::Ready(Ok(count)) = &written {
            this.told.feed(&bytes[..*count], |kind, _| {
                if matches!(kind, DATA | HEADERS) {
                    this.rule.forgive();
                }
            });
        }
        written
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().socket).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_found_wherever_they_are_cut() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for (length, kind, flags) in [(3, DATA, 0), (8, PING, 0), (0, HEADERS, 4), (8, PING, 1)] {
            bytes.extend([0, 0, length, kind, flags, 0, 0, 0, 1]);
            bytes.extend(vec![PING; length.into()]);
        }
        for size in 1..bytes.len() {
            let (mut frames, mut found) = (Frames::new(PREFACE), Vec::new());
            for piece in bytes.chunks(size) {
                frames.feed(piece, |kind, flags| found.push((kind, flags)));
            }
            assert_eq!(found, [(DATA, 0), (PING, 0), (HEADERS, 4), (PING, 1)], "in pieces of {size}");
        }
    }

    #[test]
    fn some_early_pings_are_forgiven() {
        let start = Instant::now();
        let mut rule = Rule { least: Duration::from_secs(15), last: None, strikes: 0 };
        let mut ping = |seconds| rule.ping(start + Duration::from_secs(seconds));
        assert_eq!([ping(0), ping(45), ping(90)], [false; 3]);
        assert_eq!([ping(91), ping(92), ping(93)], [false, false, true]);
        rule.forgive();
        assert!(!rule.ping(start + Duration::from_secs(94)));
    }
}
