//! Telling other processes what was committed: soon, but not for each commit.
//!
//! `NOTIFY` takes a lock that all commits of all databases of a server share; so it is sent by itself, at most
//! every few milliseconds, for all that happened since.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use postgres_types::Type;
use remuda_core::{LaneId, TaskId};
use tokio::sync::Notify;
use uuid::Uuid;

use super::fault::Fault;
use super::inner::Inner;
use super::save::Tidings;
use crate::Change;

/// The pause between two notifications.
const PAUSE: Duration = Duration::from_millis(20);
/// More changes than this are not kept while the database is away: who waits for them reads again.
const KEPT: usize = 20_000;
/// PostgreSQL takes payloads below 8,000 bytes.
const PAYLOAD: usize = 7_800;

/// The channel of everything.
pub(super) const CHANNEL: &str = "remuda";

/// What was not told yet.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    waiting: Mutex<Tidings>,
    wake: Notify,
}

impl Outbox {
    /// Adds tidings.
    pub(super) fn add(&self, tidings: Tidings) {
        if tidings.changes.is_empty() && tidings.ready.is_empty() && tidings.news.is_empty() {
            return;
        }
        let mut waiting = self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if waiting.changes.len() < KEPT {
            // How it ended others read for themselves.
            waiting
                .changes
                .extend(tidings.changes.into_iter().map(|change| Change { ended: None, ..change }));
        }
        if waiting.news.len() < KEPT {
            waiting.news.extend(tidings.news);
        }
        waiting.ready.extend(tidings.ready);
        drop(waiting);
        self.wake.notify_one();
    }

    fn take(&self) -> Tidings {
        std::mem::take(&mut self.waiting.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

/// Sends what there is, until the store is closed.
pub(super) async fn run(inner: Arc<Inner>) {
    loop {
        tokio::select! {
            () = inner.stop.cancelled() => break,
            () = inner.outbox.wake.notified() => {}
        }
        send(&inner).await;
        tokio::select! {
            () = inner.stop.cancelled() => break,
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
    send(&inner).await;
}

async fn send(inner: &Inner) {
    let tidings = inner.outbox.take();
    let payloads = encode(inner.process, &tidings);
    if payloads.is_empty() {
        return;
    }
    if let Err(fault) = inner.sessions.bounded(notify(inner, &payloads)).await {
        // Others look for themselves.
        tracing::debug!(?fault, "could not tell other processes of changes");
    }
}

async fn notify(inner: &Inner, payloads: &[String]) -> Result<(), Fault> {
    let session = inner.sessions.unopened().await?;
    let client = session.client()?;
    let params: [super::session::Param<'_>; 1] = [(&payloads, Type::TEXT_ARRAY)];
    // Losing it in a crash of the server loses nothing, so nobody waits for the disk.
    let (begun, sent, done) = tokio::join!(
        biased;
        client.batch_execute("BEGIN; SET LOCAL synchronous_commit = off"),
        client.query_typed(
            "SELECT pg_notify('remuda', payload) FROM unnest($1) AS u(payload)",
            &params,
        ),
        client.batch_execute("COMMIT"),
    );
    begun?;
    sent?;
    done?;
    session.done();
    Ok(())
}

/// One word for each thing: `c` a changed task and its version, `r` a lane with something ready, `n` a lease with
/// news. The first word is the sender.
fn encode(process: Uuid, tidings: &Tidings) -> Vec<String> {
    let changes = tidings.changes.iter().map(|c| format!(" c{}.{:x}", c.task.0.simple(), c.version));
    let ready = tidings.ready.iter().map(|lane| format!(" r{lane}"));
    let news = tidings.news.iter().map(|task| format!(" n{}", task.0.simple()));
    let mut payloads: Vec<String> = Vec::new();
    for word in ready.chain(news).chain(changes) {
        match payloads.last_mut() {
            Some(last) if last.len() + word.len() <= PAYLOAD => last.push_str(&word),
            _ => payloads.push(format!("{}{word}", process.simple())),
        }
    }
    payloads
}

/// The same read back; `None` for what we said ourselves and for what we do not understand.
pub(super) fn decode(process: Uuid, payload: &str) -> Option<Tidings> {
    let mut words = payload.split(' ');
    let sender = Uuid::try_parse(words.next()?).ok()?;
    if sender == process {
        return None;
    }
    let mut tidings = Tidings { changes: Vec::new(), ready: BTreeSet::new(), news: Vec::new() };
    for word in words {
        // A newer Remuda may say more.
        if let Some(lane) = word.strip_prefix('r') {
            tidings.ready.insert(LaneId::from_stored(lane.to_owned()));
        } else if let Some(task) = word.strip_prefix('n') {
            tidings.news.extend(Uuid::try_parse(task).ok().map(TaskId));
        } else if let Some((task, version)) = word.strip_prefix('c').and_then(|word| word.split_once('.'))
            && let (Ok(task), Ok(version)) = (Uuid::try_parse(task), i64::from_str_radix(version, 16))
        {
            tidings.changes.push(Change { task: TaskId(task), version, ended: None });
        }
    }
    Some(tidings)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_understood_by_others_only() {
        let (one, two) = (Uuid::new_v4(), Uuid::new_v4());
        let change = |version| Change { task: TaskId::new(), version, ended: None };
        let changes: Vec<Change> = (1..500).map(change).collect();
        let ready: BTreeSet<LaneId> =
            [LaneId::any(), LaneId::from_stored("0123456789abcdef".to_owned())].into();
        let news = vec![TaskId::new()];
        let payloads =
            encode(one, &Tidings { changes: changes.clone(), ready: ready.clone(), news: news.clone() });
        assert!(payloads.len() > 1 && payloads.iter().all(|payload| payload.len() < 8000));
        let mut heard = Tidings::default();
        for payload in &payloads {
            assert!(decode(one, payload).is_none());
            let part = decode(two, payload).unwrap();
            heard.changes.extend(part.changes);
            heard.ready.extend(part.ready);
            heard.news.extend(part.news);
        }
        assert_eq!((heard.changes, heard.ready, heard.news), (changes, ready, news));
        assert!(decode(two, "hello there").is_none());
    }
}
