//! A step back: the release before works on a database that the present program has brought up to date, and then the
//! present program again.

#![allow(clippy::expect_used, reason = "helpers of tests")]

#[path = "upgrade/call.rs"]
mod call;
mod upgrade;

use call::call;
use postgres_types::Type;
use remuda_core::{Sha256, Task, TaskId};
use remuda_store::{Keyring, PostgresStore, Store as _};
use tokio_postgres::{Client, NoTls};
use upgrade::{
    GRAPH, INFO, Left, OWNER, PROMPT, RESULT, SECRET, SPACE, check, options, plain_extra, prepare,
};

/// The statements of the release before, with schema 2, word for word, besides `remuda.save_2`.
mod former {
    pub(super) const RENEW: &str = "WITH u AS (SELECT * FROM unnest($1, $2, $3, $4) \
        AS u(task, fence, phase, progress)), \
        mine AS (SELECT l.task FROM remuda.lease l JOIN u ON u.task = l.task AND u.fence = l.fence ORDER BY l.task \
        FOR UPDATE OF l) \
        UPDATE remuda.lease AS l SET until = coalesce($5, now()) + $6 * interval '1 microsecond', phase = u.phase, \
        progress = u.progress, \
        rendering_since = CASE WHEN u.phase = 'rendering' THEN coalesce(l.rendering_since, $5, now()) \
        ELSE l.rendering_since END, wanted = l.wanted AND u.phase NOT IN ('rendering', 'collecting') \
        FROM u JOIN mine ON mine.task = u.task WHERE l.task = u.task AND l.fence = u.fence \
        RETURNING l.task, l.fence, l.wanted, \
        (SELECT t.cancel_at IS NOT NULL FROM remuda.task t WHERE t.id = l.task)";
    pub(super) const TAKE_WORKER: &str = "UPDATE remuda.worker SET endpoint = $2, name = $3, labels = $4, report = $5, owner = $6, \
        fence = $7, until = $8, created_at = $9, last_active_at = $10, held = true WHERE id = $1";
    pub(super) const OBJECT_INFO: &str = "INSERT INTO remuda.object_info (hash, content, saved_at) \
        VALUES ($1, $2, now()) ON CONFLICT (hash) DO NOTHING";
    pub(super) const DELETE: &str =
        "DELETE FROM remuda.document WHERE tenant = $1 AND space = $2 AND path = $3 RETURNING path";

    pub(super) fn put(replace: bool) -> String {
        let otherwise = if replace {
            "UPDATE SET bytes = excluded.bytes, modified_at = excluded.modified_at"
        } else {
            "NOTHING"
        };
        format!(
            "INSERT INTO remuda.document (tenant, space, path, bytes, created_at, modified_at) \
             VALUES ($1, $2, $3, $4, coalesce($5, now()), coalesce($5, now())) \
             ON CONFLICT (tenant, space, path) DO {otherwise} \
             RETURNING path, octet_length(bytes), created_at, modified_at"
        )
    }
}

/// The release before, with its connection.
struct Former {
    client: Client,
    lane: String,
}

fn one(value: &str) -> String {
    format!("ARRAY['{value}']")
}

