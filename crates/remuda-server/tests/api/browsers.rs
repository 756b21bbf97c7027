//! What answers tell a browser, and what a browser is not allowed to do for others.

use std::time::{Duration, Instant};

use remuda_core::Scope;
use reqwest::header::HeaderMap;
use reqwest::{Client, redirect};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::support::{BOUND, Gateway, Ground};

fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
}

#[tokio::test]
async fn no_answer_is_guessed_at_and_no_page_is_without_a_policy() {
    let ground = Ground::new().await;
    let key = ground.key("default", &[Scope::Submit, Scope::Read]).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    for path in ["/", "/live", "/ready", "/health", "/docs/", "/docs/swagger-ui.css", "/nowhere", "/queue"] {
        for key in [Some(&key), None] {
            let request = gateway.get(path).header("accept", "text/html");
            let answer = match key {
                Some(key) => request.bearer_auth(key).send().await.unwrap(),
                None => request.send().await.unwrap(),
            };
            let told = answer.headers();
            assert_eq!(text(told, "x-content-type-options"), "nosniff", "{path}");
            assert!(!text(told, "referrer-policy").is_empty(), "{path}");
            if text(told, "content-type").starts_with("text/html") {
                let policy = text(told, "content-security-policy");
                assert!(policy.contains("frame-ancestors"), "{path}: {policy}");
            }
        }
    }
    let docs = gateway.get("/docs/").bearer_auth(&key).send().await.unwrap();
    let policy = text(docs.headers(), "content-security-policy").to_owned();
    assert!(policy.contains("default-src 'self'") && !policy.contains("script-src"), "{policy}");
    let page = docs.text().await.unwrap();
    // The policy allows no scripts in the page itself, and there are none.
    for script in page.split("<script").skip(1) {
        assert!(script.split('>').next().unwrap().contains("src="), "{page}");
    }
}

#[tokio::test]
async fn a_page_of_another_site_signs_nobody_in() {
    let ground = Ground::new().await;
    let key = ground.key("default", &[Scope::Read]).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let http = Client::builder().redirect(redirect::Policy::none()).build().unwrap();
    let open = async |token: &str, more: &[(&'static str, &str)]| {
        let mut request = http.get(format!("{}/?token={token}", gateway.url)).header("accept", "text/html");
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        let answer = request.send().await.unwrap();
        let cookie = answer.headers().contains_key("set-cookie");
        (answer.status().as_u16(), cookie, answer.text().await.unwrap())
    };
    let own = format!("{}/", gateway.url);
    let fine: [&[(&'static str, &str)]; 4] =
        [&[], &[("sec-fetch-site", "none")], &[("sec-fetch-site", "same-origin")], &[("referer", &own)]];
    for more in fine {
        let (status, cookie, _) = open(&key, more).await;
        assert_eq!((status, cookie), (303, true), "{more:?}");
    }
    let foreign: [&[(&'static str, &str)]; 5] = [
        &[("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
        &[("referer", "http://evil.example/page")],
        &[("origin", "http://evil.example")],
        &[("origin", "null")],
    ];
    for more in foreign {
        for token in [&*key, "rmd_wrong"] {
            let (status, cookie, page) = open(token, more).await;
            assert_eq!((status, cookie), (403, false), "{more:?}");
            assert!(page.contains("another site") && page.contains("name=\"token\""), "{page}");
        }
    }
    let (status, cookie, page) = open("rmd_wrong", &[]).await;
    assert_eq!((status, cookie), (401, false));
    assert!(page.contains("This key is not known, or was revoked."), "{page}");
}

#[tokio::test]
async fn wrong_keys_are_counted_and_answered_slowly_and_right_ones_never() {
    let ground = Ground::new().await;
    let key = ground.key("default", &[Scope::Admin]).await;
    let delay = Duration::from_millis(300);
    let gateway = Gateway::on(ground, |options| {
        options.limits.login_failures = 3;
        options.limits.login_delay = delay;
    })
    .await;
    for n in 0..5 {
        let began = Instant::now();
        let wrong = gateway.get("/api/v1/tasks").bearer_auth("rmd_wrong").send().await.unwrap();
        assert_eq!(wrong.status(), 401);
        assert!(n < 3 || began.elapsed() >= delay, "{n}");
    }
    // Nobody who shows no key at all is guessing.
    assert_eq!(gateway.get("/api/v1/tasks").send().await.unwrap().status(), 401);
    let metrics = gateway.get("/metrics").bearer_auth(&key).send().await.unwrap().text().await.unwrap();
    assert!(metrics.contains("remuda_login_failures_total 5"), "{metrics}");
    // A right key waits for nobody, even while wrong ones are held back.
    let slow = gateway.get("/api/v1/tasks").bearer_auth("rmd_wrong").send();
    let slow = tokio::spawn(slow);
    assert_eq!(gateway.get("/api/v1/tasks").bearer_auth(&key).send().await.unwrap().status(), 200);
    slow.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_host_is_one_name() {
    let gateway = Gateway::start().await;
    let address = gateway.url.strip_prefix("http://").unwrap();
    let ask = async |head: &str| {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /api/v1/tasks HTTP/1.1\r\n{head}connection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(BOUND, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
        answer.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(ask("host: localhost\r\n").await, "200");
    for list in [
        "host: localhost, evil.example\r\n",
        "host: evil.example, localhost\r\n",
        "host: localhost\r\nhost: evil.example\r\n",
        "host: localhost evil.example\r\n",
        "host: evil.example@localhost\r\n",
    ] {
        assert_eq!(ask(list).await, "400", "{list}");
    }
}
