//! Benchmarks of the client, as ratios within one run. `cargo xtask bench` runs it.
//!
//! The simulator runs in a process of its own, so that neither its memory nor its time is taken for the client's.

#![allow(clippy::print_stdout, reason = "a command-line program")]

mod download;
mod latency;
mod many;
mod server;
mod table;

use table::Row;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, folder] = arguments.as_slice()
        && role == server::ROLE
    {
        return server::run(folder.into()).await;
    }
    let json = arguments.iter().any(|argument| argument == "--json");
    let quick = arguments.iter().any(|argument| argument == "--quick");

    let server = server::Process::start().await?;
    let mut rows: Vec<Row> = Vec::new();
    rows.extend(latency::measure(server.url(), if quick { 100 } else { 1_000 }).await?);
    rows.extend(many::measure(server.url(), if quick { 100 } else { 1_000 }).await?);
    rows.extend(download::measure(&server, if quick { 64 << 20 } else { 1 << 30 }).await?);
    server.stop().await?;

    if json {
        println!("{}", table::json(&rows));
    } else {
        print!("{}", table::text(&rows));
    }
    match rows.iter().filter(|row| row.met == Some(false)).count() {
        0 => Ok(()),
        missed => Err(format!("{missed} targets missed").into()),
    }
}
