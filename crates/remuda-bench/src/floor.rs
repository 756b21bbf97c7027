//! What messages between two processes cost on this machine, whoever sends them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use remuda_testbed::process::Program;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::table::Sample;

const NOTHING: [(&str, &str); 0] = [];
/// About what a small request has.
const MESSAGE: usize = 300;
const WARM_UP: usize = 20;
const STARTED: Duration = Duration::from_secs(30);

/// Sends back whatever comes, until nothing comes any more: the other process.
pub(crate) fn echo(port: u16) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    stream.set_nodelay(true)?;
    let mut message = [0; MESSAGE];
    while stream.read_exact(&mut message).is_ok() {
        stream.write_all(&message)?;
    }
    Ok(())
}

/// How long this many messages to a process that does nothing else, and their answers, take one after the other, each
/// time after a rest. In milliseconds.
pub(crate) async fn round_trips(count: usize, rest: Duration, rounds: usize) -> Result<Sample> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port().to_string();
    let _other = Program::start(std::env::current_exe()?, ["--echo", &port], NOTHING)?;
    let accepted = tokio::time::timeout(STARTED, listener.accept()).await;
    let (mut stream, _) = accepted.context("the other process does not come")??;
    stream.set_nodelay(true)?;
    let mut message = [0; MESSAGE];
    let mut times = Vec::new();
    for round in 0..rounds + WARM_UP {
        if !rest.is_zero() {
            tokio::time::sleep(rest).await;
        }
        let begun = Instant::now();
        for _ in 0..count {
            stream.write_all(&message).await?;
            stream.read_exact(&mut message).await?;
        }
        if round >= WARM_UP {
            times.push(begun.elapsed().as_secs_f64() * 1e3);
        }
    }
    Ok(Sample::new(times))
}
