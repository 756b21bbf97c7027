//! Memory of this process while a large output is fetched.

use std::time::Instant;

use comfyui::{Client, FileRef};

use crate::Failure;
use crate::server::Process;
use crate::table::Row;

pub(crate) async fn measure(server: &Process, bytes: u64) -> Result<Vec<Row>, Failure> {
    let name = "large.mp4";
    let path = server.folder().join("output").join(name);
    // A hole of the wanted size: the server reads zeros, and the disk is not filled.
    std::fs::File::create(&path)?.set_len(bytes)?;
    let client = Client::new(server.url())?;
    let file = FileRef::output(name);
    // Once, small, so that buffers that stay are there already.
    let range = comfyui::ByteRange { start: 0, end: Some(1 << 20) };
    client.view_range(&file, range).await?.write_to(&mut tokio::io::sink()).await?;

    let before = resident_mib()?;
    let mut most = before;
    let begun = Instant::now();
    let mut download = client.view(&file).await?;
    let mut received = 0u64;
    let mut looked = 0u64;
    while let Some(chunk) = download.chunk().await? {
        received += chunk.len() as u64;
        if received - looked > 16 << 20 {
            looked = received;
            most = most.max(resident_mib()?);
        }
    }
    if received != bytes {
        return Err(format!("{received} bytes came of {bytes}").into());
    }
    let seconds = begun.elapsed().as_secs_f64();
    let grown = most - before;
    Ok(vec![
        Row::fact("size of the streamed output", bytes as f64 / 1048576.0, "MiB"),
        Row::goal("memory grown while it is streamed", grown, "MiB", "at most 8 MiB (flat)", grown <= 8.0),
        Row::fact("speed", bytes as f64 / 1048576.0 / seconds, "MiB/s"),
    ])
}

/// Memory of this process that is in use now, by the kernel's count.
fn resident_mib() -> Result<f64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).ok_or("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).ok_or("no number")?.parse()?;
    Ok(kib / 1024.0)
}
