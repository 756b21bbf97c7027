//! The pool under load, with stalls, panics and callers that leave.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "these are tests")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::{Duration, Instant};

use remuda_pool::{Marks, NotDone, Pool, PoolOptions, Watchdog, WatchdogOptions, Work};
use uuid::Uuid;

const PATIENCE: Duration = Duration::from_secs(60);

fn pool(threads: usize, queue: usize) -> Pool {
    Pool::new(PoolOptions { threads, queue, inline: 100 })
}

fn large(tenant: &str) -> Work {
    Work::new("a test", tenant, 1000)
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Work that lasts until its sender is used or dropped.
fn held(pool: &Pool, tenant: &str) -> (mpsc::Sender<()>, tokio::task::JoinHandle<Result<(), NotDone>>) {
    let (release, held) = mpsc::channel::<()>();
    let (pool, work) = (pool.clone(), large(tenant));
    let task = tokio::spawn(async move {
        pool.run(work, move || {
            let _released = held.recv();
        })
        .await
    });
    (release, task)
}

#[tokio::test]
async fn small_work_stays_and_large_work_goes() {
    let pool = pool(2, 8);
    let here = std::thread::current().id();
    let small = pool.run(Work::new("a test", "t", 100), || std::thread::current().id()).await.unwrap();
    assert_eq!(small, here);
    let other = pool.run(large("t"), || std::thread::current().id()).await.unwrap();
    assert_ne!(other, here);
}

#[tokio::test]
async fn one_tenant_takes_neither_all_threads_nor_the_whole_queue() {
    let pool = pool(2, 8);
    let (release, first) = held(&pool, "greedy");
    until("it runs", || pool.running().len() == 1).await;
    let waiting: Vec<_> = (0..2).map(|_| held(&pool, "greedy")).collect();
    until("they wait", || pool.waiting() == 2).await;
    assert_eq!(pool.running().len(), 1, "the other thread is not for the same tenant");
    assert_eq!(pool.run(large("greedy"), || ()).await, Err(NotDone::Share));
    // Another tenant goes at once.
    assert_eq!(pool.run(large("modest"), || 7).await, Ok(7));
    // What cannot be refused waits.
    let patient = {
        let pool = pool.clone();
        tokio::spawn(async move { pool.run(large("greedy").patient(), || 8).await })
    };
    drop(release);
    first.await.unwrap().unwrap();
    for (release, task) in waiting {
        drop(release);
        task.await.unwrap().unwrap();
    }
    assert_eq!(patient.await.unwrap(), Ok(8));
}

#[tokio::test]
async fn work_whose_caller_left_is_not_begun() {
    let pool = pool(1, 8);
    let (release, first) = held(&pool, "t");
    until("it runs", || pool.running().len() == 1).await;
    let begun = Arc::new(AtomicUsize::new(0));
    let gone = {
        let (pool, begun) = (pool.clone(), Arc::clone(&begun));
        tokio::spawn(async move { pool.run(large("t"), move || begun.fetch_add(1, Ordering::SeqCst)).await })
    };
    until("it waits", || pool.waiting() == 1).await;
    gone.abort();
    let _aborted = gone.await;
    drop(release);
    first.await.unwrap().unwrap();
    pool.run(large("t"), || ()).await.unwrap();
    assert_eq!(begun.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_panic_is_an_answer() {
    let pool = pool(1, 8);
    let answer: Result<(), _> = pool.run(large("t"), || panic!("on purpose")).await;
    assert_eq!(answer, Err(NotDone::Panicked("on purpose".to_owned())));
    assert_eq!(pool.run(large("t"), || 1).await, Ok(1));
}

#[tokio::test]
async fn a_stall_is_told_and_others_go_on() {
    let pool = pool(1, 8);
    let _watchdog = Watchdog::start(&pool, WatchdogOptions::new(Duration::from_millis(200))).unwrap();
    let (release, stalled) = held(&pool, "slow");
    assert_eq!(stalled.await.unwrap(), Err(NotDone::Stalled));
    // The only thread is still busy with it.
    assert_eq!(pool.run(large("other"), || 2).await, Ok(2));
    assert_eq!(pool.run(large("slow"), || 3).await, Ok(3));
    drop(release);
    until("it ends", || pool.running().is_empty()).await;
    assert_eq!(pool.run(large("slow"), || 4).await, Ok(4));
}

#[tokio::test]
async fn what_work_keeps_is_given_back_when_it_really_ends() {
    let pool = pool(1, 8);
    let (kept, keeps) = (Arc::new(()), Arc::new(()));
    let (running, waiting) = (Arc::downgrade(&kept), Arc::downgrade(&keeps));
    let (release, held) = mpsc::channel::<()>();
    let (first, second) = (pool.clone(), pool.clone());
    let left = tokio::spawn(async move {
        let work = large("t").holding(kept);
        first
            .run(work, move || {
                let _released = held.recv();
            })
            .await
    });
    until("it runs", || pool.running().len() == 1).await;
    let never = tokio::spawn(async move { second.run(large("t").holding(keeps), || ()).await });
    until("it waits", || pool.waiting() == 1).await;
    for caller in [left, never] {
        caller.abort();
        let _aborted = caller.await;
    }
    // What was not begun is forgotten at once, though no thread is free.
    assert_eq!((pool.waiting(), waiting.strong_count()), (0, 0));
    assert!(running.strong_count() > 0, "what runs on still holds it");
    drop(release);
    until("it is given back", || running.strong_count() == 0).await;
}

#[tokio::test]
async fn what_stalled_work_keeps_is_not_given_back_with_the_answer() {
    let pool = pool(1, 8);
    let _watchdog = Watchdog::start(&pool, WatchdogOptions::new(Duration::from_millis(200))).unwrap();
    let kept = Arc::new(());
    let held_by_work = Arc::downgrade(&kept);
    let (release, held) = mpsc::channel::<()>();
    let work = large("t").holding(kept);
    let stalled = pool.run(work, move || {
        let _released = held.recv();
    });
    assert_eq!(stalled.await, Err(NotDone::Stalled));
    assert!(held_by_work.strong_count() > 0);
    drop(release);
    until("it is given back", || held_by_work.strong_count() == 0).await;
}

#[tokio::test]
async fn one_tenant_cannot_stall_all_threads() {
    let pool = pool(2, 16);
    let _watchdog = Watchdog::start(&pool, WatchdogOptions::new(Duration::from_millis(100))).unwrap();
    let (releases, greedy): (Vec<_>, Vec<_>) = (0..4).map(|_| held(&pool, "greedy")).unzip();
    let mut answers = Vec::new();
    for task in greedy {
        // Also of those that waited when the others stalled, without anybody who comes later.
        answers.push(tokio::time::timeout(PATIENCE, task).await.expect("an answer").unwrap());
    }
    let count = |why: &NotDone| answers.iter().filter(|answer| answer.as_ref() == Err(why)).count();
    assert_eq!((count(&NotDone::Stalled), count(&NotDone::Share)), (2, 2), "{answers:?}");
    assert_eq!(pool.running().len(), 2);
    assert_eq!(pool.run(large("greedy"), || 1).await, Err(NotDone::Share));
    assert_eq!(pool.run(large("greedy").patient(), || 1).await, Err(NotDone::Share), "no end is in sight");
    // There are threads for everybody else, also when a second one does the same.
    let (more, second): (Vec<_>, Vec<_>) = (0..2).map(|_| held(&pool, "second")).unzip();
    for task in second {
        assert_eq!(task.await.unwrap(), Err(NotDone::Stalled));
    }
    let (go_on, goes_on) = held(&pool, "third");
    until("it runs", || pool.running().len() == 5).await;
    assert_eq!(pool.run(large("modest"), || 7).await, Ok(7));
    drop((releases, more, go_on));
    let _either = goes_on.await.unwrap();
    until("they end", || pool.running().is_empty()).await;
    assert_eq!(pool.run(large("greedy"), || 8).await, Ok(8));
}

#[tokio::test]
async fn processor_time_counts_and_waiting_for_it_does_not() {
    if !std::path::Path::new("/proc/thread-self/schedstat").exists() {
        return;
    }
    let pool = pool(2, 8);
    let limit = Duration::from_millis(300);
    let _watchdog = Watchdog::start(&pool, WatchdogOptions::new(limit)).unwrap();
    // Far beyond the limit on the clock, and hardly any work.
    let idle = pool.run(large("idle"), move || std::thread::park_timeout(limit * 2)).await;
    assert_eq!(idle, Ok(()));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let stopped = Arc::clone(&stop);
    let busy = pool.run(large("busy"), move || {
        while !stopped.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    });
    assert_eq!(busy.await, Err(NotDone::Stalled));
    stop.store(true, Ordering::Relaxed);
    until("it ends", || pool.running().is_empty()).await;
}

#[tokio::test]
async fn work_that_ends_as_it_is_given_up_is_counted_right() {
    let pool = pool(1, 8);
    let limit = Duration::from_millis(10);
    let _watchdog =
        Watchdog::start(&pool, WatchdogOptions { limit, tick: Duration::from_millis(1) }).unwrap();
    for _ in 0..30 {
        let _either = pool.run(large("t"), move || std::thread::park_timeout(limit * 6)).await;
    }
    until("all ended", || pool.running().is_empty()).await;
    assert_eq!(pool.run(large("t"), || 1).await, Ok(1));
}

#[tokio::test]
async fn only_what_computes_on_a_stored_task_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    let pool = pool(1, 8);
    pool.mark_in(Marks::open(dir.path()).unwrap().0);
    let task = Uuid::from_u128(7);
    let copy = |name: &str| {
        let to = dir.path().join(name);
        std::fs::create_dir(&to).unwrap();
        std::fs::copy(dir.path().join("marks"), to.join("marks")).unwrap();
        Marks::open(&to).unwrap().1
    };
    let barrier = Arc::new(Barrier::new(2));
    let (begun, running) = (Arc::clone(&barrier), pool.clone());
    let (release, held) = mpsc::channel::<()>();
    let marked = tokio::spawn(async move {
        let work = large("t").of_task(task);
        running
            .run(work, move || {
                begun.wait();
                let _released = held.recv();
            })
            .await
    });
    tokio::task::spawn_blocking(move || barrier.wait()).await.unwrap();
    let (others, queued) = (pool.clone(), Uuid::from_u128(8));
    let waits = tokio::spawn(async move { others.run(large("t").of_task(queued), || ()).await });
    until("it waits", || pool.waiting() == 1).await;
    let left = copy("while");
    assert_eq!(left.iter().map(|mark| mark.task).collect::<Vec<_>>(), [task], "what waits does no harm");
    drop(release);
    marked.await.unwrap().unwrap();
    waits.await.unwrap().unwrap();
    assert!(copy("after").is_empty());
}

#[test]
fn a_runtime_that_is_held_is_noticed_and_one_that_ended_is_not() {
    let pool = pool(1, 8);
    let watchdog = Watchdog::start(&pool, WatchdogOptions::new(Duration::from_millis(300))).unwrap();
    let pulse = watchdog.pulse();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(async {
        let _beats = tokio::spawn(pulse.clone().run());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert!(pulse.turns());
        let since = Instant::now();
        // Nothing else can run meanwhile.
        while pulse.turns() {
            assert!(since.elapsed() < PATIENCE, "it is noticed");
            std::thread::park_timeout(Duration::from_millis(5));
        }
        while !pulse.turns() {
            assert!(since.elapsed() < PATIENCE, "it turns again");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    drop(runtime);
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(700) {
        assert!(pulse.turns(), "a runtime that ended does not hang");
        std::thread::park_timeout(Duration::from_millis(20));
    }
}

#[tokio::test]
async fn what_holds_a_thread_of_the_runtime_has_a_name_only_meanwhile() {
    let pool = pool(1, 8);
    let name: Arc<str> = "/some/route".into();
    let mut waits = std::pin::pin!(async {
        assert_eq!(pool.turning().iter().map(|turn| &*turn.what).collect::<Vec<_>>(), ["/some/route"]);
        tokio::task::yield_now().await;
        panic!("on purpose");
    });
    let mut polls = 0;
    let turned = std::panic::AssertUnwindSafe(std::future::poll_fn(|cx| {
        assert!(pool.turning().is_empty(), "nothing holds the thread while it waits");
        polls += 1;
        let poll = std::panic::AssertUnwindSafe(|| pool.turn(&name, || waits.as_mut().poll(cx)));
        match std::panic::catch_unwind(poll) {
            Ok(poll) => poll,
            Err(_) => std::task::Poll::Ready(()),
        }
    }));
    turned.0.await;
    assert_eq!(polls, 2);
    assert!(pool.turning().is_empty());
}
