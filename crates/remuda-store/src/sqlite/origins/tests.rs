//! That lists and numbers of a dialect read an index and nothing else, however many tasks there are.

use rusqlite::types::Null;

use super::*;

/// What SQLite would do, line by line.
fn plan(db: &Connection, sql: &str) -> Vec<String> {
    let mut statement = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).expect("the statement is right");
    for n in 1..=statement.parameter_count() {
        statement.raw_bind_parameter(n, Null).expect("it is bound");
    }
    let mut rows = statement.raw_query();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().expect("it answers") {
        lines.push(row.get::<_, String>(3).expect("a text"));
    }
    lines
}

/// Whether every table is searched by an index that has all that is asked for, and nothing is sorted.
fn assert_reads_only(db: &Connection, index: &str, sql: &str) {
    let lines = plan(db, sql);
    let searches: Vec<&String> =
        lines.iter().filter(|line| line.starts_with("SEARCH") || line.starts_with("SCAN")).collect();
    let covering = format!("SEARCH task USING COVERING INDEX {index} (");
    assert!(
        !searches.is_empty() && searches.iter().all(|line| line.starts_with(&covering)),
        "{sql}: {lines:#?}"
    );
    assert!(!lines.iter().any(|line| line.contains("TEMP B-TREE")), "{sql}: {lines:#?}");
}

#[test]
fn pages_and_numbers_are_read_from_an_index() {
    let db = Connection::open_in_memory().expect("it opens");
    for sql in [include_str!("../migrations/0001.sql"), include_str!("../migrations/0002.sql")] {
        db.execute_batch(sql).expect("the schema is made");
    }
    let open = [Status::Pending, Status::Running];
    let ended = [Status::Completed, Status::Failed, Status::Cancelled];
    for order in [OriginOrder::OldestFirst, OriginOrder::NewestFirst] {
        for statuses in [&open[..], &ended[..], &Status::ALL[..], &open[..1]] {
            assert_reads_only(&db, "task_origin", &page_sql(order, statuses));
        }
    }
    for order in [OriginOrder::FirstEnded, OriginOrder::LastEnded] {
        for statuses in [&ended[..], &ended[1..2]] {
            assert_reads_only(&db, "task_origin_ended", &page_sql(order, statuses));
        }
    }
    for statuses in [&open[..], &Status::ALL[..], &open[1..]] {
        assert_reads_only(&db, "task_origin", &total_sql(statuses));
    }
    assert_reads_only(&db, "task_origin_open", UNFINISHED);
    assert_reads_only(&db, "task_origin_open", UNFINISHED_OF);
    assert_reads_only(&db, "task_origin_ended", SHOWN);
}
