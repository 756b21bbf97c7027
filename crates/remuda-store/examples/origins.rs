//! How long lists and numbers of a dialect take when one tenant has many tasks: half of them wait, half have ended.
//!
//! ```console
//! $ cargo run --release -p remuda-store --example origins
//! $ cargo run --release -p remuda-store --example origins -- 200000 postgres://postgres@127.0.0.1/empty
//! ```

#![allow(clippy::print_stdout, reason = "a program for the terminal")]

use std::error::Error;
use std::sync::Arc;
use std::time::Instant;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use remuda_core::{Dialect, NewTask, Origin, OwnerId, Status, TaskId, Tenant};
use remuda_store::{Hide, Options, OriginOrder, OriginQuery, PostgresStore, SqliteStore, Store};
use serde_json::value::RawValue;
use uuid::Uuid;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How many calls at once while the store is filled.
const CALLERS: usize = 256;

/// Of this many calls the middle one is printed.
const ROUNDS: usize = 21;

fn new_task(n: usize) -> Result<NewTask> {
    let origin =
        Origin { dialect: Dialect::COMFYUI, external_id: None, client: Some(format!("client {}", n % 4)) };
    Ok(NewTask { origin: Some(origin), ..NewTask::new(RawValue::from_string("{}".to_owned())?) })
}

async fn fill(store: &dyn Store, count: usize) -> Result<()> {
    let ids: Vec<TaskId> =
        stream::iter(0..count)
            .map(|n| async move {
                Ok::<_, Box<dyn Error + Send + Sync>>(store.submit(new_task(n)?).await?.task().id)
            })
            .buffer_unordered(CALLERS)
            .try_collect()
            .await?;
    let ended = stream::iter(&ids[..count / 2]).map(|id| store.cancel(*id)).buffer_unordered(CALLERS);
    ended.try_for_each(async |_| Ok(())).await?;
    Ok(())
}

async fn measure<T>(what: &str, call: impl AsyncFn() -> remuda_store::Result<T>) -> Result<()> {
    let mut times = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        call().await?;
        times.push(began.elapsed());
    }
    times.sort();
    println!("{what:<46} {:>8.2} ms", times[ROUNDS / 2].as_secs_f64() * 1000.0);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    let mut words = std::env::args().skip(1);
    let count: usize = words.next().map_or(Ok(200_000), |word| word.parse())?;
    let folder = tempfile::tempdir()?;
    let options = Options::new(OwnerId(Uuid::new_v4()));
    let store: Arc<dyn Store> = match words.next() {
        Some(url) => Arc::new(PostgresStore::connect(&url, options).await?),
        None => Arc::new(SqliteStore::open(&folder.path().join("remuda.db"), options).await?),
    };
    let began = Instant::now();
    fill(&*store, count).await?;
    println!("{count} tasks, filled in {:.1} s", began.elapsed().as_secs_f64());

    let open = vec![Status::Pending, Status::Running];
    let ended = vec![Status::Completed, Status::Failed, Status::Cancelled];
    let query = |statuses: &[Status], order, offset, limit| OriginQuery {
        tenant: Tenant::default_tenant(),
        dialect: Dialect::COMFYUI,
        client: None,
        statuses: statuses.to_vec(),
        workflow_id: None,
        order,
        offset,
        limit,
    };
    let far = u32::try_from(count / 2)?.saturating_sub(100);
    for (what, query) in [
        ("the first 100 that wait, and how many do", query(&open, OriginOrder::OldestFirst, 0, 100)),
        ("the last 100 that ended, and how many did", query(&ended, OriginOrder::LastEnded, 0, 100)),
        ("the first 100 that ended, from the far end", query(&ended, OriginOrder::LastEnded, far, 100)),
        ("the newest 100 of all states, and how many", query(&Status::ALL, OriginOrder::NewestFirst, 0, 100)),
        ("only how many wait", query(&open, OriginOrder::OldestFirst, 0, 0)),
    ] {
        measure(what, async || store.list_origin(&query).await).await?;
    }
    let tenant = Tenant::default_tenant();
    for (what, client) in [("how many are unfinished", None), ("… of one of four clients", Some("client 1"))]
    {
        measure(what, async || store.unfinished(&tenant, Dialect::COMFYUI, client).await).await?;
    }
    let began = Instant::now();
    let hidden = store.hide(&tenant, Dialect::COMFYUI, &Hide::Ended).await?;
    println!("hid {hidden} in {:.2} s", began.elapsed().as_secs_f64());
    store.close().await;
    Ok(())
}
