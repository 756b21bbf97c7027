//! What a trusted proxy passes on of a stranger's own words.

use super::share::HANDSHAKE;
use crate::raw::{Answer, Client, FROM, answer_to, connect, head};
use crate::stage::Stage;
use crate::world::{PERMITS, RATE, make_key};
use anyhow::Result;
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// What the proxy truly says of the stranger.
const TRUE: &str = "203.0.113.7";
/// What the stranger says of itself: another address each time.
const FEIGNED: &str = "198.51.100.";
/// An answer that takes this long was held back.
const HELD_BACK: Duration = Duration::from_millis(400);
/// Where an honest guest asks from, by way of the same proxy.
const HONEST: &str = "192.0.2.33";

/// Where the stranger writes its feigned address.
const WAYS: [&str; 3] = [
    "the beginning of X-Forwarded-For",
    "X-Forwarded-For beside Forwarded",
    "Forwarded beside X-Forwarded-For",
];

/// The proxy adds to one header, and passes the other on as it came.
fn headers(way: usize, n: usize) -> Vec<(&'static str, String)> {
    let feigned = format!("{FEIGNED}{}", n % 250);
    match way {
        0 => vec![("x-forwarded-for", format!("{feigned}, {TRUE}"))],
        1 => vec![("x-forwarded-for", feigned), ("forwarded", format!("for={TRUE}"))],
        _ => vec![("x-forwarded-for", TRUE.to_owned()), ("forwarded", format!("for={feigned}"))],
    }
}

/// Guesses keys under an address that changes with every guess.
pub(crate) async fn feigned(stage: Stage) -> Result<Vec<String>> {
    let http = reqwest::Client::builder()
        .local_address(IpAddr::V4(FROM))
        .timeout(Duration::from_secs(30))
        .build()?;
    let mut wrong = Vec::new();
    for (way, place) in WAYS.into_iter().enumerate() {
        let mut slowed = false;
        for n in 0..100 {
            let mut guess = http.get(stage.url("/api/v1/tasks")).bearer_auth(format!("rmd_{n:064}"));
            for (name, value) in headers(way, n) {
                guess = guess.header(name, value);
            }
            let began = Instant::now();
            let status = guess.send().await?.status().as_u16();
            slowed = status == 429 || began.elapsed() > HELD_BACK;
            if slowed {
                break;
            }
        }
        if !slowed {
            wrong.push(format!("100 keys were tried under addresses that the guesser wrote into {place}"));
        }
    }
    if std::fs::read_to_string(&stage.log)?.contains(FEIGNED) {
        wrong.push("the log takes an address for true that the guesser wrote itself".to_owned());
    }
    // An honest guest of the same proxy is not slowed.
    let client = Client::new(&stage)?;
    let request = client.request(Method::GET, "/api/v1/tasks", &stage.keys.bob);
    let began = Instant::now();
    let answer = client.send(request.header("x-forwarded-for", HONEST)).await?;
    if !answer.is_success() || began.elapsed() > Duration::from_secs(5) {
        wrong.push(format!("an honest guest is answered {} after {:?}", answer.status, began.elapsed()));
    }
    Ok(wrong)
}

/// How many tenants share an address: with one permit each they would have all of them.
const TENANTS: usize = PERMITS + 4;
/// Nobody has more than three quarters.
const SHARE: usize = PERMITS / 4 * 3;
/// A request that is not refused by then has its permit. The server waits 10 s
/// for one to become free, and 5 s more for the rest of the body.
const REFUSED_BY: Duration = Duration::from_secs(20);

/// One tenant's request that keeps its permit.
struct Keeps {
    what: &'static str,
    setting: &'static str,
    /// The request of a tenant, by its key and the address that the proxy says.
    request: fn(&Stage, &str, &str) -> String,
    /// The same, done as an honest guest does it: the body, if there is one.
    whole: fn() -> Option<String>,
    path: &'static str,
    good: u16,
}

const KEEPS: [Keeps; 3] = [
    Keeps {
        what: "submissions",
        setting: "server.submissions",
        request: |stage, key, from| begun(stage, "/api/v1/tasks", key, from),
        whole: || {
            Some(json!({"payload": crate::probe::graph(1), "not_before": "2999-01-01T00:00:00Z"}).to_string())
        },
        path: "/api/v1/tasks",
        good: 201,
    },
    Keeps {
        what: "uploads",
        setting: "server.uploads",
        request: |stage, key, from| begun(stage, "/api/v1/assets?filename=a.json", key, from),
        whole: || Some("{}".to_owned()),
        path: "/api/v1/assets?filename=b.json",
        good: 201,
    },
    Keeps {
        what: "websockets",
        setting: "server.waiting",
        request: socket,
        whole: || None,
        path: "/ws",
        good: 101,
    },
];

