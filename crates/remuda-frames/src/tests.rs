use bytes::Bytes;

use super::*;

fn task(n: u128) -> TaskId {
    TaskId(uuid::Uuid::from_u128(n))
}

fn message(task: TaskId, attempt: AttemptNo, kind: &str, data: &str) -> Frame {
    Frame { task, attempt, what: FrameKind::Message { kind: kind.to_owned(), data: data.to_owned() } }
}

fn picture(task: TaskId, size: usize) -> Frame {
    let what = FrameKind::Binary { event: 1, bytes: Bytes::from(vec![7; size]) };
    Frame { task, attempt: 1, what }
}

/// What is there to read, in short.
fn read(messages: &mut Messages) -> Vec<String> {
    let short = |frame: Arc<Frame>| match &frame.what {
        FrameKind::Message { kind, data } => format!("{}:{kind}{data}", frame.attempt),
        FrameKind::Binary { event, bytes } => format!("{}:binary {event} {}", frame.attempt, bytes.len()),
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| messages.try_recv()).map(short).collect()
}

async fn is_over(messages: &mut Messages) -> bool {
    let next = tokio::time::timeout(Duration::from_millis(1), messages.recv()).await;
    matches!(next, Ok(None))
}

#[test]
fn frames_that_nobody_closes_do_not_pile_up() {
    let hub = FrameHub::default();
    let start = Instant::now();
    let publish = |task, at| {
        let what =
            FrameKind::Progress { fraction: 0.5, node: None, value: 1.0, max: 2.0, nodes_done: 0, nodes: 1 };
        hub.publish_at(Frame { task, attempt: 1, what }, at);
        hub.publish_at(message(task, 1, "executing", ""), at);
    };
    let tasks: Vec<TaskId> = (0..CHANNELS as u128).map(task).collect();
    for task in &tasks {
        publish(*task, start);
    }
    let (_, _reader) = hub.subscribe(tasks[0]);
    let _follower = hub.follow_messages(tasks[0], 1);
    publish(tasks[1], start + NEWS);
    let late = task(1 << 64);
    publish(late, start + NEWS);
    let inner = hub.inner();
    let kept = (inner.channels.len(), inner.stories.len());
    drop(inner);
    assert_eq!(kept, (3, 3), "the followed one, the one with news, and the new one");
    assert!(hub.has(tasks[0]) && hub.has(tasks[1]) && hub.has(late));
    assert!([tasks[0], tasks[1], late].iter().all(|task| hub.has_messages(*task, 1)));
}

#[tokio::test]
async fn who_comes_late_reads_everything_in_order_and_nothing_twice() {
    let (hub, one) = (FrameHub::default(), task(1));
    let mut early = hub.follow_messages(one, 1);
    let said = ["execution_start", "progress", "executing", "progress", "progress_state", "executed"];
    for (n, kind) in said.iter().enumerate() {
        hub.publish(message(one, 1, kind, &n.to_string()));
        hub.publish(picture(one, n));
    }
    let mut late = hub.follow_messages(one, 1);
    hub.publish(message(one, 1, "progress", "6"));
    hub.publish(picture(one, 6));
    hub.close(one);
    let replayed = ["1:execution_start0", "1:executing2", "1:progress3", "1:progress_state4", "1:executed5"];
    assert_eq!(read(&mut late), [&replayed[..], &["1:progress6", "1:binary 1 6"]].concat());
    assert!(is_over(&mut late).await);
    let all = read(&mut early);
    assert_eq!(all.len(), 14);
    assert_eq!(all[..3], ["1:execution_start0", "1:binary 1 0", "1:progress1"]);
    assert!(is_over(&mut early).await);
}

#[tokio::test]
async fn what_was_said_is_kept_for_a_while_after_the_end() {
    let (hub, one, start) = (FrameHub::default(), task(1), Instant::now());
    hub.publish_at(message(one, 1, "executed", ""), start);
    hub.close_at(one, start);
    let mut after = hub.follow_messages_at(one, 1, start + LINGER / 2);
    assert_eq!(read(&mut after), ["1:executed"]);
    assert!(is_over(&mut after).await, "and then it is over");
    let mut next = hub.follow_messages_at(one, 2, start + LINGER / 2);
    assert!(read(&mut next).is_empty() && !is_over(&mut next).await, "the next attempt has not begun");
    hub.publish_at(message(one, 1, "executed", "late"), start + LINGER / 2);
    hub.publish_at(message(one, 2, "execution_start", ""), start + LINGER / 2);
    assert_eq!(read(&mut next), ["2:execution_start"]);
    hub.publish_at(message(one, 1, "executed", "later"), start + LINGER / 2);
    hub.close_at(one, start + LINGER);
    assert!(is_over(&mut next).await);
    let mut never = hub.follow_messages_at(one, 1, start + LINGER * 3);
    assert!(read(&mut never).is_empty());
    hub.close(task(2));
    drop(never);
    hub.follow_messages_at(task(2), 1, start + LINGER * 3);
    hub.close_at(task(2), start + LINGER * 3);
    hub.let_go(one);
    hub.follow_messages_at(task(3), 1, start + LINGER * 9);
    assert_eq!(hub.inner().stories.len(), 1, "the one that was just followed");
}

