//! A step back: the release before works on a file that the present program has brought up to date, and then the present
//! program again.

#![allow(clippy::expect_used, reason = "helpers of tests")]

mod upgrade;

use std::path::Path;

use remuda_core::{Sha256, Task, TaskId};
use remuda_store::{Keyring, SqliteStore, Store as _};
use rusqlite::types::Value;
use rusqlite::{Connection, params};
use upgrade::{
    GRAPH, INFO, Left, OWNER, PROMPT, RESULT, SECRET, SPACE, check, options, plain_extra, prepare,
};

/// The statements of the release before, with schema 2, word for word.
mod former {
    pub(super) const TASK: &str = "INSERT INTO task (id, no, tenant, workflow_id, priority, status, reason, lane, \
        affinity, shape, cost_ms, rank, created_at, run_at, deadline, timeout_s, max_retries, failures, losses, \
        attempt, fence, version, metadata, retry_of, dialect, external_id, client) \
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, ?, ?, ?, ?, ?, ?) \
        ON CONFLICT DO NOTHING";
    pub(super) const INPUT: &str =
        "INSERT INTO input (no, lane, placements, workflow, extra) VALUES (?, ?, ?, ?, ?)";
    pub(super) const UPDATE: &str = "UPDATE task SET status = ?2, reason = ?3, lane = ?4, run_at = ?5, \
        started_at = ?6, finished_at = ?7, failures = ?8, losses = ?9, attempt = ?10, fence = ?11, version = ?12, \
        cancel_at = ?13, worker = ?14, avoid_worker = ?15, avoid_until = ?16, error = ?17 WHERE id = ?1";
    pub(super) const RESULT: &str = "INSERT INTO result (no, result) VALUES (?, ?)";
    pub(super) const EVENT: &str = "INSERT INTO event (no, n, at, kind, data) VALUES (?, ?, ?, ?, ?)";
    pub(super) const COUNT: &str = "INSERT INTO count (tenant, status, n) VALUES (?, ?, ?) \
        ON CONFLICT DO UPDATE SET n = n + excluded.n";
    pub(super) const LEASE: &str = "INSERT INTO lease (no, task, fence, attempt, owner, worker, prompt_id, \
        started_at, until, phase, progress, rendering_since, gateway, wanted) \
        VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    pub(super) const RENEW: &str = "UPDATE lease SET fence = ?2, owner = ?3, until = ?4, phase = ?5, progress = ?6, \
        rendering_since = ?7, gateway = ?8, wanted = ?9 WHERE no = ?1";
    pub(super) const ATTEMPT: &str = "INSERT INTO attempt (no, n, owner, worker, prompt_id, started_at, ended_at, \
        outcome, failure, gpu_ms) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    pub(super) const WORKER: &str = "INSERT INTO worker (id, spec, report, owner, fence, held, until, created_at, \
        last_active_at) VALUES (?, ?, ?, ?, ?, TRUE, ?, ?, ?) ON CONFLICT (id) DO UPDATE SET spec = excluded.spec, \
        report = excluded.report, owner = excluded.owner, fence = excluded.fence, held = TRUE, \
        until = excluded.until, last_active_at = excluded.last_active_at";
    pub(super) const BEAT: &str =
        "UPDATE worker SET report = ?2, until = ?3, last_active_at = ?4 WHERE id = ?1";
    pub(super) const OBJECT_INFO: &str =
        "INSERT INTO object_info (hash, json) VALUES (?, ?) ON CONFLICT DO NOTHING";
    pub(super) const REPLACE: &str = "INSERT INTO document (tenant, space, path, created_at, modified_at, bytes) \
        VALUES (?1, ?2, ?3, ?4, ?4, ?5) ON CONFLICT DO UPDATE \
        SET bytes = excluded.bytes, modified_at = excluded.modified_at \
        RETURNING path, length(bytes), created_at, modified_at";
    pub(super) const KEEP: &str = "INSERT INTO document (tenant, space, path, created_at, modified_at, bytes) \
        VALUES (?1, ?2, ?3, ?4, ?4, ?5) ON CONFLICT DO NOTHING \
        RETURNING path, length(bytes), created_at, modified_at";
    pub(super) const DELETE: &str = "DELETE FROM document WHERE tenant = ? AND space = ? AND path = ?";
}

/// The release before, with the file open.
struct Former {
    raw: Connection,
    lane: String,
    at: i64,
}

impl Former {
    fn open(path: &Path, like: &Task) -> Self {
        let raw = Connection::open(path).expect("it opens");
        let (at, lane) = (like.created_at.as_microsecond(), like.lane.as_str().to_owned());
        Self { raw, lane, at }
    }

    fn count(&self, status: &str, n: i64) {
        self.raw.execute(former::COUNT, params!["default", status, n]).expect("it counts");
    }

    fn submit(&self, no: i64) -> TaskId {
        let (id, nothing) = (TaskId::new(), None::<i64>);
        let row = params![
            id.0.as_bytes(),
            no,
            "default",
            nothing,
            5,
            "pending",
            "queued",
            self.lane,
            nothing,
            0,
            10_000,
            7,
            self.at,
            self.at,
            nothing,
            1800,
            3,
            1,
            nothing,
            nothing,
            "comfyui",
            nothing,
            "c"
        ];
        assert_eq!(self.raw.execute(former::TASK, row).expect("it takes a task in"), 1);
        let row = params![no, self.lane, nothing, GRAPH, plain_extra()];
        self.raw.execute(former::INPUT, row).expect("with its input");
        self.count("pending", 1);
        id
    }

