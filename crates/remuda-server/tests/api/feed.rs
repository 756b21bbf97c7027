//! `GET /api/v1/events`: what happens to all tasks.

use std::time::Duration;

use futures_util::StreamExt as _;
use remuda_core::{FailureClass, NewTask, Scope, TaskId, Tenant};
use remuda_server::janitor::{Janitor, JanitorOptions};
use remuda_store::{FeedItem, Store};
use serde_json::Value;

use crate::events::{Event, Reader};
use crate::support::{BOUND, GRAPH, Gateway, Ground, JsonText as _, json};

const PATH: &str = "/api/v1/events";

/// What the store has, as it is sent.
async fn kept(store: &dyn Store, tenant: Option<&str>) -> Vec<(String, Value)> {
    let tenant = tenant.map(|tenant| Tenant::new(tenant).unwrap());
    let mut place = store.feed_ends().await.unwrap().first;
    let mut all = Vec::new();
    loop {
        let page = store.feed(tenant.as_ref(), place, 100).await.unwrap();
        place = page.next;
        all.extend(page.items.iter().map(sent));
        if !page.more {
            return all;
        }
    }
}

fn sent(item: &FeedItem) -> (String, Value) {
    let FeedItem { place, tenant, entry } = item;
    let data = serde_json::json!({
        "task": entry.task, "tenant": tenant, "n": entry.n, "kind": entry.kind, "status": entry.kind.status(),
        "at": entry.at,
    });
    (place.to_string(), data)
}

fn known((id, name, data): Event) -> (String, Value) {
    assert_eq!(name, "state");
    (id.unwrap(), data)
}

async fn next(reader: &mut Reader) -> (String, Value) {
    known(reader.next().await.expect("an event"))
}

async fn some(reader: &mut Reader, count: usize) -> Vec<(String, Value)> {
    let mut events = Vec::new();
    while events.len() < count {
        events.push(next(reader).await);
    }
    events
}

async fn open(gateway: &Gateway, query: &str) -> Reader {
    Reader::new(gateway.get(&format!("{PATH}{query}")).send().await.unwrap())
}

