//! Odd sockets, and the end of the server.

use remuda_core::Scope;

use super::peer::{Peer, Sent, remaining};
use crate::support::Gateway;

#[tokio::test]
async fn a_socket_is_greeted_by_its_name_and_odd_sentences_do_no_harm() {
    let gateway = Gateway::start().await;
    let mut peer = Peer::open(&gateway, "/api/ws?clientId=api-prefix").await;
    let first = peer.text().await;
    assert_eq!((first["data"]["sid"].as_str(), remaining(&first)), (Some("api-prefix"), Some(0)));
    let mut sids = Vec::new();
    for path in ["/ws", "/ws?clientId="] {
        let first = Peer::open(&gateway, path).await.text().await;
        sids.push(first["data"]["sid"].as_str().unwrap().to_owned());
    }
    assert!(sids.iter().all(|sid| sid.len() == 32) && sids[0] != sids[1], "{sids:?}");

    let long = format!(r#"{{"type": "hello", "data": [{}0]}}"#, "0,".repeat(4000));
    for odd in ["not json", "[1]", long.as_str()] {
        let mut peer = Peer::connect(&gateway, "odd").await;
        peer.say(odd).await;
        let features = peer.introduce().await;
        assert_eq!(features["data"]["supports_preview_metadata"], true, "{odd} is no first sentence");
    }
    let mut late = Peer::connect(&gateway, "late").await;
    late.say(r#"{"type": "hello"}"#).await;
    late.say(r#"{"type": "feature_flags"}"#).await;
    late.ping().await;
    let answer = gateway.get("/ws").send().await.unwrap();
    assert_eq!(answer.status(), 400);
    assert!(answer.text().await.unwrap().starts_with("No WebSocket UPGRADE hdr"));
    let long = "x".repeat(2000);
    assert_eq!(
        gateway
            .get(&format!("/ws?clientId={long}"))
            .header("connection", "upgrade")
            .header("upgrade", "websocket")
            .header("sec-websocket-version", "13")
            .header("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ==")
            .send()
            .await
            .unwrap()
            .status(),
        400
    );
}

#[tokio::test]
async fn with_keys_a_socket_needs_one_and_hears_its_own_tenant_only() {
    let gateway = Gateway::start().await;
    let mut keys = Vec::new();
    for tenant in ["one", "two"] {
        keys.push(gateway.ground.key(tenant, &[Scope::Submit, Scope::Read]).await);
    }
    let url = format!("{}/ws?clientId=a", gateway.url.replacen("http", "ws", 1));
    assert!(tokio_tungstenite::connect_async(url).await.is_err());
    let mut peers = Vec::new();
    for key in &keys {
        let mut peer = Peer::open(&gateway, &format!("/ws?clientId=a&token={key}")).await;
        assert_eq!(remaining(&peer.text().await), Some(0));
        peers.push(peer);
    }
    let body = format!("{{\"prompt\": {}, \"client_id\": \"a\"}}", crate::support::GRAPH);
    let request =
        gateway.post("/prompt").bearer_auth(&keys[0]).header("content-type", "application/json").body(body);
    assert_eq!(request.send().await.unwrap().status(), 200);
    let texts = peers[0].until_some(|text| remaining(text) == Some(1)).await;
    assert!(texts.iter().all(|text| text["type"] == "status"), "{texts:?}");
    // Whatever it is told within two looks of its narrator, it is not of that prompt.
    while let Some(sent) = peers[1].next_within(std::time::Duration::from_millis(2500)).await {
        let Sent::Text(text) = sent else { panic!("{sent:?}") };
        assert_eq!((&text["type"], remaining(&text)), (&"status".into(), Some(0)));
    }
}

#[tokio::test]
async fn a_server_that_stops_says_so_and_does_not_wait_for_who_does_not_read() {
    let mut gateway = Gateway::start().await;
    let mut peer = Peer::connect(&gateway, "a").await;
    peer.text().await;
    let _silent = Peer::connect(&gateway, "b").await;
    gateway.stop.cancel();
    assert_eq!(peer.next().await, Sent::Closed(Some(1001)));
    tokio::time::timeout(crate::rig::BOUND, &mut gateway.running).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn a_socket_ends_with_its_key() {
    let gateway = Gateway::start().await;
    let both = [Scope::Submit, Scope::Read];
    let (mine, other) = (gateway.ground.key("one", &both).await, gateway.ground.key("one", &both).await);
    let mut peer = Peer::open(&gateway, &format!("/ws?clientId=a&token={mine}")).await;
    assert_eq!(remaining(&peer.text().await), Some(0));
    let hash = remuda_core::ApiKey::presented(mine).hash();
    let keys = gateway.store().keys().await.unwrap();
    let record = keys.into_iter().find(|record| record.hash == hash).expect("it was made");
    gateway.store().revoke_key(record.id).await.unwrap();
    // Something to tell, so that it is asked soon whether that arrived.
    let body = format!("{{\"prompt\": {}, \"client_id\": \"a\"}}", crate::support::GRAPH);
    let request = gateway.post("/prompt").bearer_auth(&other).body(body);
    assert_eq!(request.send().await.unwrap().status(), 200);
    loop {
        match peer.next().await {
            Sent::Closed(code) => break assert_eq!(code, Some(1008)),
            Sent::Text(_) | Sent::Binary(_) => {}
        }
    }
}
