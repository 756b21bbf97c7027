//! That a page of the feed costs what it shows.

use remuda_core::{EventKind, FeedEntry, OwnerId, TaskId};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use super::*;
use crate::{Options, PostgresStore, Store as _, TaskStore as _};

/// How many rows there are …
const ROWS: usize = 20;

/// … and how many entries each of them has.
const ENTRIES: usize = 100;

fn pack() -> FeedPack {
    let mut pack = FeedPack::default();
    for n in 1..=ENTRIES {
        let n = i64::try_from(n).expect("it is small");
        pack.push(FeedEntry { task: TaskId::new(), n, kind: EventKind::Claimed, at: Timestamp::UNIX_EPOCH });
    }
    pack
}

async fn rows(client: &Client, after: FeedPlace, limit: i64, tenant: Option<&str>) -> usize {
    let columns = Columns::default()
        .with(Type::TEXT, after.transaction.to_string())
        .with(Type::INT8, after.row)
        .with(Type::INT8, limit + 1)
        .with(Type::INT4, i32::try_from(FeedPack::ENTRY).expect("it is small"));
    let read = match tenant {
        None => client.query_typed(OF_ALL, &columns.params()).await,
        Some(tenant) => client.query_typed(OF_TENANT, &columns.with(Type::TEXT, tenant).params()).await,
    };
    read.expect("the statement is right").len()
}

#[tokio::test]
async fn a_page_reads_as_many_rows_as_have_its_entries() {
    let url = remuda_testbed::postgres::database().await.expect("a database can be made");
    let store = PostgresStore::connect(&url, Options::new(OwnerId(Uuid::new_v4()))).await.expect("it opens");
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await.expect("connect");
    tokio::spawn(connection);
    let first = store.feed_ends().await.expect("it answers").first;
    for _ in 0..ROWS {
        let insert = "INSERT INTO remuda.feed (tenant, at, entries) VALUES ('default', now(), $1)";
        client.execute(insert, &[&pack().as_bytes()]).await.expect("it is written");
    }
    // Until what others have begun in this server has ended, they are not shown.
    while rows(&client, first, 100_000, None).await < ROWS {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    let limit = i64::try_from(ENTRIES).expect("it is small");
    for (limit, most) in [(1, 1), (limit - 1, 1), (limit, 2), (2 * limit - 1, 2), (5 * limit, 6)] {
        for tenant in [None, Some("default")] {
            assert_eq!(rows(&client, first, limit, tenant).await, most, "rows for {limit} entries");
        }
    }
    let whole = ROWS * ENTRIES;
    for limit in [7, 99, 100, 101, 500] {
        let (mut place, mut count) = (first, 0);
        loop {
            let page = store.feed(None, place, limit).await.expect("it can be read");
            assert!(page.items.is_sorted_by_key(|item| item.place) && page.items.len() <= limit as usize);
            (place, count) = (page.next, count + page.items.len());
            // From within a row as well: one more is read for what is known of it.
            assert!(rows(&client, place, i64::from(limit), None).await <= limit as usize / ENTRIES + 2);
            if !page.more {
                break;
            }
            assert_eq!(page.items.len(), limit as usize, "a full page");
        }
        assert_eq!(count, whole, "in pages of {limit}");
    }
    store.close().await;
}
