//! Servers that are not there, and what is said about it.
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

use std::time::Duration;

use littlehorse::{Client, Config, Ending, Error, Host, Identity, Protocol, Report, Value, proto};
use tokio::net::TcpListener;

fn config(host: &str, port: u16) -> Config {
    Config { host: host.into(), port, deadline: Duration::from_secs(20), ..Config::default() }
}

fn client(host: &str, port: u16) -> Client {
    Client::new(config(host, port)).unwrap()
}

fn report() -> Report {
    let run = proto::WfRunId { id: "run".into(), parent_wf_run_id: None };
    let task = proto::TaskRunId { wf_run_id: Some(run), task_guid: "0-1".into() };
    Report::new(&task, 0, &Ending::Success(Value::Null), None)
}

/// A port that nobody listens on, and that nobody is given.
const CLOSED: u16 = 1;

#[tokio::test]
async fn a_closed_port_is_said_to_be_one() {
    let error = client("127.0.0.1", CLOSED).server_version().await.unwrap_err();
    let told = error.to_string();
    assert!(told.starts_with(&format!("127.0.0.1:{CLOSED} does not answer: ")), "{told}");
    assert!(told.contains("Connection refused"), "{told}");
    assert!(error.is_transient());
}

#[tokio::test]
async fn a_name_that_cannot_be_resolved_is_told_with_who_gave_it() {
    let told = client("lh.invalid", 2023).server_version().await.unwrap_err().to_string();
    assert!(told.contains("the name \"lh.invalid\" of LHC_API_HOST cannot be resolved from here"), "{told}");
    let advertised = Host { name: "lh-server-0.invalid".into(), port: 2023 };
    let told = client("127.0.0.1", 1).report(Some(&advertised), &report()).await.unwrap_err().to_string();
    assert!(told.starts_with("lh-server-0.invalid:2023 does not answer: the server advertises"), "{told}");
    assert!(told.contains("LHS_ADVERTISED_LISTENERS"), "{told}");
}

#[tokio::test]
async fn a_server_that_says_nothing_is_given_up_at_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let config = Config { deadline: Duration::from_millis(300), ..config("127.0.0.1", port) };
    let error = Client::new(config).unwrap().server_version().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("127.0.0.1:{port} does not answer: no answer to GetServerVersion within 0.3 s")
    );
    assert!(matches!(error, Error::Unavailable { .. }));
}

/// What answers there is no gRPC.
#[tokio::test]
async fn a_server_that_speaks_something_else_is_away() {
    use tokio::io::AsyncWriteExt;
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = other.local_addr().unwrap().port();
    let answering = tokio::spawn(async move {
        let (mut socket, _) = other.accept().await.unwrap();
        socket.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        socket.shutdown().await.unwrap();
        other
    });
    let error = client("127.0.0.1", port).server_version().await.unwrap_err();
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    answering.await.unwrap();
}

#[tokio::test]
async fn an_output_that_is_too_large_is_not_sent() {
    let run = proto::WfRunId { id: "run".into(), parent_wf_run_id: None };
    let task = proto::TaskRunId { wf_run_id: Some(run), task_guid: "0-1".into() };
    let report = Report::new(&task, 0, &Ending::Success(Value::Bytes(vec![0; 1_000_000])), None);
    let client = client("127.0.0.1", CLOSED);
    for error in [
        client.report(None, &report).await.unwrap_err(),
        client.report_until_heard(None, &report).await.unwrap_err(),
    ] {
        assert!(matches!(error, Error::TooLarge { limit: littlehorse::REPORT_LIMIT, .. }), "{error}");
    }
}

#[test]
fn settings_that_cannot_work_are_told_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (none, text) = (folder.path().join("none.pem"), folder.path().join("text.pem"));
    std::fs::write(&text, "hello").unwrap();
    let tls = || Config { protocol: Protocol::Tls, ..config("localhost", 2023) };
    let refused = |config: Config| Client::new(config).unwrap_err().to_string();
    let told = refused(Config { ca_cert: Some(none.clone()), ..tls() });
    assert!(told.starts_with("LHC_CA_CERT: ") && told.contains("none.pem: No such file"), "{told}");
    let told = refused(Config { ca_cert: Some(text.clone()), ..tls() });
    assert!(told.ends_with("text.pem: is not a PEM file"), "{told}");
    let identity = Some(Identity { cert: text, key: none });
    let told = refused(Config { identity, ..tls() });
    assert!(told.starts_with("LHC_CLIENT_CERT: "), "{told}");
    let told = refused(Config { tenant: Some("a\nb".into()), ..config("localhost", 2023) });
    assert_eq!(told, "LHC_TENANT_ID: cannot be sent in a header");
    let told = refused(config("not a host", 2023));
    assert_eq!(told, "LHC_API_HOST: not a host:2023: is not an address");
}
