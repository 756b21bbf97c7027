//! Clients that send made requests, one after the other.

use super::make::{Bunch, Made, flip, make};
use super::report::FuzzReport;
use super::routes::Route;
use super::values::Known;
use crate::dice::Dice;
use crate::raw::{FROM, answer_to, connect};
use crate::stage::Stage;
use anyhow::Result;
use futures_util::StreamExt;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Where requests with wrong keys come from: an address may be slowed for them.
const GUESSER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 67);
/// Streams and sockets never end by themselves; their beginning is enough.
const GLIMPSE: Duration = Duration::from_millis(100);
/// More than a server may hold a request: 25 s for workers, 30 s for those who ask to wait.
const HANG: Duration = Duration::from_secs(45);
const LARGEST: usize = 1 << 20;

/// What all lanes share.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) stage: Stage,
    pub(super) routes: Vec<Route>,
    pub(super) known: Known,
    pub(super) bunch: Bunch,
    pub(super) left: AtomicUsize,
}

/// Sends requests until there are none left.
pub(super) async fn lane(ground: Arc<Ground>, mut dice: Dice) -> Result<FuzzReport> {
    let client = |from: Ipv4Addr| {
        let client = reqwest::Client::builder().local_address(IpAddr::V4(from)).timeout(HANG);
        client.redirect(reqwest::redirect::Policy::none()).build()
    };
    let (client, guesser) = (client(FROM)?, client(GUESSER)?);
    let mut report = FuzzReport::default();
    let take = |left: usize| left.checked_sub(1);
    while ground.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_ok() {
        let route = dice.pick(&ground.routes).clone();
        let made = make(&route, &ground.known, &ground.bunch, &mut dice);
        let began = Instant::now();
        let (status, unknown) = match dice.chance(3) {
            true => raw(&ground.stage, &made, &mut dice).await,
            false => send(&ground.stage, if made.wrong_key { &guesser } else { &client }, &made).await,
        };
        let took = began.elapsed();
        report.requests += 1;
        report.slowest_ms = report.slowest_ms.max(took.as_secs_f64() * 1e3);
        *report.by_status.entry(status).or_default() += 1;
        let past = status != 0
            && !unknown
            && !matches!(status, 400 | 401 | 403 | 405 | 408 | 411 | 413..=415 | 417 | 422 | 429 | 431 | 503);
        report.past += u64::from(past);
        let counts = report.by_route.entry(format!("{} {}", route.method, route.path)).or_default();
        counts.0 += 1;
        counts.1 += u64::from(past);
        let shown: String = format!("{} {}", made.method, made.target).chars().take(300).collect();
        let body: String = String::from_utf8_lossy(&made.body).chars().take(400).collect();
        if status >= 500 && status != 503 && status != 507 && report.violations.len() < 20 {
            report.violations.push(format!("{status} for {shown} {:?} {body}", made.headers));
        }
        if took >= HANG && !asks_to_wait(&made) && report.violations.len() < 20 {
            report.violations.push(format!("no answer within {} s for {shown} {body}", HANG.as_secs()));
        }
        if matches!(status, 429 | 503) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(report)
}

/// Whether a synchronous request may be held for longer than the others, because it says so itself: by then another guest of this
/// ground may have claimed what it waits for.
fn asks_to_wait(made: &Made) -> bool {
    let said: serde_json::Value = serde_json::from_slice(&made.body).unwrap_or_default();
    said["timeout"].as_f64().is_some_and(|seconds| seconds > 30.0)
}

/// The status, and whether there is no such route.
async fn send(stage: &Stage, client: &reqwest::Client, made: &Made) -> (u16, bool) {
    let Ok(method) = reqwest::Method::from_bytes(made.method.as_bytes()) else { return (0, false) };
    let mut request = client.request(method, stage.url(&made.target)).body(made.body.clone());
    for (name, value) in &made.headers {
        request = request.header(name, value);
    }
    let Ok(answer) = request.send().await else { return (0, false) };
    let status = answer.status().as_u16();
    let kind = answer.headers().get("content-type").and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let endless = kind.starts_with("text/event-stream") || made.target.contains("/frames/") || status == 101;
    let mut pieces = answer.bytes_stream();
    let mut text = Vec::new();
    let read = async {
        while let Some(Ok(piece)) = pieces.next().await {
            text.extend_from_slice(&piece);
            if text.len() > LARGEST {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(if endless { GLIMPSE } else { HANG }, read).await;
    let unknown = status == 404 && text.windows(13).any(|part| part == b"no_such_route");
    (status, unknown)
}

/// The same as bytes, some of which are not what they were.
async fn raw(stage: &Stage, made: &Made, dice: &mut Dice) -> (u16, bool) {
    let mut head = format!("{} {} HTTP/1.1\r\nHost: {}\r\n", made.method, made.target, stage.server);
    for (name, value) in &made.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("Content-Length: {}\r\nConnection: close\r\n\r\n", made.body.len()));
    let mut bytes = head.into_bytes();
    flip(&mut bytes, dice);
    bytes.extend_from_slice(&made.body);
    let Ok(mut stream) = connect(&stage.server).await else { return (0, false) };
    // Half of them never end: the server's patience is not what is tried here.
    match answer_to(&mut stream, &bytes, Duration::from_millis(500)).await {
        Ok((status, text)) => (status, status == 404 && text.contains("no_such_route")),
        Err(_) => (0, false),
    }
}
