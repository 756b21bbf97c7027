//! The socket through which `remuda keys` speaks to a running server.

use std::os::unix::fs::PermissionsExt as _;

use remuda_core::{KeyId, Scope, Tenant};
use remuda_frames::FrameHub;
use remuda_server::keys_socket::{CallError, KeyReply, KeyRequest, NAME, call, serve};
use remuda_server::{Server, ServerOptions};
use remuda_testbed::wait;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::support::{BOUND, Ground};

#[tokio::test]
async fn keys_are_made_listed_and_revoked_while_the_server_runs_and_count_at_once() {
    let ground = Ground::new().await;
    let data = ground.dir.path().to_owned();
    assert!(matches!(call(&data, &KeyRequest::List).await, Err(CallError::NotRunning(_))));
    // A socket that a killed process left is replaced.
    drop(std::os::unix::net::UnixListener::bind(data.join(NAME)).unwrap());
    assert!(matches!(call(&data, &KeyRequest::List).await, Err(CallError::NotRunning(_))));

    let server =
        Server::new(ServerOptions::new(ground.store.clone(), ground.files.clone(), FrameHub::default()));
    let keys = server.keys();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/api/v1/tasks", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let running = tokio::spawn(server.run(listener, stop.clone()));
    let answering = tokio::spawn({
        let (data, stop) = (data.clone(), stop.clone());
        async move { serve(&data, keys, stop).await }
    });
    let there = async || call(&data, &KeyRequest::List).await.ok();
    wait::until("the socket", BOUND, there).await.unwrap();
    let mode = std::fs::metadata(data.join(NAME)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    assert_eq!(reqwest::get(&url).await.unwrap().status(), 200);
    let make = KeyRequest::Make {
        name: "ci".to_owned(),
        tenant: Tenant::new("team").unwrap(),
        scopes: [Scope::Read].into(),
    };
    let KeyReply::Made { key, record } = call(&data, &make).await.unwrap() else { panic!() };
    assert_eq!(reqwest::get(&url).await.unwrap().status(), 401, "at once");
    let http = reqwest::Client::new();
    assert_eq!(http.get(&url).bearer_auth(&key).send().await.unwrap().status(), 200);

    let KeyReply::Keys { keys } = call(&data, &KeyRequest::List).await.unwrap() else { panic!() };
    assert_eq!((keys.len(), keys[0].id, keys[0].name.as_str()), (1, record.id, "ci"));
    call(&data, &KeyRequest::Revoke { id: record.id }).await.unwrap();
    assert_eq!(http.get(&url).bearer_auth(&key).send().await.unwrap().status(), 401, "at once");
    let unknown = KeyRequest::Revoke { id: KeyId(uuid::Uuid::nil()) };
    assert!(matches!(call(&data, &unknown).await, Err(CallError::Refused(_))));
    let useless =
        KeyRequest::Make { name: "x".to_owned(), tenant: Tenant::default_tenant(), scopes: [].into() };
    assert!(matches!(call(&data, &useless).await, Err(CallError::Refused(_))));

    stop.cancel();
    running.await.unwrap();
    answering.await.unwrap().unwrap();
    assert!(!data.join(NAME).exists());
}
