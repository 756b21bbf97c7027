//! How much memory a large file takes on its way. In a program of its own: the memory that is looked at is the whole
//! process's.

#![cfg(target_os = "linux")]
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

#[allow(dead_code, reason = "the tests of sidecars use all of it")]
#[path = "sidecar/ground.rs"]
mod ground;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use ground::{Ground, completed};
use remuda_core::transition::Ending;
use remuda_core::{Dialect, Origin, Sha256, TaskResult, Tenant};
use remuda_runner::source::Source as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Watches the memory for a while; the most there was.
async fn most_within(time: Duration) -> usize {
    let until = tokio::time::Instant::now() + time;
    let mut most = 0;
    while tokio::time::Instant::now() < until {
        most = most.max(memory());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    most
}

const PIECE: usize = 256 << 10;

/// Memory in use, in bytes.
fn memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() << 10
}

/// One at a time: they look at the same memory.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

#[tokio::test]
async fn a_large_file_passes_through_in_little_memory() {
    const SIZE: usize = 200 << 20;
    let _turn = TURN.lock().await;
    let ground = Ground::new().await;
    let id = ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    let before = memory();
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let bytes =
        stream::repeat_with(|| Ok(Bytes::from(vec![0; PIECE]))).take(SIZE / PIECE).inspect(move |_| {
            seen.fetch_max(memory(), Ordering::Relaxed);
        });
    let delivered = sidecar.deliver(&claim, 0, bytes.boxed()).await.unwrap();
    assert_eq!(delivered.size, SIZE as u64);
    // Both ends are in this process.
    let grown = most.load(Ordering::Relaxed).saturating_sub(before);
    assert!(grown < 100 << 20, "{} MiB more", grown >> 20);
    sidecar.source.end(claim.lease.reference(), completed(0, delivered.clone())).await.unwrap();

    let mut hash = sha2::Sha256::default();
    let mut answer = ground.get(&format!("/api/v1/tasks/{id}/outputs/0")).await;
    while let Some(piece) = answer.chunk().await.unwrap() {
        sha2::Digest::update(&mut hash, &piece);
    }
    assert_eq!(Sha256(sha2::Digest::finalize(hash).into()), delivered.sha256);
}

#[tokio::test]
async fn large_settings_that_nobody_reads_take_little_memory() {
    const SIZE: usize = 4 << 20;
    let _turn = TURN.lock().await;
    let ground = Ground::new().await;
    let value = format!("\"{}\"", "x".repeat(SIZE)).into_bytes();
    for n in 0..40 {
        let (tenant, name) = (Tenant::default_tenant(), format!("setting-{n}"));
        ground.store.put_document(&tenant, "settings", &name, value.clone(), true).await.unwrap();
    }
    let before = memory();
    let mut unread = Vec::new();
    for _ in 0..12 {
        let mut stream = tokio::net::TcpStream::connect(ground.address).await.unwrap();
        let head = format!(
            "GET /settings HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {}\r\n\r\n",
            ground.key.reveal()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut status = [0; 15];
        tokio::time::timeout(ground::BOUND, stream.read_exact(&mut status)).await.unwrap().unwrap();
        assert_eq!(&status, b"HTTP/1.1 200 OK");
        unread.push(stream);
    }
    let grown = most_within(Duration::from_secs(3)).await.saturating_sub(before);
    assert!(grown < 300 << 20, "{} MiB more", grown >> 20);
}

/// A result of a megabyte with many values as small as they can be.
fn swollen() -> Ending {
    let (small, text) = (r#"{"":0},"#.repeat(40_000), "x".repeat(800_000));
    let outputs =
        serde_json::from_str(&format!(r#"{{"1":{{"x":[{small}{{}}],"text":["{text}"]}}}}"#)).unwrap();
    Ending::Completed { result: TaskResult { outputs, ..TaskResult::default() }, gpu_ms: None }
}

#[tokio::test]
async fn results_of_many_small_values_take_little_memory() {
    const TASKS: usize = 12;
    let _turn = TURN.lock().await;
    let ground = Ground::new().await;
    let sidecar = ground.sidecar().await;
    let mut ids = Vec::new();
    for _ in 0..TASKS {
        let native = Origin { dialect: Dialect::COMFYUI, external_id: None, client: None };
        ids.push(ground.submit_with(|new| new.origin = Some(native)).await);
    }
    let before = memory();
    let peak = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&peak);
    let watch = tokio::spawn(async move {
        loop {
            seen.fetch_max(most_within(Duration::from_millis(50)).await, Ordering::Relaxed);
        }
    });
    for _ in 0..TASKS {
        let claim = sidecar.claim().await;
        sidecar.source.end(claim.lease.reference(), swollen()).await.unwrap();
    }
    let told = async |path: String| {
        let answer = ground.get(&path).await;
        assert_eq!(answer.status(), 200, "{path}");
        answer.bytes().await.unwrap()
    };
    let records = ids.iter().map(|id| told(format!("/api/v1/tasks/{id}")));
    let records = futures_util::future::join_all(records).await;
    assert!(records.iter().all(|record| record.len() > 1_000_000));
    drop(records);
    let (mut listed, mut next) = (0, String::new());
    loop {
        let page = told(format!("/api/v1/tasks?limit=500{next}")).await;
        assert!(page.len() < 20 << 20, "a page is cut where it is long");
        let page: Page = serde_json::from_slice(&page).unwrap();
        listed += page.tasks.len();
        let Some(before) = page.next else { break };
        next = format!("&before={before}");
    }
    assert_eq!(listed, TASKS);
    for path in ["/history", "/api/jobs", "/api/jobs?sort_by=execution_duration"] {
        let answers = futures_util::future::join_all((0..3).map(|_| told(path.to_owned()))).await;
        assert!(answers.windows(2).all(|two| two[0].len() == two[1].len()), "{path}");
    }
    watch.abort();
    let grown = peak.load(Ordering::Relaxed).saturating_sub(before);
    assert!(grown < 350 << 20, "{} MiB more", grown >> 20);
}

#[derive(serde::Deserialize)]
struct Page {
    tasks: Vec<Box<serde_json::value::RawValue>>,
    next: Option<String>,
}
