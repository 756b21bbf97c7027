//! A ComfyUI behind a TLS proxy, as rented GPUs have it: requests and the websocket both go through.

#![allow(clippy::expect_used, reason = "test code")]

mod support;

use std::sync::Arc;

use comfyui::{Client, Error, Session, SessionOptions};
use comfyui_sim::SimConfig;
use support::{Server, picture, request};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Made for 127.0.0.1 and these tests; its key is beside it, so nobody should trust it elsewhere.
const PROXY: &[u8] = include_bytes!("data/proxy.pem");
/// Has nothing to do with the server's.
const STRANGER: &[u8] = include_bytes!("data/stranger.pem");

/// Takes TLS off and passes the bytes on.
async fn proxy(
    listener: TcpListener,
    tls: TlsAcceptor,
    to: std::net::SocketAddr,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((stream, _)) = accepted else { return };
        let (tls, stop) = (tls.clone(), stop.clone());
        tasks.spawn(async move {
            let pass = async {
                let mut outer = tls.accept(stream).await?;
                let mut inner = TcpStream::connect(to).await?;
                tokio::io::copy_bidirectional(&mut outer, &mut inner).await
            };
            tokio::select! {
                () = stop.cancelled() => {}
                _ = pass => {}
            }
        });
    }
}

#[tokio::test]
async fn a_server_behind_tls_is_reached_when_its_authority_is_trusted() {
    let server = Server::simulated(SimConfig::default()).await;
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("data/proxy.key.pem")).expect("a key");
    let certificate = CertificateDer::from_pem_slice(PROXY).expect("a certificate");
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("protocol versions")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a configuration");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("https://{}", listener.local_addr().expect("an address"));
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tasks.spawn(proxy(listener, acceptor, server.sim().addr(), stop.clone(), tasks.clone()));
    tasks.close();

    let stranger = Client::builder(&url).retries(0).trust(STRANGER).build().expect("an address");
    let error = stranger.system_stats().await.expect_err("an unknown authority");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");

    let client = Client::builder(&url).trust(PROXY).build().expect("an address");
    let session = Session::open(client, SessionOptions::default()).await.expect("a session");
    assert!(session.is_connected(), "the websocket goes through TLS, too");
    session.submit(request(&picture())).await.expect("accepted").finish().await.expect("success");
    session.close().await;
    stop.cancel();
    tasks.wait().await;
    server.stop().await;
}

#[test]
fn a_bad_certificate_is_a_clear_error() {
    let error =
        Client::builder("https://127.0.0.1").trust(b"not a certificate").build().expect_err("refused");
    assert!(error.to_string().contains("no certificate in the PEM text"), "{error}");
}