/// Changes of the counters: waiting, running, completed, cancelled.
fn counts([pending, running, completed, cancelled]: [i64; 4]) -> [(&'static str, String); 6] {
    [
        ("count_tenant", one("default")),
        ("count_pending", format!("ARRAY[{pending}]")),
        ("count_running", format!("ARRAY[{running}]")),
        ("count_completed", format!("ARRAY[{completed}]")),
        ("count_failed", "ARRAY[0]".to_owned()),
        ("count_cancelled", format!("ARRAY[{cancelled}]")),
    ]
}

impl Former {
    async fn connect(url: &str, like: &Task) -> Self {
        let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("it connects");
        tokio::spawn(connection);
        Self { client, lane: like.lane.as_str().to_owned() }
    }

    async fn save(&self, given: &[(&str, String)]) {
        call(&self.client, "remuda.save_2", 76, given).await;
    }

    async fn submit(&self) -> TaskId {
        let id = TaskId::new();
        let mut given = vec![
            ("new_id", one(&id.to_string())),
            ("new_tenant", one("default")),
            ("new_priority", "ARRAY[5]".to_owned()),
            ("new_status", one("pending")),
            ("new_reason", one("queued")),
            ("new_lane", one(&self.lane)),
            ("new_shape", "ARRAY[0]".to_owned()),
            ("new_cost_ms", "ARRAY[10000]".to_owned()),
            ("new_rank", "ARRAY[1]".to_owned()),
            ("new_created_at", "ARRAY[now()]".to_owned()),
            ("new_run_at", "ARRAY[now()]".to_owned()),
            ("new_timeout_s", "ARRAY[1800]".to_owned()),
            ("new_max_retries", "ARRAY[3]".to_owned()),
            ("new_attempt", "ARRAY[0]".to_owned()),
            ("new_fence", "ARRAY[0]".to_owned()),
            ("new_version", "ARRAY[1]".to_owned()),
            ("new_dialect", one("comfyui")),
            ("new_client", one("c")),
            ("input_workflow", one(GRAPH)),
            ("input_placements", one("[]")),
            ("input_requires", one("{}")),
            ("input_extra", one(&plain_extra())),
        ];
        given.extend(counts([1, 0, 0, 0]));
        self.save(&given).await;
        id
    }

    /// A task as it is from now on.
    fn now(&self, id: TaskId, status: &str, attempt: u8, version: u8) -> Vec<(&'static str, String)> {
        vec![
            ("now_id", one(&id.to_string())),
            ("now_status", one(status)),
            ("now_lane", one(&self.lane)),
            ("now_run_at", "ARRAY[now()]".to_owned()),
            ("now_failures", "ARRAY[0]".to_owned()),
            ("now_losses", "ARRAY[0]".to_owned()),
            ("now_attempt", format!("ARRAY[{attempt}]")),
            ("now_fence", format!("ARRAY[{attempt}]")),
            ("now_version", format!("ARRAY[{version}]")),
            ("event_task", one(&id.to_string())),
            ("event_n", format!("ARRAY[{version}]")),
            ("event_at", "ARRAY[now()]".to_owned()),
            ("event_kind", one(if status == "running" { "claimed" } else { status })),
            ("event_data", one("{}")),
        ]
    }

    async fn claim(&self, id: TaskId) {
        let mut given = self.now(id, "running", 1, 2);
        given.extend([
            ("now_started_at", "ARRAY[now()]".to_owned()),
            ("now_worker", one("w")),
            ("read_task", one(&id.to_string())),
            ("lease_task", one(&id.to_string())),
            ("lease_fence", "ARRAY[1]".to_owned()),
            ("lease_attempt", "ARRAY[1]".to_owned()),
            ("lease_owner", one(&OWNER.to_string())),
            ("lease_worker", one("w")),
            ("lease_prompt_id", one(&PROMPT.to_string())),
            ("lease_until", "ARRAY[now()]".to_owned()),
            ("lease_phase", one("placing")),
            ("lease_started_at", "ARRAY[now()]".to_owned()),
        ]);
        given.extend(counts([-1, 1, 0, 0]));
        self.save(&given).await;
        let renewed = self
            .client
            .query_typed(
                former::RENEW,
                &[
                    (&vec![id.0], Type::UUID_ARRAY),
                    (&vec![1_i64], Type::INT8_ARRAY),
                    (&vec!["rendering"], Type::TEXT_ARRAY),
                    (&vec![0.5_f64], Type::FLOAT8_ARRAY),
                    (&None::<std::time::SystemTime>, Type::TIMESTAMPTZ),
                    (&60_000_000_i64, Type::INT8),
                ],
            )
            .await
            .expect("it renews the lease");
        assert_eq!(renewed.len(), 1);
    }

    async fn end(&self, id: TaskId) {
        let mut given = self.now(id, "completed", 1, 3);
        given.extend([
            ("now_started_at", "ARRAY[now()]".to_owned()),
            ("now_finished_at", "ARRAY[now()]".to_owned()),
            ("now_worker", one("w")),
            ("now_result", one(RESULT)),
            ("over_task", one(&id.to_string())),
            ("over_ended_at", "ARRAY[now()]".to_owned()),
            ("over_outcome", one("completed")),
        ]);
        given.extend(counts([0, -1, 1, 0]));
        self.save(&given).await;
    }

    async fn cancel(&self, id: TaskId) {
        let mut given = self.now(id, "cancelled", 0, 2);
        given.extend([
            ("now_finished_at", "ARRAY[now()]".to_owned()),
            ("now_cancel_at", "ARRAY[now()]".to_owned()),
        ]);
        given.extend(counts([-1, 0, 0, 1]));
        self.save(&given).await;
    }

    /// Drives the worker that the present program had.
    async fn drive(&self) {
        let read = "SELECT id, endpoint, name, labels, report::text, owner, fence, until, created_at, \
            last_active_at FROM remuda.worker WHERE id = 'w'";
        let row = self.client.query_one(read, &[]).await.expect("it is there");
        let (report, fence): (String, i64) = (row.get(4), row.get(6));
        let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
        let moment = |i| row.get::<_, std::time::SystemTime>(i);
        let until = moment(7) + std::time::Duration::from_secs(60);
        let labels: Vec<String> = row.get(3);
        let taken = self
            .client
            .execute(
                former::TAKE_WORKER,
                &[
                    &"w",
                    &row.get::<_, String>(1),
                    &row.get::<_, Option<String>>(2),
                    &labels,
                    &postgres_types::Json(report),
                    &OWNER.0,
                    &(fence + 1),
                    &until,
                    &moment(8),
                    &moment(9),
                ],
            )
            .await;
        assert_eq!(taken.expect("it takes the worker"), 1);
        let hash = Sha256::of(INFO.as_bytes());
        let kept = self.client.execute(former::OBJECT_INFO, &[&&hash.0[..], &INFO]).await;
        assert_eq!(kept.expect("it keeps what the worker says"), 1);
    }

    async fn put(&self, path: &str, bytes: usize, replace: bool) -> bool {
        let now = None::<std::time::SystemTime>;
        let bytes = vec![2_u8; bytes];
        let rows = self.client.query(&former::put(replace), &[&"default", &SPACE, &path, &bytes, &now]).await;
        !rows.expect("it writes").is_empty()
    }

    async fn write_documents(&self) {
        assert!(self.put("a", 5, true).await, "there is one already");
        assert!(self.put("b", 1, true).await && self.put("b", 2, true).await);
        assert!(!self.put("b", 9, false).await, "it stays");
        assert!(self.put("c", 4, false).await);
        let gone = self.client.query(former::DELETE, &[&"default", &SPACE, &"c"]).await;
        assert_eq!(gone.expect("it deletes").len(), 1);
    }

    async fn ask(&self, sql: &str) -> i64 {
        self.client.query_one(sql, &[]).await.expect("it counts").get(0)
    }

    async fn secrets(&self) -> i64 {
        self.ask("SELECT count(*) FROM remuda.secret").await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_release_before_works_on_the_new_schema_and_the_present_one_goes_on() {
    let url = remuda_testbed::postgres::database().await.expect("a database");
    let keys = Keyring::generate();
    let store = PostgresStore::connect(&url, options(&keys)).await.expect("it opens");
    let (first, second) = prepare(&store).await;
    store.close().await;

    let former = Former::connect(&url, &first).await;
    let any_end = former.client.batch_execute("UPDATE remuda.errand SET upon = 'ended' WHERE n = 1").await;
    any_end.expect("it is written");
    assert_eq!(former.secrets().await, 2);
    former.drive().await;
    let (waits, runs) = (former.submit().await, former.submit().await);
    former.claim(runs).await;
    former.claim(first.id).await;
    former.end(first.id).await;
    assert_eq!(former.secrets().await, 1, "the first went with its task");
    former.cancel(second.id).await;
    assert_eq!(former.secrets().await, 0, "and the second");
    former.write_documents().await;

    let store = PostgresStore::connect(&url, options(&keys)).await.expect("it opens");
    let left = Left { ended: first.id, cancelled: second.id, waits, runs };
    check(&store, &left, true, async || former.secrets().await).await;
    let plain = format!("SELECT count(*) FROM remuda.task_input WHERE strpos(extra, '{SECRET}') > 0");
    assert_eq!(former.ask(&plain).await, 2, "those that had not ended when it started");
    store.close().await;
    let store = PostgresStore::connect(&url, options(&keys)).await.expect("it opens");
    assert_eq!(former.ask(&plain).await, 0, "in plain text");
    store.close().await;
}