/// A request whose body comes so far that it needs a permit, and no further.
fn begun(stage: &Stage, path: &str, key: &str, from: &str) -> String {
    let more =
        [("X-Forwarded-For", from), ("Content-Type", "application/json"), ("Content-Length", "1000000")];
    head("POST", path, &stage.server, key, &more) + r#"{"payload":""# + &"x".repeat(300 << 10)
}

fn socket(stage: &Stage, key: &str, from: &str) -> String {
    let mut more = HANDSHAKE.to_vec();
    more.push(("X-Forwarded-For", from));
    head("GET", "/ws", &stage.server, key, &more)
}

/// Takes a permit; the connection, and the answer if there is one.
async fn take(stage: &Stage, kind: &Keeps, key: &str) -> Result<(TcpStream, Option<(u16, String)>)> {
    let mut stream = connect(&stage.server).await?;
    let request = (kind.request)(stage, key, TRUE);
    let answer = answer_to(&mut stream, request.as_bytes(), REFUSED_BY).await;
    Ok((stream, answer.ok()))
}

/// Many tenants of one address take what they can get; a guest of another address still gets through.
pub(crate) async fn crowded(stage: Stage) -> Result<Vec<String>> {
    let key =
        |n: usize| make_key(&stage.remuda, &stage.data, "crowd", &format!("crowd-{n}"), &["submit", "read"]);
    let keys: Vec<String> = (0..TENANTS).map(key).collect::<Result<_>>()?;
    let mut wrong = Vec::new();
    for kind in &KEEPS {
        let taken = keys.iter().map(|key| take(&stage, kind, key));
        let taken: Vec<(TcpStream, Option<(u16, String)>)> =
            join_all(taken).await.into_iter().collect::<Result<_>>()?;
        let refused =
            taken.iter().filter(|(_, answer)| answer.as_ref().is_some_and(|(s, _)| *s == 429)).count();
        let held = taken.iter().filter(|(_, answer)| answer.as_ref().is_none_or(|(s, _)| *s == 101)).count();
        let (what, setting) = (kind.what, kind.setting);
        if held > SHARE || held == 0 || held + refused != TENANTS {
            wrong.push(format!(
                "of {PERMITS} {what} ({setting}) one address has {held} and is refused {refused} of {TENANTS}"
            ));
        }
        for _ in 0..3 {
            let status = as_guest(&stage, kind).await?;
            if status != kind.good {
                wrong.push(format!("meanwhile {} from another address is answered {status}", kind.path));
            }
        }
    }
    wrong.extend(rate(&stage, &keys).await?);
    wrong.dedup();
    Ok(wrong)
}

/// What an honest guest of the same proxy is answered.
async fn as_guest(stage: &Stage, kind: &Keeps) -> Result<u16> {
    let mut stream = connect(&stage.server).await?;
    let text = match (kind.whole)() {
        None => socket(stage, &stage.keys.bob, HONEST),
        Some(body) => {
            let length = body.len().to_string();
            let more = [
                ("X-Forwarded-For", HONEST),
                ("Content-Type", "application/json"),
                ("Content-Length", length.as_str()),
            ];
            head("POST", kind.path, &stage.server, &stage.keys.bob, &more) + &body
        }
    };
    Ok(answer_to(&mut stream, text.as_bytes(), Duration::from_secs(15)).await?.0)
}

async fn ask_from(client: &Client, key: &str, from: &str) -> Result<Answer> {
    let request = client.request(Method::GET, "/api/v1/tasks?limit=1", key);
    client.send(request.header("x-forwarded-for", from)).await
}

/// Every tenant stays within its own rate, and all of them together are far beyond that of their address.
async fn rate(stage: &Stage, keys: &[String]) -> Result<Vec<String>> {
    let client = Client::new(stage)?;
    // Twice the rate may come together: so many of one tenant are never too many.
    for _ in 0..RATE / 5 {
        let asked = keys.iter().flat_map(|key| std::iter::repeat_n(key, 10));
        let answers = join_all(asked.map(|key| ask_from(&client, key, TRUE))).await;
        let answers: Vec<_> = answers.into_iter().collect::<Result<_>>()?;
        let limited = answers.iter().find(|answer| answer.status == 429);
        if limited.is_some_and(|answer| answer.json()["limit"] == "server.rate") {
            let mut wrong = Vec::new();
            for _ in 0..5 {
                let answer = ask_from(&client, &stage.keys.bob, HONEST).await?;
                if !answer.is_success() {
                    wrong.push(format!("another address is answered {} {}", answer.status, answer.text()));
                }
            }
            return Ok(wrong);
        }
    }
    Ok(vec![format!("one address sent {} requests without a pause (server.rate)", RATE * 2 * keys.len())])
}
