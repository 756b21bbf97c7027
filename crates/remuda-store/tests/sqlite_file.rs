//! What is SQLite's own: the file, its lock, other programs, and processes that die.

#![allow(clippy::expect_used, reason = "helpers of tests")]

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use remuda_core::transition::Ending;
use remuda_core::{NewTask, OwnerId, Status, TaskId, TaskResult, WorkerId, WorkerSpec};
use remuda_store::{
    Acquired, ClaimRequest, Error, HousekeepingStore as _, ManualClock, Options, RunnerStore as _,
    SqliteStore, Store, TaskStore as _, WorkerStore as _,
};
use remuda_testbed::process::Program;
use remuda_testbed::wait;
use rusqlite::Connection;
use serde_json::value::RawValue;
use uuid::Uuid;

const SOON: Duration = Duration::from_secs(120);

fn options() -> Options {
    Options::new(OwnerId(Uuid::from_u128(1)))
}

fn new_task() -> NewTask {
    NewTask::new(RawValue::from_string(r#"{"1":{"class_type":"A","inputs":{}}}"#.to_owned()).expect("JSON"))
}

fn spec(name: &str) -> WorkerSpec {
    let id = WorkerId::new(name).expect("a name");
    WorkerSpec { id, endpoint: String::new(), name: None, labels: Default::default() }
}

async fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path, options()).await.expect("it opens")
}

/// A worker, and what it asks for a task with.
async fn hand(store: &SqliteStore, name: &str) -> ClaimRequest {
    let owner = options().owner;
    let Ok(Acquired::Yes(worker)) = store.acquire_worker(spec(name), owner).await else {
        panic!("the worker is not to be had")
    };
    ClaimRequest {
        owner,
        worker: worker.spec.id,
        worker_fence: worker.fence,
        capabilities: Arc::default(),
        loaded: Vec::new(),
        ahead: false,
        gateway: None,
        wait: Duration::ZERO,
    }
}

/// This program again, as another process that only does `case` below on the file.
fn another_process(case: &str, path: &Path) -> Program {
    let program = std::env::current_exe().expect("this program");
    let arguments = ["--exact", "as_another_process", "--nocapture"];
    let path = path.to_str().expect("a path of this test");
    Program::start(program, arguments, [("REMUDA_TEST_CASE", case), ("REMUDA_TEST_FILE", path)])
        .expect("it starts")
}

/// Does nothing by itself: the tests below start it as another process.
#[tokio::test]
async fn as_another_process() {
    let (Ok(case), Ok(path)) = (std::env::var("REMUDA_TEST_CASE"), std::env::var("REMUDA_TEST_FILE")) else {
        return;
    };
    match case.as_str() {
        "open" => match SqliteStore::open(path.as_ref(), options()).await {
            Ok(_) => println!("it opened"),
            Err(error) => println!("refused: {error}"),
        },
        "work" => work(Path::new(&path)).await,
        other => panic!("unknown case {other}"),
    }
}

/// Submits and completes tasks until it is killed, and writes down what was acknowledged.
async fn work(path: &Path) {
    use std::io::Write as _;
    let store = Arc::new(open(path).await);
    let journal = Arc::new(std::fs::File::create(path.with_extension("journal")).expect("a file"));
    let mut callers = tokio::task::JoinSet::new();
    for n in 0..8 {
        let (store, journal) = (Arc::clone(&store), Arc::clone(&journal));
        callers.spawn(async move {
            let request = hand(&store, &format!("w{n}")).await;
            loop {
                let task = store.submit(new_task()).await.expect("it is taken in").task().id;
                (&*journal).write_all(format!("submitted {task}\n").as_bytes()).expect("it is written");
                let Some(claim) = store.claim(request.clone()).await.expect("it answers") else { continue };
                let ending = Ending::Completed { result: TaskResult::default(), gpu_ms: None };
                store.end(claim.lease.owner, claim.lease.reference(), ending).await.expect("it ends");
                (&*journal)
                    .write_all(format!("completed {}\n", claim.task.id).as_bytes())
                    .expect("it is written");
            }
        });
    }
    callers.join_next().await;
}

#[tokio::test]
async fn a_second_process_is_told_who_has_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let store = open(&path).await;
    let mut other = another_process("open", &path);
    let line = other.wait_line("refused", SOON).await.expect("it is refused");
    assert!(line.contains(&format!("process {}", std::process::id())), "{line}");
    store.close().await;
    let mut other = another_process("open", &path);
    other.wait_line("it opened", SOON).await.expect("the file is free");
}

#[tokio::test]
async fn what_was_acknowledged_survives_a_kill() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let journal = path.with_extension("journal");
    let mut worker = another_process("work", &path);
    wait::until("some tasks", SOON, async || {
        let lines = std::fs::read_to_string(&journal).unwrap_or_default().lines().count();
        if lines > 400 { Ok(()) } else { Err(format!("{lines} lines")) }
    })
    .await
    .expect("it works");
    worker.kill_9().expect("it is killed");
    worker.wait_exit(SOON).await.expect("it is dead");

    let store = open(&path).await;
    let text = std::fs::read_to_string(&journal).expect("the journal");
    let (mut submitted, mut completed) = (HashSet::new(), HashSet::new());
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let (what, id) = line.split_once(' ').expect("two words");
        let id: TaskId = id.parse().expect("an id");
        if what == "completed" {
            completed.insert(id)
        } else {
            submitted.insert(id)
        };
    }
    for &id in &submitted {
        let task = store.task(id).await.expect("it answers").expect("it is there");
        let events = store.events(id, 0, 100).await.expect("it answers");
        assert_eq!(i64::try_from(events.len()), Ok(task.version), "one event for each change");
        let lease = store.lease(id).await.expect("it answers");
        assert_eq!(lease.is_some(), task.status == Status::Running);
        if completed.contains(&id) {
            assert_eq!(task.status, Status::Completed);
        }
    }
    let counts = store.counts(None).await.expect("it counts");
    assert!(counts.completed >= i64::try_from(completed.len()).expect("few"));
    let all = counts.pending + counts.running + counts.completed;
    assert!(all >= i64::try_from(submitted.len()).expect("few"), "{counts:?}");
    let raw = Connection::open(&path).expect("it opens");
    let check: String = raw.query_row("PRAGMA integrity_check", (), |row| row.get(0)).expect("it checks");
    assert_eq!(check, "ok");
    let rows: i64 = raw.query_row("SELECT count(*) FROM task", (), |row| row.get(0)).expect("it counts");
    assert_eq!(rows, all, "the counters agree with the rows");
}

