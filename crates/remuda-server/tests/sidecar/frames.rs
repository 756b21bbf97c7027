//! Live frames reach whoever follows the task, and only those of its holder.

use bytes::Bytes;
use remuda_core::{Claim, TaskId};
use remuda_frames::{Frame, FrameKind};
use remuda_runner::source::{GatewaySource, Source};
use tokio::time::timeout;

use crate::ground::{BOUND, Ground, Sidecar, url};

fn progress(task: TaskId, attempt: i32, fraction: f64) -> Frame {
    let what = FrameKind::Progress {
        fraction,
        node: Some("3".to_owned()),
        value: 1.0,
        max: f64::INFINITY,
        nodes_done: 0,
        nodes: 1,
    };
    Frame { task, attempt, what }
}

fn preview(claim: &Claim) -> Frame {
    let what = FrameKind::Preview { mime: "image/jpeg".to_owned(), bytes: Bytes::from(vec![255; 50_000]) };
    Frame { task: claim.task.id, attempt: claim.lease.attempt, what }
}

/// Reads a stream of events until one contains all of `wanted`; what came before it must contain none of `not`.
async fn read_until(events: &mut reqwest::Response, wanted: &[&str], not: &[&str]) {
    let mut text = String::new();
    let read = async {
        while let Some(piece) = events.chunk().await.expect("a stream") {
            text.push_str(&String::from_utf8_lossy(&piece));
            if wanted.iter().all(|wanted| text.contains(wanted)) {
                return true;
            }
        }
        false
    };
    let found = timeout(BOUND, read).await;
    assert_eq!(found, Ok(true), "{wanted:?} in {text:.2000}");
    assert!(!not.iter().any(|not| text.contains(not)), "{not:?} in {text:.2000}");
}

#[tokio::test]
async fn frames_of_a_sidecar_reach_the_readers_of_events() {
    let ground = Ground::new().await;
    let id = ground.submit().await;
    let (sidecar, foreign): (Sidecar, Sidecar) = (ground.sidecar().await, ground.sidecar().await);
    let claim = sidecar.claim().await;
    let mut events = ground.get(&format!("/api/v1/tasks/{id}/events?preview=true")).await;
    read_until(&mut events, &["event: state", "claimed"], &[]).await;

    // Somebody else's frames, and those of an attempt that is over, are dropped.
    foreign.source.frame(progress(id, claim.lease.attempt, 0.99));
    sidecar.source.frame(progress(id, claim.lease.attempt + 1, 0.98));
    // The queue between them is lossy, so the sidecar says it until it is heard.
    let saying = async {
        loop {
            sidecar.source.frame(progress(id, claim.lease.attempt, 0.25));
            sidecar.source.frame(preview(&claim));
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let wanted = ["event: progress", "\"fraction\":0.25", "event: preview", "image/jpeg"];
    tokio::select! {
        () = read_until(&mut events, &wanted, &["0.99", "0.98"]) => {}
        () = saying => {}
    }
    sidecar.complete(&claim, b"picture").await;
    read_until(&mut events, &["\"status\":\"completed\""], &[]).await;
    sidecar.source.close().await;
    sidecar.source.frame(progress(id, 1, 1.0));
}

#[tokio::test]
async fn frames_that_come_in_at_another_server_reach_the_readers_of_both() {
    let mut ground = Ground::new().await;
    let (other, stop) = ground.another().await;
    let id = ground.submit().await;
    let sidecar = ground.sidecar().await;
    let claim = sidecar.claim().await;
    // As behind a load balancer: claimed here, frames there.
    let there = GatewaySource::new(&url(other), Some(&ground.key), sidecar.owner).unwrap();
    let saying = async |fraction| -> () {
        loop {
            there.frame(progress(id, claim.lease.attempt, fraction));
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let path = format!("/api/v1/tasks/{id}/events");
    let (mut one, mut two) = (ground.get(&path).await, ground.get_from(other, &path).await);
    let wanted = ["event: progress", "\"fraction\":0.25"];
    let both = async {
        tokio::join!(read_until(&mut one, &wanted, &[]), read_until(&mut two, &wanted, &[]));
    };
    tokio::select! {
        () = both => {}
        () = saying(0.25) => {}
    }
    // The server on the lease is gone; who reads at the one that gets the frames does not miss them.
    drop(one);
    ground.stop().await;
    tokio::select! {
        () = read_until(&mut two, &["\"fraction\":0.5"], &[]) => {}
        () = saying(0.5) => {}
    }
    there.close().await;
    stop.cancel();
}
