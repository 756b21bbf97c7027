//! The worker and the SDK against a real LittleHorse server.
//!
//! `cargo xtask test --littlehorse` fetches the server and runs this. The tests share one, each with a TaskDef of its own,
//! so that nobody gets what another one has left; those in which the server has to fail start their own.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests may fail")]

mod ends;
mod lives;
mod sdk;
mod stage;
#[path = "../support/mod.rs"]
mod support;

use remuda_testbed::littlehorse::LittleHorseServer;
use tokio::sync::OnceCell;

static SHARED: OnceCell<LittleHorseServer> = OnceCell::const_new();

/// The server that is not disturbed. It is started by the first who asks, and goes with the process.
async fn shared() -> &'static LittleHorseServer {
    SHARED.get_or_init(started).await
}

#[allow(clippy::print_stderr, reason = "it is worth knowing how long that takes")]
async fn started() -> LittleHorseServer {
    let server = LittleHorseServer::start().await.unwrap_or_else(|error| panic!("{error}"));
    eprintln!("a LittleHorse server was ready in {:.1} s", server.ready_in().as_secs_f64());
    server
}
