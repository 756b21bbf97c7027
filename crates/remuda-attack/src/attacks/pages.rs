//! What a web page could make a browser do or show.

use crate::hostile::{Hostile, Lie};
use crate::raw::{Answer, Client, answer_to, connect, head};
use crate::stage::Stage;
use anyhow::{Context, Result};
use reqwest::Method;
use std::time::{Duration, Instant};

const WITHIN: Duration = Duration::from_secs(10);

/// Whether a browser would run what is in this answer on our origin.
fn could_run(answer: &Answer) -> bool {
    let kind = answer.header("content-type").to_ascii_lowercase();
    let active =
        ["html", "svg", "xml", "xhtml", "pdf"].iter().any(|word| kind.contains(word)) || kind.is_empty();
    let download = answer.header("content-disposition").starts_with("attachment");
    let sandboxed = answer.header("content-security-policy").contains("sandbox");
    active && !download && !sandboxed
}

pub(crate) async fn worker_html(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let lies = ["/extensions/evil", "/templates", "/api/workflow_templates", "/workflow_templates"];
    let _hostile =
        Hostile::start(stage.port, &stage.behind, lies.into_iter().map(|route| (route, Lie::Page)).collect())
            .await?;
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut wrong = Vec::new();
    let mut seen = 0;
    while seen == 0 && Instant::now() < deadline {
        for path in ["/extensions/evil/x.html", "/templates/x.html", "/workflow_templates/evil/x.html"] {
            let answer = client.get(path, &stage.keys.mallory).await?;
            if !answer.text().contains("alert") {
                continue;
            }
            seen += 1;
            if could_run(&answer) {
                wrong.push(format!("{path} is a page of the worker's on the API's origin"));
            }
            if answer.header("x-content-type-options") != "nosniff" {
                wrong.push(format!("{path} has no nosniff"));
            }
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    anyhow::ensure!(seen > 0, "the gateway never asked the worker for its page");
    Ok(wrong)
}

pub(crate) async fn nosniff(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = &stage.keys.mallory;
    let page = b"<!doctype html><script>alert(1)</script>".to_vec();
    let mut wrong = Vec::new();
    for (name, kind) in
        [("x.html", "text/html"), ("x.svg", "image/svg+xml"), ("x.xhtml", "application/xhtml+xml"), ("x", "")]
    {
        let request =
            client.request(Method::POST, &format!("/api/v1/assets?filename={name}"), key).body(page.clone());
        let kind = if kind.is_empty() { "application/octet-stream" } else { kind };
        let made = client.send(request.header("content-type", kind)).await?;
        if let Some(sha) = made.json()["sha256"].as_str() {
            look(&client, &format!("/api/v1/assets/{sha}"), key, &mut wrong).await?;
        }
        client.upload("/upload/image", key, &[], name, page.clone()).await?;
        look(&client, &format!("/view?filename={name}&type=input"), key, &mut wrong).await?;
        let request = client.request(Method::POST, &format!("/userdata/{name}"), key).body(page.clone());
        client.send(request).await?;
        look(&client, &format!("/userdata/{name}"), key, &mut wrong).await?;
    }
    // Pages of our own: the one that asks for a key, and the description of the API.
    for (path, key) in [("/", ""), ("/docs/", key.as_str())] {
        let request = client.request(Method::GET, path, key).header("accept", "text/html");
        let answer = client.send(request).await?;
        if answer.header("content-type").contains("html") {
            for header in ["x-content-type-options", "content-security-policy"] {
                if answer.header(header).is_empty() {
                    wrong.push(format!("the page {path} has no {header}"));
                }
            }
        }
    }
    Ok(wrong)
}

async fn look(client: &Client, path: &str, key: &str, wrong: &mut Vec<String>) -> Result<()> {
    let answer = client.get(path, key).await?;
    if answer.is_success() && could_run(&answer) {
        let kind = answer.header("content-type");
        wrong.push(format!("{path} comes back as {kind:?} and would run on the API's origin"));
    }
    if answer.is_success() && answer.header("x-content-type-options") != "nosniff" {
        wrong.push(format!("{path} has no nosniff"));
    }
    Ok(())
}

pub(crate) async fn cookie(stage: Stage) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let path = format!("/?token={}", stage.keys.mallory);
    let foreign: [&[(&str, &str)]; 4] = [
        &[("Origin", "http://evil.example")],
        &[("Sec-Fetch-Site", "cross-site"), ("Sec-Fetch-Mode", "navigate")],
        &[("Sec-Fetch-Site", "same-site"), ("Sec-Fetch-Mode", "no-cors"), ("Sec-Fetch-Dest", "image")],
        &[("Origin", "null")],
    ];
    for more in foreign {
        let more = [more, &[("Accept", "text/html"), ("Connection", "close")]].concat();
        let mut stream = connect(&stage.server).await?;
        let (_, text) =
            answer_to(&mut stream, head("GET", &path, &stage.server, "", &more).as_bytes(), WITHIN).await?;
        if text.to_ascii_lowercase().contains("set-cookie:") {
            wrong.push(format!("a foreign page set our cookie: {:?}", more[0]));
        }
    }
    let own = [("Accept", "text/html"), ("Sec-Fetch-Site", "none"), ("Connection", "close")];
    let mut stream = connect(&stage.server).await?;
    let (_, text) =
        answer_to(&mut stream, head("GET", &path, &stage.server, "", &own).as_bytes(), WITHIN).await?;
    if !text.to_ascii_lowercase().contains("set-cookie:") {
        wrong.push("whoever types the address in gets no cookie".to_owned());
    }
    Ok(wrong)
}

/// Asks for something private with these heads; each that is answered well is a violation.
async fn refused(stage: &Stage, heads: &[Vec<(&str, &str)>], wrong: &mut Vec<String>) -> Result<()> {
    for lines in heads {
        let mut text = String::from("GET /api/v1/tasks HTTP/1.1\r\n");
        for (name, value) in lines {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        text.push_str("Connection: close\r\n\r\n");
        let mut stream = connect(&stage.server).await?;
        match answer_to(&mut stream, text.as_bytes(), WITHIN).await {
            Ok((status, _)) if status < 400 => wrong.push(format!("{lines:?} is answered {status}")),
            Ok((status, _)) if status >= 500 => wrong.push(format!("{lines:?} is answered {status}")),
            _ => {}
        }
    }
    Ok(())
}

pub(crate) async fn host_list(stage: Stage) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let port = stage.server.split(':').nth(1).context("no port")?;
    let (first, last) =
        (format!("127.0.0.1:{port}, evil.example"), format!("evil.example, 127.0.0.1:{port}"));
    let user = format!("evil.example@127.0.0.1:{port}");
    let heads = vec![
        vec![("Host", first.as_str())],
        vec![("Host", last.as_str())],
        vec![("Host", "localhost,evil.example")],
        vec![("Host", "evil.example")],
        vec![("Host", user.as_str())],
        vec![("Host", "localhost.evil.example")],
        vec![("Host", "127.0.0.1.evil.example")],
        vec![("Host", "evil.example"), ("X-Forwarded-Host", "localhost")],
        vec![("Host", stage.server.as_str()), ("Origin", "http://evil.example")],
        vec![("Host", stage.server.as_str()), ("Host", "evil.example")],
        vec![("Host", "")],
    ];
    refused(&stage, &heads, &mut wrong).await?;
    Ok(wrong)
}

pub(crate) async fn rebinding(stage: Stage) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let port = stage.server.split(':').nth(1).context("no port")?;
    let host = format!("evil.example:{port}");
    let origin = format!("http://{host}");
    let heads = vec![
        vec![("Host", host.as_str())],
        vec![("Host", host.as_str()), ("Origin", origin.as_str())],
        vec![("Host", "evil.example"), ("Origin", "http://evil.example")],
        vec![("Host", host.as_str()), ("Sec-Fetch-Site", "same-origin")],
    ];
    refused(&stage, &heads, &mut wrong).await?;
    Ok(wrong)
}
