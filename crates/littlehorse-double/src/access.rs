//! Who may come in: tenants, and tokens from a token server of our own.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The most bytes of a request for a token.
const FORM: usize = 64 * 1024;

/// Who gets tokens, and for how long.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OAuth {
    /// The client's id.
    pub client_id: String,
    /// Its secret.
    pub client_secret: String,
    /// How long a token is good.
    pub lifetime: Duration,
}

/// A server that gives out tokens for a client id and secret, named `token-1`, `token-2` and so on.
#[derive(Debug)]
pub struct TokenServer {
    address: SocketAddr,
    book: Arc<Book>,
}

#[derive(Debug)]
struct Book {
    oauth: OAuth,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    given: HashMap<String, Instant>,
    requests: Vec<TokenRequest>,
    fail: usize,
}

/// A request for a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenRequest {
    /// Its headers.
    pub headers: BTreeMap<String, String>,
    /// Its body.
    pub body: String,
    /// Whether a token was given.
    pub given: bool,
}

impl TokenServer {
    pub(crate) async fn start(
        oauth: OAuth,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let book = Arc::new(Book { oauth, inner: Mutex::default() });
        tasks.spawn(serve(listener, Arc::clone(&book), tasks.clone(), stop.clone()));
        Ok(Self { address, book })
    }

    /// Where tokens are to be had.
    pub fn url(&self) -> String {
        format!("http://{}/token", self.address)
    }

    /// The requests that came.
    pub fn requests(&self) -> Vec<TokenRequest> {
        self.book.lock().requests.clone()
    }

    /// No token that was given out is good any more.
    pub fn revoke(&self) {
        self.book.lock().given.clear();
    }

    /// The next requests are answered 500.
    pub fn fail(&self, times: usize) {
        self.book.lock().fail = times;
    }

    /// Whether a token is good, with or without the word `Bearer`.
    pub(crate) fn is_good(&self, authorization: &str) -> bool {
        let token = authorization.trim_start_matches("Bearer").trim();
        self.book.lock().given.get(token).is_some_and(|end| Instant::now() < *end)
    }
}

impl Book {
    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, headers: &http::HeaderMap, body: String) -> (StatusCode, String) {
        let credentials = format!("{}:{}", self.oauth.client_id, self.oauth.client_secret);
        let basic = format!("Basic {}", STANDARD.encode(credentials));
        let known =
            headers.get(header::AUTHORIZATION).is_some_and(|sent| sent.as_bytes() == basic.as_bytes());
        let asks = body.split('&').any(|field| field == "grant_type=client_credentials");
        let text = |value: &http::HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        let headers = headers.iter().map(|(name, value)| (name.as_str().to_owned(), text(value))).collect();
        let mut inner = self.lock();
        let fails = inner.fail > 0;
        inner.fail = inner.fail.saturating_sub(1);
        let given = known && asks && !fails;
        inner.requests.push(TokenRequest { headers, body, given });
        if fails {
            return (StatusCode::INTERNAL_SERVER_ERROR, r#"{"error": "server_error"}"#.to_owned());
        }
        if !given {
            return (StatusCode::UNAUTHORIZED, r#"{"error": "invalid_client"}"#.to_owned());
        }
        let token = format!("token-{}", inner.requests.iter().filter(|request| request.given).count());
        inner.given.insert(token.clone(), Instant::now() + self.oauth.lifetime);
        let answer = serde_json::json!({
            "access_token": token, "token_type": "Bearer", "expires_in": self.oauth.lifetime.as_secs(),
        });
        (StatusCode::OK, answer.to_string())
    }
}

async fn serve(listener: TcpListener, book: Arc<Book>, tasks: TaskTracker, stop: CancellationToken) {
    loop {
        let accepted = tokio::select! {
            () = stop.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let Ok((socket, _)) = accepted else { continue };
        let (book, stop) = (Arc::clone(&book), stop.clone());
        tasks.spawn(async move {
            let service = service_fn(move |request| token(Arc::clone(&book), request));
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(socket), service);
            tokio::select! {
                () = stop.cancelled() => {}
                // A client that breaks its connection off has told all it had to tell.
                _ = connection => {}
            }
        });
    }
}

async fn token(book: Arc<Book>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, FORM).collect().await {
        Ok(body) => String::from_utf8_lossy(&body.to_bytes()).into_owned(),
        Err(_) => String::new(),
    };
    let (status, answer) = book.answer(&head.headers, body);
    let mut response = Response::new(Full::new(Bytes::from(answer)));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    Ok(response)
}
