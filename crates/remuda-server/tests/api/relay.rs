//! Frames of a task that runs at another gateway (DECISIONS: live frames never pass the database).

use remuda_frames::{Frame, FrameKind};
use remuda_sidecar::frames::Decoder;

use crate::events::{Reader, progress};
use crate::support::{Gateway, Ground};

#[tokio::test]
async fn a_subscriber_here_sees_frames_from_there_and_survives_its_end() {
    let ground = Ground::new().await;
    let here = Gateway::on(ground.clone(), |_| {}).await;
    let mut there = Gateway::on(ground.clone(), |options| options.drain = std::time::Duration::ZERO).await;
    let id = here.submit().await;
    let mut worker = here.worker().await;
    worker.gateway = Some(there.url.clone());
    let claim = worker.claim().await;
    there.hub.publish(Frame { task: claim.task.id, attempt: 1, what: progress(0.5) });

    let mut reader = Reader::new(here.get(&format!("/api/v1/tasks/{id}/events")).send().await.unwrap());
    let mut states = Vec::new();
    let fraction = loop {
        let (_, name, data) = reader.next().await.unwrap();
        match name.as_str() {
            "progress" => break data["fraction"].clone(),
            _ => states.push(data["kind"].clone()),
        }
    };
    assert_eq!((fraction, states.len()), (0.5.into(), 2));
    there.hub.publish(Frame { task: claim.task.id, attempt: 1, what: progress(0.75) });
    let (_, name, data) = reader.next().await.unwrap();
    assert_eq!((name.as_str(), &data["fraction"]), ("progress", &0.75.into()));

    // The other gateway is gone, and every state still arrives.
    there.stop.cancel();
    (&mut there.running).await.unwrap();
    worker.complete(&claim, b"x").await;
    let (_, name, data) = reader.next().await.unwrap();
    assert_eq!((name.as_str(), &data["kind"]), ("state", &"completed".into()));
    assert_eq!(reader.next().await, None);
}

#[tokio::test]
async fn another_gateway_is_told_everything_that_comfyui_said() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let said = |attempt, kind: &str| {
        let what = FrameKind::Message { kind: kind.to_owned(), data: "{\"prompt_id\": \"p\"}".to_owned() };
        let task = id.parse().unwrap();
        gateway.hub.publish(Frame { task, attempt, what });
    };
    let picture = |event| FrameKind::Binary { event, bytes: bytes::Bytes::from(vec![0; 3 << 20]) };
    for kind in ["execution_start", "progress", "progress", "executed"] {
        said(1, kind);
    }
    let cluster = gateway.store().installation().await.unwrap().cluster_key;
    let follow = async |attempt| {
        let path = format!("/internal/v1/frames/{id}?messages={attempt}");
        gateway.get(&path).bearer_auth(&cluster).send().await.unwrap()
    };
    let (mut first, mut second) = (follow(1).await, follow(2).await);
    gateway.hub.publish(Frame { task: id.parse().unwrap(), attempt: 1, what: progress(0.5) });
    gateway.hub.publish(Frame { task: id.parse().unwrap(), attempt: 1, what: picture(4) });
    said(2, "execution_start");
    gateway.hub.close(id.parse().unwrap());
    // Both streams end with the task.
    let told = async |answer: &mut reqwest::Response| {
        let (mut decoder, mut told) = (Decoder::default(), Vec::new());
        while let Some(piece) = answer.chunk().await.unwrap() {
            decoder.feed(&piece);
            while let Some(frame) = decoder.next_frame().unwrap() {
                told.push(match frame.what {
                    FrameKind::Message { kind, .. } => format!("{} {kind}", frame.attempt),
                    FrameKind::Binary { event, bytes } => format!("{event} {}", bytes.len()),
                    other => panic!("{other:?}"),
                });
            }
        }
        told
    };
    let all = ["1 execution_start", "1 progress", "1 executed", "4 3145728", "2 execution_start"];
    assert_eq!(told(&mut first).await, all);
    assert_eq!(told(&mut second).await, ["2 execution_start"]);
}

#[tokio::test]
async fn the_route_between_gateways_takes_the_cluster_key_and_nothing_else() {
    let gateway = Gateway::start().await;
    let id = gateway.submit().await;
    let path = format!("/internal/v1/frames/{id}");
    let key = gateway.ground.key("ops", &[remuda_core::Scope::Admin]).await;
    assert_eq!(gateway.get(&path).send().await.unwrap().status(), 401);
    assert_eq!(gateway.get(&path).bearer_auth(&key).send().await.unwrap().status(), 401);
    let cluster = gateway.store().installation().await.unwrap().cluster_key;
    assert_eq!(gateway.get(&path).bearer_auth(&cluster).send().await.unwrap().status(), 200);
    assert_eq!(gateway.get("/api/v1/tasks").bearer_auth(&cluster).send().await.unwrap().status(), 401);
}
