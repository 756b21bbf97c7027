//! What a trusted proxy passes on of a stranger's own words.

use crate::raw::{Client, FROM};
use crate::stage::Stage;
use anyhow::Result;
use reqwest::Method;
use std::net::IpAddr;
use std::time::{Duration, Instant};

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
