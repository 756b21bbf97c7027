//! TLS, client certificates and tokens, at a double of the server.
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

use std::path::{Path, PathBuf};
use std::time::Duration;

use littlehorse::{Client, Config, Error, Identity, Intake, IntakeOptions, Oauth, Protocol, Secret};
use littlehorse_double::{Double, Event, Method, NewRun, OAuth, Options, Tls};
use tokio::time::timeout;

const SOON: Duration = Duration::from_secs(120);

/// Made for these tests. The keys are beside the certificates, so nobody should trust them elsewhere.
fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn text(name: &str) -> String {
    std::fs::read_to_string(data(name)).unwrap()
}

async fn tls_double(clients: bool, oauth: Option<OAuth>) -> Double {
    let clients = clients.then(|| text("ca.pem"));
    let tls = Tls { certificate: text("server.pem"), key: text("server.key.pem"), clients };
    let options = Options { tls: Some(tls), oauth, advertised: "localhost".into(), ..Options::default() };
    Double::start(options).await.unwrap()
}

fn tls_config(double: &Double, ca: &str) -> Config {
    Config {
        host: "localhost".into(),
        port: double.port(0),
        protocol: Protocol::Tls,
        ca_cert: Some(data(ca)),
        ..Config::default()
    }
}

async fn asked(config: Config) -> Result<(), Error> {
    timeout(SOON, Client::new(config).unwrap().server_version()).await.unwrap().map(drop)
}

#[tokio::test]
async fn a_server_is_trusted_by_its_authority_and_its_name() {
    let double = tls_double(false, None).await;
    asked(tls_config(&double, "ca.pem")).await.unwrap();
    let told = asked(tls_config(&double, "stranger.pem")).await.unwrap_err().to_string();
    assert!(told.contains("UnknownIssuer"), "{told}");
    let by_address = Config { host: "127.0.0.1".into(), ..tls_config(&double, "ca.pem") };
    let told = asked(by_address).await.unwrap_err().to_string();
    assert!(told.contains("not valid for name"), "{told}");
    // The machine does not know this authority.
    let told =
        asked(Config { ca_cert: None, ..tls_config(&double, "ca.pem") }).await.unwrap_err().to_string();
    assert!(told.contains("UnknownIssuer"), "{told}");
    let plain = Config { protocol: Protocol::Plaintext, ..tls_config(&double, "ca.pem") };
    assert!(matches!(asked(plain).await, Err(Error::Unavailable { .. })));
}

#[tokio::test]
async fn a_client_certificate_opens_the_door() {
    let double = tls_double(true, None).await;
    let without = asked(tls_config(&double, "ca.pem")).await;
    assert!(matches!(without, Err(Error::Unavailable { .. })), "{without:?}");
    let identity = Identity { cert: data("client.pem"), key: data("client.key.pem") };
    let config = Config { identity: Some(identity), ..tls_config(&double, "ca.pem") };
    asked(config.clone()).await.unwrap();
    // The hosts that the server names are reached the same way.
    let intake = Intake::open(Client::new(config).unwrap(), IntakeOptions::new("execute-comfyui-workflow"));
    double.schedule(NewRun::json("run", "{}"));
    timeout(SOON, intake.take()).await.unwrap().unwrap();
}

fn oauth(lifetime: Duration) -> OAuth {
    OAuth { client_id: "comfy-worker".into(), client_secret: "s3cr3t".into(), lifetime }
}

fn with_tokens(config: Config, double: &Double) -> Config {
    let oauth = Oauth {
        client_id: "comfy-worker".into(),
        client_secret: Secret::new("s3cr3t"),
        token_url: double.tokens().unwrap().url(),
    };
    Config { oauth: Some(oauth), ..config }
}

fn sent_tokens(double: &Double) -> Vec<String> {
    let token = |event: &Event| event.metadata().and_then(|sent| sent.get("authorization").cloned());
    double.journal().events().iter().filter_map(token).collect()
}

