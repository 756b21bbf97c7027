//! Everything around real processes breaks at random for a while, and nothing may be lost or done twice.
//!
//! The long way is `cargo xtask chaos`; what it found is in `docs/reliability.md`.

#![allow(clippy::print_stderr, clippy::expect_used, reason = "the seed of a failing run must be seen")]

use remuda_chaos::{Options, Scenario};

/// The same every time, so that a failure is the change's and not the day's.
const SEED: u64 = 7;

async fn survives(scenario: Scenario) {
    let options = Options::short(env!("CARGO_BIN_EXE_remuda"), scenario, SEED);
    let report =
        remuda_chaos::run(&options, |news| eprintln!("{news}")).await.expect("the run comes to its end");
    eprintln!("{report}");
    assert!(report.is_clean(), "{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_and_sidecars_over_one_postgresql_lose_and_repeat_nothing() {
    survives(Scenario::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_on_sqlite_and_its_sidecar_lose_and_repeat_nothing() {
    survives(Scenario::Sqlite).await;
}