#[tokio::test]
async fn ends_of_many_tasks_take_bounded_memory() {
    let (hub, start) = (FrameHub::default(), Instant::now());
    let text = "x".repeat(1 << 20);
    for n in 0..200 {
        hub.publish_at(message(task(n), 1, "executed", &text), start);
        hub.close_at(task(n), start + Duration::from_millis(n as u64));
    }
    let kept: usize = hub.inner().stories.values().map(|story| story.bytes).sum();
    assert!(kept <= LINGERING && kept > LINGERING / 2, "{kept} bytes");
    assert!(hub.has_messages(task(199), 1) && !hub.has_messages(task(0), 1), "the oldest go first");
    // One attempt alone is bounded, too.
    for n in 0..2000 {
        hub.publish_at(message(task(1000), 1, "text", &n.to_string()), start);
    }
    let mut late = hub.follow_messages_at(task(1000), 1, start);
    let read = read(&mut late);
    assert_eq!((read.len(), read[0].as_str()), (1000, "1:text1000"));
}

#[test]
fn a_reader_that_does_not_read_loses_pictures_first_and_takes_bounded_memory() {
    let (hub, one) = (FrameHub::default(), task(1));
    let mut slow = hub.follow_messages(one, 1);
    for n in 0..100 {
        hub.publish(message(one, 1, "executed", &n.to_string()));
        hub.publish(picture(one, 1 << 20));
    }
    let seen = read(&mut slow);
    assert_eq!(seen.iter().filter(|seen| seen.contains("executed")).count(), 100);
    let pictures = seen.iter().filter(|seen| seen.contains("binary")).count();
    assert!((50..64).contains(&pictures), "{pictures} pictures of a megabyte");
    for n in 0..10_000 {
        hub.publish(message(one, 1, "executed", &n.to_string()));
    }
    let seen = read(&mut slow);
    assert_eq!((seen.len(), seen.last().map(String::as_str)), (4096, Some("1:executed9999")));
}

fn preview(task: TaskId, size: usize) -> Frame {
    let what = FrameKind::Preview { mime: "image/jpeg".to_owned(), bytes: Bytes::from(vec![7; size]) };
    Frame { task, attempt: 1, what }
}

fn progress(task: TaskId, value: f64) -> Frame {
    let what = FrameKind::Progress { fraction: 0.5, node: None, value, max: 2.0, nodes_done: 0, nodes: 1 };
    Frame { task, attempt: 1, what }
}

#[tokio::test]
async fn a_slow_reader_gets_the_newest_preview_and_progress_in_order() {
    let (hub, one) = (FrameHub::default(), task(1));
    let readers: Vec<LiveFrames> = (0..3).map(|_| hub.subscribe(one).1).collect();
    for n in 1..=10 {
        hub.publish(preview(one, n << 20));
        hub.publish(progress(one, n as f64));
    }
    assert!(hub.gallery.bytes() < 11 << 20, "one is kept for all, and only the newest");
    for mut reader in readers {
        let (mut steps, mut sizes) = (Vec::new(), Vec::new());
        while let Some(frame) = reader.try_recv() {
            match &frame.what {
                FrameKind::Progress { value, .. } => steps.push(*value as usize),
                FrameKind::Preview { bytes, .. } => sizes.push((steps.len(), bytes.len())),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(steps, (1..=10).collect::<Vec<_>>());
        assert_eq!(sizes, [(9, 10 << 20)], "in its place");
    }
    let (_, mut last) = hub.subscribe(one);
    hub.close(one);
    assert!(last.recv().await.is_none());
    assert_eq!(hub.gallery.bytes(), 0);
}

#[tokio::test]
async fn previews_of_many_tasks_take_a_bounded_amount_and_are_written_once() {
    let hub = FrameHub::default();
    let hubs = [hub.clone(), hub.beside()];
    let mut readers = Vec::new();
    for n in 0..64 {
        let at = &hubs[n % 2];
        readers.push((0..8).map(|_| at.subscribe(task(n as u128)).1).collect::<Vec<_>>());
        at.publish(preview(task(n as u128), 2 << 20));
        assert!(hub.gallery.bytes() <= live::PREVIEWS);
    }
    assert!(readers[0][0].try_recv().is_none(), "the oldest went");
    let written = std::cell::Cell::new(0);
    for reader in readers.last_mut().unwrap() {
        let frame = reader.recv().await.unwrap();
        let write = async |frame: &Frame| {
            written.set(written.get() + 1);
            Ok::<_, ()>(Bytes::from(format!("{}", frame.attempt)))
        };
        assert_eq!(frame.written(write).await.unwrap(), "1");
    }
    assert_eq!(written.get(), 1);
}