/// Many calls at once, one token: and it is asked for as the recorded SDK asks.
#[tokio::test]
async fn one_token_serves_many_calls() {
    let double = tls_double(false, Some(oauth(Duration::from_secs(300)))).await;
    let client = Client::new(with_tokens(tls_config(&double, "ca.pem"), &double)).unwrap();
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let client = client.clone();
        calls.spawn(async move { client.server_version().await });
    }
    for call in calls.join_all().await {
        call.unwrap();
    }
    assert_eq!(sent_tokens(&double), vec!["Bearer token-1"; 20]);
    let requests = double.tokens().unwrap().requests();
    assert_eq!(requests.len(), 1);
    assert_eq!(requests[0].body, "grant_type=client_credentials");
    assert_eq!(requests[0].headers["authorization"], "Basic Y29tZnktd29ya2VyOnMzY3IzdA==");
    assert_eq!(requests[0].headers["content-type"], "application/x-www-form-urlencoded");
}

/// A token service in trouble is not asked by everybody in turn.
#[tokio::test]
async fn calls_that_wait_for_one_token_share_its_failure() {
    let double = tls_double(false, Some(oauth(Duration::from_secs(300)))).await;
    let client = Client::new(with_tokens(tls_config(&double, "ca.pem"), &double)).unwrap();
    double.tokens().unwrap().fail(1);
    let failed = futures_util::future::join_all((0..20).map(|_| client.server_version())).await;
    assert!(
        failed.iter().all(|call| matches!(call, Err(Error::Token { transient: true, .. }))),
        "{failed:?}"
    );
    assert_eq!(double.tokens().unwrap().requests().len(), 1);
    client.server_version().await.unwrap();
}

#[tokio::test]
async fn a_token_that_is_refused_is_renewed_once() {
    let double = tls_double(false, Some(oauth(Duration::from_secs(300)))).await;
    let client = Client::new(with_tokens(tls_config(&double, "ca.pem"), &double)).unwrap();
    client.get_task_run(&Default::default()).await.unwrap_err();
    double.tokens().unwrap().revoke();
    let error = client.get_task_run(&Default::default()).await.unwrap_err();
    assert!(!matches!(error, Error::Refused { code: tonic::Code::Unauthenticated, .. }), "{error}");
    assert_eq!(sent_tokens(&double), ["Bearer token-1", "Bearer token-1", "Bearer token-2"]);
}

/// A token whose life is over before it arrives is never good: the refusal is told, after one renewal.
#[tokio::test]
async fn a_server_that_likes_no_token_is_not_asked_for_ever() {
    let double = tls_double(false, Some(oauth(Duration::ZERO))).await;
    let client = Client::new(with_tokens(tls_config(&double, "ca.pem"), &double)).unwrap();
    let error = client.get_task_run(&Default::default()).await.unwrap_err();
    assert!(matches!(error, Error::Refused { code: tonic::Code::Unauthenticated, .. }), "{error}");
    assert_eq!(double.journal().calls(Method::GetTaskRun), 2);
}

#[tokio::test]
async fn a_token_service_that_fails_is_told() {
    let double = tls_double(false, Some(oauth(Duration::from_secs(300)))).await;
    let config = with_tokens(tls_config(&double, "ca.pem"), &double);
    double.tokens().unwrap().fail(1);
    let client = Client::new(config.clone()).unwrap();
    let error = client.server_version().await.unwrap_err();
    assert!(matches!(error, Error::Token { transient: true, .. }), "{error:?}");
    client.server_version().await.unwrap();

    let mut wrong = config;
    wrong.oauth.as_mut().unwrap().client_secret = Secret::new("guess");
    let error = Client::new(wrong).unwrap().server_version().await.unwrap_err();
    assert!(matches!(error, Error::Token { transient: false, .. }), "{error:?}");
    assert!(error.to_string().contains("401 Unauthorized: {\"error\": \"invalid_client\"}"), "{error}");
    assert!(!error.to_string().contains("guess"));
}

/// Java does so, too; Python sends none, and is refused.
#[tokio::test]
async fn a_token_is_sent_in_clear_if_it_must_be() {
    let options = Options { oauth: Some(oauth(Duration::from_secs(300))), ..Options::default() };
    let double = Double::start(options).await.unwrap();
    let config = Config { host: "127.0.0.1".into(), port: double.port(0), ..Config::default() };
    Client::new(with_tokens(config, &double)).unwrap().server_version().await.unwrap();
    assert_eq!(sent_tokens(&double), ["Bearer token-1"]);
}
