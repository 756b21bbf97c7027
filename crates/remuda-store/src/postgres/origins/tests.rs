//! That lists and numbers of a dialect are read from an index, however many tasks there are.

use remuda_core::OwnerId;
use tokio_postgres::{Client, NoTls};

use super::*;
use crate::postgres::session::PLANS;
use crate::{Options, PostgresStore, Store as _};

/// 20,000 tasks of one tenant that came through the dialect, and twice as many of the same tenant that did not.
const MANY: &str = "INSERT INTO remuda.task (id, tenant, priority, status, reason, lane, shape, cost_ms, rank, created_at, \
    run_at, finished_at, timeout_s, max_retries, failures, losses, attempt, fence, version, dialect, client) \
    SELECT gen_random_uuid(), 'default', 5, s.status, CASE WHEN s.status = 'pending' THEN 'queued' END, '', 0, 1, g, \
    now(), now(), CASE WHEN s.status IN ('completed', 'failed') THEN now() + g * interval '1 second' END, 1800, 3, 0, \
    0, 0, 0, 1, CASE WHEN g % 3 = 0 THEN 'comfyui' END, CASE WHEN g % 3 = 0 THEN 'client ' || g % 10 END \
    FROM generate_series(1, 60000) g \
    CROSS JOIN LATERAL (SELECT (ARRAY['pending', 'completed', 'completed', 'failed'])[1 + g % 4] AS status) s";

async fn plan(client: &Client, statement: &str, columns: Columns<'_>) -> String {
    client.batch_execute(&format!("BEGIN; {PLANS}; {RANGES}")).await.expect("it begins");
    let statement = format!("EXPLAIN {statement}");
    let rows = client.query_typed(&statement, &columns.params()).await.expect("the statement is right");
    client.batch_execute("ROLLBACK").await.expect("it ends");
    let lines: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    lines.join("\n")
}

fn listed(client: Option<&'static str>) -> Columns<'static> {
    Columns::default()
        .with(Type::TEXT, "default")
        .with(Type::TEXT, "comfyui")
        .with(Type::TEXT_ARRAY, vec!["pending", "running", "completed", "failed", "cancelled"])
        .with(Type::TEXT, client)
        .with(Type::TEXT, None::<&str>)
}

/// Whether it finds its rows by this index. Whether it has to look at them depends on how long ago the server tidied up.
fn counts_by(plan: &str, index: &str) -> bool {
    plan.contains(&format!(" using {index} on task i "))
        || plan.contains(&format!("Bitmap Index Scan on {index} "))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_and_numbers_are_read_from_an_index() {
    let url = remuda_testbed::postgres::database().await.expect("a database can be made");
    let options = Options::new(OwnerId(Uuid::new_v4()));
    PostgresStore::connect(&url, options).await.expect("it opens").close().await;
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
    let connection = tokio::spawn(connection);
    client.batch_execute(MANY).await.expect("there are many");
    client.batch_execute("VACUUM ANALYZE remuda.task").await.expect("the server knows of them");

    for of in [None, Some("client 3")] {
        for (statement, index, order) in [
            (OLDEST_FIRST, "task_origin", ""),
            (NEWEST_FIRST, "task_origin", "Backward "),
            (FIRST_ENDED, "task_origin_ended", ""),
            (LAST_ENDED, "task_origin_ended", "Backward "),
        ] {
            let page =
                listed(of).with(Type::INT8, 600_i64).with(Type::INT8, 100_i64).with(Type::INT8, 500_i64);
            let plan = plan(&client, statement, page).await;
            // Each range comes in order and ends early; only the page is looked up.
            let range = format!("Scan {order}using {index} on task i ");
            assert!(plan.contains(&range) && plan.contains("using task_pkey on task t "), "{plan}");
            assert_eq!(plan.matches("on task").count(), 2, "{plan}");
        }
        let plan = plan(&client, TOTAL, listed(of)).await;
        assert!(counts_by(&plan, "task_origin"), "{plan}");
    }
    for of in [None, Some("client 3")] {
        let columns =
            Columns::default().with(Type::TEXT, "default").with(Type::TEXT, "comfyui").with(Type::TEXT, of);
        let plan = plan(&client, UNFINISHED, columns).await;
        assert!(counts_by(&plan, "task_origin_open"), "{plan}");
    }
    let some =
        Columns::default().with(Type::TEXT, "default").with(Type::TEXT, "comfyui").with(Type::INT8, 500_i64);
    let plan = plan(&client, SHOWN, some).await;
    assert!(counts_by(&plan, "task_origin_ended"), "{plan}");
    drop(client);
    connection.await.expect("it is closed").expect("and ends well");
}