#[tokio::test]
async fn a_newer_schema_is_refused_only_when_it_must_be() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let set = |version: i64, min_binary: i64| {
        let raw = Connection::open(&path).expect("it opens");
        raw.execute("UPDATE schema SET version = ?, min_binary = ?", (version, min_binary))
            .expect("it is changed");
    };
    open(&path).await.close().await;
    // One release later: it only added something.
    set(7, 1);
    let store = open(&path).await;
    store.submit(new_task()).await.expect("it works");
    store.close().await;
    set(9, 8);
    match SqliteStore::open(&path, options()).await {
        Err(Error::TooNew { found: 9, needs: 8, .. }) => {}
        other => panic!("a schema of the future was opened: {other:?}"),
    }
    set(7, 1);
    open(&path).await.close().await;
}

#[tokio::test]
async fn only_files_of_ours_are_opened() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = folder.path().join("text.db");
    std::fs::write(&text, "this is not a database, and long enough to be seen as none\n".repeat(100))
        .expect("a file");
    let foreign = folder.path().join("foreign.db");
    Connection::open(&foreign)
        .and_then(|raw| raw.execute_batch("CREATE TABLE theirs (x)"))
        .expect("a database");
    for path in [text, foreign] {
        match SqliteStore::open(&path, options()).await {
            Err(Error::Corrupt(message)) => assert!(message.contains(".db"), "{message}"),
            other => panic!("a foreign file was opened: {other:?}"),
        }
    }
    let nowhere = folder.path().join("no").join("folder.db");
    assert!(matches!(SqliteStore::open(&nowhere, options()).await, Err(Error::Unavailable { .. })));
}

#[tokio::test]
async fn a_file_that_is_gone_takes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let store = open(&path).await;
    let before = store.submit(new_task()).await.expect("it is taken in").task().id;
    let aside = folder.path().join("aside.db");
    std::fs::rename(&path, &aside).expect("it is moved");
    assert!(matches!(store.submit(new_task()).await, Err(Error::Unavailable { .. })));
    assert!(matches!(store.ping().await, Err(Error::Unavailable { .. })));
    std::fs::rename(&aside, &path).expect("it is moved back");
    store.ping().await.expect("it is there again");
    store.submit(new_task()).await.expect("and takes tasks");
    assert!(store.task(before).await.expect("it answers").is_some());
}

#[tokio::test]
async fn a_file_locked_by_another_program_is_unavailable_for_so_long() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let store = open(&path).await;
    let id = store.submit(new_task()).await.expect("it is taken in").task().id;
    let raw = Connection::open(&path).expect("it opens");
    raw.execute_batch("BEGIN IMMEDIATE").expect("it is locked");
    let (one, two) = tokio::join!(store.submit(new_task()), store.cancel(id));
    assert!(matches!(one, Err(Error::Unavailable { .. })), "{one:?}");
    assert!(matches!(two, Err(Error::Unavailable { .. })), "{two:?}");
    assert_eq!(store.task(id).await.expect("reading goes on").expect("it is there").status, Status::Pending);
    raw.execute_batch("ROLLBACK").expect("it is free");
    store.cancel(id).await.expect("it works again");
    assert_eq!(store.counts(None).await.expect("it counts").pending, 0);
}

/// A process finds its own leases after a restart. Those on workers that it does not drive any more are lost after
/// a while: nobody else would ever end them.
#[tokio::test]
async fn own_leases_are_found_again_or_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("remuda.db");
    let clock = Arc::new(ManualClock::default());
    let options = Options { clock: Some(Arc::clone(&clock) as Arc<_>), ..options() };
    let store = SqliteStore::open(&path, options.clone()).await.expect("it opens");
    let mut tasks = Vec::new();
    for worker in ["kept", "dropped"] {
        let request = hand(&store, worker).await;
        store.submit(new_task()).await.expect("it is taken in");
        tasks.push(store.claim(request).await.expect("it answers").expect("a task").task.id);
    }
    clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(store.tidy().await.expect("it tidies").lost, [], "held by the process that holds the file");
    store.close().await;

    let store = SqliteStore::open(&path, options.clone()).await.expect("it opens");
    let request = hand(&store, "kept").await;
    assert_eq!(store.tidy().await.expect("it tidies").lost, []);
    clock.advance(options.settle + options.policy.adoption);
    assert_eq!(store.tidy().await.expect("it tidies").lost, [tasks[1]]);
    let adopted = remuda_store::AdoptRequest {
        owner: request.owner,
        worker: request.worker,
        worker_fence: request.worker_fence,
        gateway: None,
        known: Vec::new(),
    };
    let adopted = store.adopt(adopted).await.expect("it adopts");
    assert_eq!(adopted.iter().map(|claim| claim.task.id).collect::<Vec<_>>(), [tasks[0]]);
}