    /// Writes a task as it is from now on.
    fn update(&self, id: TaskId, status: &str, version: i64) {
        let [started, finished, cancelled] =
            [version > 1, version > 2, status == "cancelled"].map(|is| is.then_some(self.at));
        let attempt = i64::from(status != "cancelled");
        let worker = (attempt > 0).then_some("w");
        let started = started.filter(|_| attempt > 0);
        let nothing = None::<i64>;
        let row = params![
            id.0.as_bytes(),
            status,
            nothing,
            self.lane,
            self.at,
            started,
            finished.or(cancelled),
            0,
            0,
            attempt,
            attempt,
            version,
            cancelled,
            worker,
            nothing,
            nothing,
            nothing
        ];
        assert_eq!(self.raw.execute(former::UPDATE, row).expect("it changes the task"), 1);
        self.count(status, 1);
    }

    fn claim(&self, id: TaskId) -> i64 {
        let ask = "SELECT no FROM task WHERE id = ?";
        let no: i64 = self.raw.query_row(ask, [id.0.as_bytes()], |row| row.get(0)).expect("it is there");
        self.update(id, "running", 2);
        self.count("pending", -1);
        self.raw
            .execute(former::EVENT, params![no, 2, self.at, "claimed", "{}"])
            .expect("it writes the event");
        let (owner, nothing) = (OWNER.0.as_bytes(), None::<i64>);
        let row = params![
            no,
            id.0.as_bytes(),
            1,
            1,
            owner,
            "w",
            PROMPT.as_bytes(),
            self.at,
            self.at,
            "placing",
            0.0,
            nothing,
            nothing,
            false
        ];
        self.raw.execute(former::LEASE, row).expect("it leases the task");
        let until = self.at + 60_000_000;
        let row = params![no, 1, owner, until, "rendering", 0.5, self.at, nothing, false];
        assert_eq!(self.raw.execute(former::RENEW, row).expect("it renews the lease"), 1);
        no
    }

    fn end(&self, id: TaskId, no: i64) {
        self.raw.execute("DELETE FROM lease WHERE no = ?", [no]).expect("it ends the lease");
        self.update(id, "completed", 3);
        self.count("running", -1);
        self.raw.execute(former::RESULT, params![no, RESULT]).expect("it writes the result");
        self.raw
            .execute(former::EVENT, params![no, 3, self.at, "completed", "{}"])
            .expect("it writes the event");
        let (owner, nothing) = (OWNER.0.as_bytes(), None::<i64>);
        let prompt = PROMPT.as_bytes();
        let row = params![no, 1, owner, "w", prompt, self.at, self.at, "completed", nothing, nothing];
        self.raw.execute(former::ATTEMPT, row).expect("it writes the attempt");
    }

    fn cancel(&self, id: TaskId) {
        self.update(id, "cancelled", 2);
        self.count("pending", -1);
    }

    /// Drives the worker that the present program had.
    fn drive(&self) {
        let read = "SELECT spec, report, fence FROM worker WHERE id = 'w'";
        let read = self.raw.query_row(read, (), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
        let (spec, report, fence): (Value, Value, i64) = read.expect("it is there");
        let row = params!["w", spec, report, OWNER.0.as_bytes(), fence + 1, self.at, self.at, self.at];
        self.raw.execute(former::WORKER, row).expect("it takes the worker");
        let row = params!["w", report, self.at + 60_000_000, self.at];
        assert_eq!(self.raw.execute(former::BEAT, row).expect("it renews the worker"), 1);
        let hash = Sha256::of(INFO.as_bytes());
        self.raw.execute(former::OBJECT_INFO, params![hash.0, INFO]).expect("it keeps what the worker says");
    }

    fn write_documents(&self) {
        let put = |sql, path, bytes: usize| {
            let mut statement = self.raw.prepare(sql).expect("it is right");
            let mut rows = statement
                .query(params!["default", SPACE, path, self.at, vec![2_u8; bytes]])
                .expect("it writes");
            rows.next().expect("it writes").is_some()
        };
        assert!(put(former::REPLACE, "a", 5), "there is one already");
        assert!(put(former::REPLACE, "b", 1) && put(former::REPLACE, "b", 2));
        assert!(!put(former::KEEP, "b", 9), "it stays");
        assert!(put(former::KEEP, "c", 4));
        self.raw.execute(former::DELETE, params!["default", SPACE, "c"]).expect("it deletes");
    }

    fn secrets(&self) -> i64 {
        self.raw.query_row("SELECT count(*) FROM secret", (), |row| row.get(0)).expect("it counts")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_before_works_on_the_new_schema_and_the_present_one_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let keys = Keyring::generate();
    let store = SqliteStore::open(&path, options(&keys)).await.expect("it opens");
    let (first, second) = prepare(&store).await;
    store.close().await;

    let former = Former::open(&path, &first);
    former.raw.execute("UPDATE errand SET upon = 'ended' WHERE n = 1", ()).expect("it is written");
    assert_eq!(former.secrets(), 2);
    former.drive();
    let (waits, runs) = (former.submit(11), former.submit(12));
    former.claim(runs);
    let no = former.claim(first.id);
    former.end(first.id, no);
    assert_eq!(former.secrets(), 1, "the first went with its task");
    former.cancel(second.id);
    assert_eq!(former.secrets(), 0, "and the second");
    former.write_documents();
    drop(former);

    let store = SqliteStore::open(&path, options(&keys)).await.expect("it opens");
    let left = Left { ended: first.id, cancelled: second.id, waits, runs };
    let raw = Connection::open(&path).expect("it opens");
    let ask = |sql: &str| raw.query_row::<i64, _, _>(sql, (), |row| row.get(0)).expect("it counts");
    check(&store, &left, false, async || ask("SELECT count(*) FROM secret")).await;
    let plain = format!("SELECT count(*) FROM input WHERE instr(extra, '{SECRET}') > 0");
    assert_eq!(ask(&plain), 0, "in plain text");
    store.close().await;
}
