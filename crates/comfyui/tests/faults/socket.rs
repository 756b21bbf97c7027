//! The websocket goes bad.

use super::*;

#[tokio::test]
async fn a_mute_websocket_delays_and_does_not_hang() {
    let server = server().await;
    let session = session(&server).await;
    server.sim().faults().add(Fault::mute_websocket());
    for _ in 0..2 {
        let watch = session.submit(nap(0.2)).await.expect("accepted");
        assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    }
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_dropped_websocket_is_survived_and_reopened() {
    let server = server().await;
    let session = session(&server).await;
    let (mut watch, fault) = stuck(&server, &session).await;
    server.sim().faults().add(Fault::drop_websocket().times(1));
    let (mut lost, mut back, mut end) = (false, false, None);
    while let Some(event) = tokio::time::timeout(BOUND, watch.next()).await.expect("news") {
        match event {
            Event::Connection { up: false } => lost = true,
            Event::Connection { up: true } => {
                back = true;
                server.sim().faults().remove(fault);
            }
            Event::Finished(outcome) => end = Some(outcome),
            _ => {}
        }
    }
    assert!(lost && back, "lost {lost}, back {back}");
    assert!(matches!(end, Some(Outcome::Succeeded(_))));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn without_any_websocket_everything_still_ends() {
    let server = server().await;
    server.sim().faults().add(Fault::error(500).on("GET /ws"));
    let session = session(&server).await;
    assert!(!session.is_connected());
    let watch = session.submit(nap(0.1)).await.expect("accepted");
    assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn half_open_connections_are_noticed() {
    let server = server().await;
    let (ping, silence) = (Duration::from_millis(300), Duration::from_secs(2));
    let session = session_with(&server, SessionOptions { ping, silence, ..brisk() }).await;
    // The socket swallows everything, pings included; so does one connection that asks about the queue.
    let (mut watch, fault) = stuck(&server, &session).await;
    server.sim().faults().add(Fault::half_open_websocket().times(1));
    server.sim().faults().add(Fault::half_open().on("GET /jobs").times(1));
    let (mut lost, mut back, mut end) = (false, false, None);
    while let Some(event) = tokio::time::timeout(BOUND, watch.next()).await.expect("news") {
        match event {
            Event::Connection { up: false } => lost = true,
            Event::Connection { up: true } => {
                back = true;
                server.sim().faults().remove(fault);
            }
            Event::Finished(outcome) => end = Some(outcome),
            _ => {}
        }
    }
    assert!(matches!(end, Some(Outcome::Succeeded(_))), "{end:?}");
    assert!(lost && back, "the silence was noticed ({lost}) and a new socket opened ({back})");
    session.close().await;
    server.stop().await;
}

#[tokio::test]
async fn a_forgotten_client_id_is_replaced() {
    let server = server().await;
    let name = comfyui::ClientId::random();
    // The server's trap: when the older of two sockets with one id goes, the newer one is forgotten, and stays open.
    let url = format!("{}/ws?clientId={name}", server.url.replace("http://", "ws://"));
    let (older, _) = tokio_tungstenite::connect_async(&url).await.expect("a socket");
    let options = SessionOptions { client_id: Some(name.clone()), ..brisk() };
    let session = Session::open(server.client(), options).await.expect("a session");
    drop(older);
    let deadline = Instant::now() + BOUND;
    while session.client_id() == name {
        assert!(Instant::now() < deadline, "still believes in its name");
        let watch = session.submit(nap(1.0)).await.expect("accepted");
        assert!(matches!(end_of(watch, BOUND).await, Outcome::Succeeded(_)));
    }
    while !session.is_connected() {
        assert!(Instant::now() < deadline, "no socket under the new name");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // An end that is found by asking may come before the frames.
    let mut nodes = 0;
    while nodes != 2 {
        assert!(Instant::now() < deadline, "no frames under the new name: {nodes}");
        let mut watch = session.submit(nap(0.0)).await.expect("accepted");
        nodes = 0;
        while let Some(event) = watch.next().await {
            nodes += usize::from(matches!(event, Event::Node { .. }));
        }
    }
    session.close().await;
    server.stop().await;
}