#[tokio::test]
async fn everything_comes_once_in_its_order_and_goes_on_from_any_event_at_any_server() {
    let ground = Ground::new().await;
    let here = Gateway::on(ground.clone(), |_| {}).await;
    let there = Gateway::on(ground.clone(), |_| {}).await;
    let mut live = open(&here, "").await;
    let (first, second) = (here.submit().await, there.submit().await);
    let worker = here.worker().await;
    let claim = worker.claim().await;
    worker.complete(&claim, b"x").await;
    let claim = worker.claim().await;
    worker.fail(&claim, FailureClass::Validation, "no").await;

    let all = kept(&**here.store(), None).await;
    let of = |id: &str| {
        let own = all.iter().filter(|(_, data)| data["task"] == id);
        own.map(|(_, data)| (data["n"].as_i64().unwrap(), data["kind"].as_str().unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(of(&first), [(1, "submitted"), (2, "claimed"), (3, "completed")]);
    assert_eq!(of(&second), [(1, "submitted"), (2, "claimed"), (3, "failed")]);
    assert_eq!(some(&mut live, all.len()).await, all);
    assert_eq!(some(&mut open(&there, "?after=first").await, all.len()).await, all);

    let late = here.submit().await;
    let all = kept(&**here.store(), None).await;
    assert_eq!(next(&mut live).await.1["task"], late.as_str());
    for (at, (id, _)) in all[..all.len() - 1].iter().enumerate() {
        let gateway = if at % 2 == 0 { &here } else { &there };
        // What a browser says when it comes back goes before what the address says.
        let answer =
            gateway.get(&format!("{PATH}?after=first")).header("Last-Event-ID", id).send().await.unwrap();
        assert_eq!(some(&mut Reader::new(answer), all.len() - at - 1).await, all[at + 1..]);
        let mut reader = open(gateway, &format!("?after={id}")).await;
        assert_eq!(some(&mut reader, all.len() - at - 1).await, all[at + 1..]);
    }
}

#[tokio::test]
async fn a_reader_knows_its_place_before_anything_happens() {
    let gateway = Gateway::start().await;
    gateway.submit().await;
    let first = async || {
        let mut pieces = gateway.get(PATH).send().await.unwrap().bytes_stream();
        let text = String::from_utf8(pieces.next().await.unwrap().unwrap().to_vec()).unwrap();
        text.lines().find_map(|line| line.strip_prefix("id: ")).expect("a place").to_owned()
    };
    let place = first().await;
    let id = gateway.submit().await;
    let answer = gateway.get(PATH).header("Last-Event-ID", &place).send().await.unwrap();
    assert_eq!(next(&mut Reader::new(answer)).await.1["task"], id.as_str());
    assert_ne!(first().await, place, "who says nothing begins with what comes");
}

#[tokio::test]
async fn a_reader_far_behind_gets_everything_and_what_happens_meanwhile() {
    let gateway = Gateway::start().await;
    let mut slow = open(&gateway, "").await;
    // More than is kept in memory.
    let submit = |_| gateway.store().submit(NewTask::new(serde_json::from_str(GRAPH).unwrap()));
    futures_util::stream::iter(0..6000)
        .for_each_concurrent(64, |n| async move { drop(submit(n).await.unwrap()) })
        .await;
    let mut late = open(&gateway, "?after=first").await;
    let more = gateway.submit().await;
    let all = kept(&**gateway.store(), None).await;
    assert_eq!((all.len(), &all[6000].1["task"]), (6001, &more.as_str().into()));
    for reader in [&mut slow, &mut late] {
        assert_eq!(some(reader, all.len()).await, all);
    }
}

#[tokio::test]
async fn only_what_was_asked_for_comes_and_the_place_moves_on_all_the_same() {
    let short = Duration::from_millis(300);
    let gateway = Gateway::start_with(|options| options.limits.heartbeat = short).await;
    let worker = gateway.worker().await;
    let mut ends = open(&gateway, "?kind=completed,failed,%20cancelled").await;
    let (first, second) = (gateway.submit().await, gateway.submit().await);
    let mut of_one = open(&gateway, &format!("?after=first&task={second}")).await;
    let claim = worker.claim().await;
    worker.complete(&claim, b"x").await;
    assert_eq!(gateway.delete(&format!("/api/v1/tasks/{second}")).send().await.unwrap().status(), 200);
    let ended: Vec<(String, Value)> = some(&mut ends, 2).await;
    let ended = ended.iter().map(|(_, data)| (&data["task"], &data["kind"])).collect::<Vec<_>>();
    assert_eq!(
        ended,
        [
            (&Value::from(first), &Value::from("completed")),
            (&Value::from(second.clone()), &Value::from("cancelled")),
        ]
    );
    let of_one = some(&mut of_one, 2).await;
    assert!(of_one.iter().all(|(_, data)| data["task"] == second.as_str()));

    // Nothing of what happens is wanted here, and yet its place is not left behind.
    let answer = gateway.get(&format!("{PATH}?kind=adopted")).send().await.unwrap();
    gateway.submit().await;
    let last = kept(&**gateway.store(), None).await.pop().unwrap().0;
    let mut pieces = answer.bytes_stream();
    let moved = async {
        let mut text = String::new();
        while !text.contains(&format!("id: {last}\n: still here\n\n")) {
            text.push_str(std::str::from_utf8(&pieces.next().await.unwrap().unwrap()).unwrap());
        }
        assert!(!text.contains("data:"), "{text}");
    };
    tokio::time::timeout(BOUND, moved).await.expect("a sign of life with the newest place");
}

#[tokio::test]
async fn a_tenant_sees_its_own_and_an_administrator_all() {
    let ground = Ground::new().await;
    let (a, b) = (
        ground.key("a", &[Scope::Submit, Scope::Read]).await,
        ground.key("b", &[Scope::Submit, Scope::Read]).await,
    );
    let admin = ground.key("ops", &[Scope::Admin]).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let body = format!("{{\"payload\": {GRAPH}}}");
    for key in [&a, &b, &a] {
        let sent = gateway.post("/api/v1/tasks").bearer_auth(key).json_text(&body).send().await.unwrap();
        json(sent, 201).await;
    }
    for (key, query, tenant, count) in [
        (&a, "", Some("a"), 2),
        (&a, "&tenant=a", Some("a"), 2),
        (&b, "", Some("b"), 1),
        (&admin, "", None, 3),
        (&admin, "&tenant=b", Some("b"), 1),
    ] {
        let path = format!("{PATH}?after=first{query}");
        let mut reader = Reader::new(gateway.get(&path).bearer_auth(key).send().await.unwrap());
        let seen = some(&mut reader, count).await;
        assert_eq!(seen, kept(&**gateway.store(), tenant).await, "{path}");
    }
    let foreign = gateway.get(&format!("{PATH}?tenant=b")).bearer_auth(&a).send().await.unwrap();
    json(foreign, 403).await;
    // A task of another tenant is one of which nothing is heard.
    let of_b = kept(&**gateway.store(), Some("b")).await[0].1["task"].as_str().unwrap().to_owned();
    let path = format!("{PATH}?after=first&task={of_b}");
    let mut reader = Reader::new(gateway.get(&path).bearer_auth(&a).send().await.unwrap());
    let nothing = tokio::time::timeout(Duration::from_millis(1500), reader.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
}

#[tokio::test]
async fn one_tenant_has_so_many_readers_and_another_has_its_own() {
    let ground = Ground::new().await;
    let (a, b) = (ground.key("a", &[Scope::Read]).await, ground.key("b", &[Scope::Read]).await);
    let gateway = Gateway::on(ground, |options| options.limits.feed_readers = 3).await;
    let follow = async |key: &str| gateway.get(PATH).bearer_auth(key).send().await.unwrap();
    let mut held = Vec::new();
    for _ in 0..3 {
        let answer = follow(&a).await;
        assert_eq!(answer.status(), 200);
        held.push(answer);
    }
    let error = json(follow(&a).await, 429).await;
    assert_eq!(error["limit"], "server.feed_readers");
    assert_eq!(follow(&b).await.status(), 200);
    held.clear();
    let again = async {
        while follow(&a).await.status() != 200 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(BOUND, again).await.expect("who left makes room");
}

#[tokio::test]
async fn a_reader_without_room_in_memory_gets_everything_all_the_same() {
    let gateway = Gateway::start_with(|options| {
        options.limits.body = 64;
        options.limits.memory = 256;
    })
    .await;
    let submit = |_| gateway.store().submit(NewTask::new(serde_json::from_str(GRAPH).unwrap()));
    futures_util::future::join_all((0..4).map(submit)).await;
    let all = kept(&**gateway.store(), None).await;
    assert_eq!(all.len(), 4);
    assert_eq!(some(&mut open(&gateway, "?after=first").await, 4).await, all);
}

#[tokio::test]
async fn what_is_no_place_is_refused_and_what_is_gone_says_where_to_begin() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let place = kept(&**gateway.store(), None).await[0].0.clone();
    for bad in ["x", "7", "1-2-3", "-1", "1-0-1-1-1"] {
        let answer = gateway.get(PATH).header("Last-Event-ID", bad).send().await.unwrap();
        let error = json(answer, 400).await;
        assert_eq!((&error["code"], &error["field"]), (&"bad_event_id".into(), &"Last-Event-ID".into()));
        let error = json(gateway.get(&format!("{PATH}?after={bad}")).send().await.unwrap(), 400).await;
        assert_eq!(error["field"], "after");
    }
    for (query, field) in [("kind=ended", "kind"), ("task=1", "task"), ("tenant=%20", "tenant")] {
        let error = json(gateway.get(&format!("{PATH}?{query}")).send().await.unwrap(), 422).await;
        assert_eq!(error["field"], field);
    }
    json(gateway.get(&format!("{PATH}?since=1")).send().await.unwrap(), 422).await;

    let ground = &gateway.ground;
    let options = JanitorOptions::new(ground.store.clone(), ground.files.clone(), ground.owner);
    let sweep = async |retention| {
        let options = JanitorOptions { retention, ..options.clone() };
        Janitor::new(options).sweep_once().await.unwrap();
    };
    // Kept as long as the records are.
    sweep(None).await;
    sweep(Some(Duration::from_secs(3600))).await;
    assert_eq!(kept(&**gateway.store(), None).await[0].0, place);
    tokio::time::sleep(Duration::from_millis(5)).await;
    sweep(Some(Duration::from_millis(1))).await;
    assert!(kept(&**gateway.store(), None).await.is_empty());
    // Who had heard of everything that was removed goes on.
    let caught_up = gateway.get(PATH).header("Last-Event-ID", &place).send().await.unwrap();
    assert_eq!(caught_up.status(), 200);
    let second = gateway.submit().await;
    assert_eq!(next(&mut Reader::new(caught_up)).await.1["task"], second.as_str());
    let old = "1-0-0-0".to_owned();
    let restored = format!("9{place}");
    let ahead = place.replace("1-0-1-", "1-0-900-");
    for gone in [old, restored, ahead] {
        let answer = gateway.get(PATH).header("Last-Event-ID", &gone).send().await.unwrap();
        let error = json(answer, 410).await;
        assert_eq!(error["code"], "gone", "{gone}");
        let first = error["first"].as_str().expect("where to begin");
        let seen = next(&mut open(&gateway, &format!("?after={first}")).await).await.1;
        assert_eq!(seen["task"], second.as_str());
    }
    assert_ne!(id, second);
}

#[tokio::test]
async fn a_stream_ends_when_the_server_stops_and_when_what_it_would_send_is_gone() {
    let mut gateway = Gateway::start_with(|options| options.drain = 2 * BOUND).await;
    let mut reader = open(&gateway, "").await;
    gateway.submit().await;
    next(&mut reader).await;
    gateway.stop.cancel();
    assert_eq!(reader.next().await, None);
    (&mut gateway.running).await.unwrap();
    assert!(gateway.store().task(TaskId::new()).await.unwrap().is_none());
}
