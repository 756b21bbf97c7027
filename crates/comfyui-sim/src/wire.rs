//! One TCP connection that can be made to fail.
//!
//! Everything that a connection sends and receives goes through a [`Wire`]. Its [`Control`] outlives the layers
//! above (HTTP, then perhaps a websocket), so that a fault can reset or silence it whatever it carries.

use std::collections::HashMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

/// How a connection is told what to do.
#[derive(Debug, Default)]
pub(crate) struct Control {
    end: CancellationToken,
    reset: AtomicBool,
    silent: AtomicBool,
    spared: AtomicBool,
}

impl Control {
    /// Ends the connection with a TCP reset instead of a proper close.
    pub(crate) fn reset(&self) {
        self.reset.store(true, Ordering::Release);
        self.end.cancel();
    }

    /// Ends the connection with a proper close.
    pub(crate) fn close(&self) {
        self.end.cancel();
    }

    /// From now on the connection swallows what it gets and sends nothing.
    pub(crate) fn silence(&self) {
        self.silent.store(true, Ordering::Release);
    }

    /// Whether the connection survives when all others are ended. It does while it carries a control request,
    /// because the answer to "crash now" has to arrive.
    pub(crate) fn spare(&self, spared: bool) {
        self.spared.store(spared, Ordering::Release);
    }

    /// Resolves when the connection has been told to end.
    pub(crate) async fn ended(&self) {
        self.end.cancelled().await;
    }
}

/// All connections that are open now.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    next: AtomicU64,
    open: Mutex<HashMap<u64, Arc<Control>>>,
}

impl Connections {
    /// Wraps an accepted stream.
    pub(crate) fn register(self: &Arc<Self>, stream: TcpStream) -> (Wire, Arc<Control>) {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let control = Arc::new(Control::default());
        self.open().insert(id, control.clone());
        let wire = Wire { stream, control: control.clone(), connections: self.clone(), id };
        (wire, control)
    }

    /// Resets all connections but the spared ones.
    pub(crate) fn reset_all(&self) {
        self.each_unspared(Control::reset);
    }

    /// Silences all connections but the spared ones.
    pub(crate) fn silence_all(&self) {
        self.each_unspared(Control::silence);
    }

    /// Closes all connections, the spared ones too.
    pub(crate) fn close_all(&self) {
        self.open().values().for_each(|control| control.close());
    }

    fn each_unspared(&self, act: impl Fn(&Control)) {
        for control in self.open().values() {
            if !control.spared.load(Ordering::Acquire) {
                act(control);
            }
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Control>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The stream itself.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    control: Arc<Control>,
    connections: Arc<Connections>,
    id: u64,
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.connections.open().remove(&self.id);
        // Bytes on their way to somebody who was told nothing must not arrive with the close.
        let reset = &self.control.reset;
        if reset.load(Ordering::Acquire)
            && let Err(error) = self.stream.set_zero_linger()
        {
            tracing::debug!(%error, "connection closed instead of reset");
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let silent = |wire: &Self| wire.control.silent.load(Ordering::Acquire);
        if !silent(&self) {
            let before = buf.filled().len();
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
            if !silent(&self) {
                return Poll::Ready(Ok(()));
            }
            buf.set_filled(before);
        }
        // Keeps reading, so that the other side can send as much as it likes into the void.
        let mut void = [0; 4096];
        loop {
            let mut void = ReadBuf::new(&mut void);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut void))?;
            if void.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        if self.control.silent.load(Ordering::Acquire) {
            return Poll::Ready(Ok(data.len()));
        }
        Pin::new(&mut self.stream).poll_write(cx, data)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.control.silent.load(Ordering::Acquire) {
            return Poll::Ready(Ok(slices.iter().map(|slice| slice.len()).sum()));
        }
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.control.silent.load(Ordering::Acquire) {
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
