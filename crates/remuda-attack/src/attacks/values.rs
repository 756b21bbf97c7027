//! JSON of many tiny values: parsed, it takes up to a hundred times the room of its text.

use super::share::HANDSHAKE;
use super::workers::SOMEBODY;
use crate::raw::{Client, answer_to, connect, head};
use crate::stage::Stage;
use anyhow::Result;
use bytes::Bytes;
use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;
use std::fmt::Write;
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;

/// An object and a number in seven bytes.
const TINY: &str = r#"{"":0},"#;
/// Just below what a body may have.
const LARGE: usize = 31 << 20;
/// Just below what a request that brings little may have.
const SMALL: usize = (1 << 20) - 1024;
/// Every body is sent this many times at once: enough to need the room twice, few enough not to be turned away unread.
const AT_ONCE: usize = 2;
/// How many of each kind of extra_data come at once.
const TOGETHER: usize = 3;
/// How many guests ask for something small at the same time.
const LANES: usize = 16;

/// A list of tiny values that is about this long.
fn values(bytes: usize) -> String {
    format!("[{}0]", TINY.repeat(bytes / TINY.len()))
}

/// One request with a body.
#[derive(Clone)]
struct Asked {
    path: String,
    body: Bytes,
}

impl Asked {
    fn new(path: &str, body: impl Into<Bytes>) -> Asked {
        Asked { path: path.to_owned(), body: body.into() }
    }
}

/// Who asks.
struct Guest<'a> {
    client: Client,
    key: &'a str,
    kind: &'a str,
}

impl<'a> Guest<'a> {
    fn new(stage: &'a Stage, key: &'a str) -> Result<Guest<'a>> {
        Ok(Guest { client: Client::new(stage)?, key, kind: "application/json" })
    }

    /// What is wrong with the answer. A refusal is fine, and so is a connection that is closed in the middle of a body
    /// which is too large; silence is not.
    async fn ask(&self, asked: &Asked) -> Option<String> {
        let request = self.client.request(Method::POST, &asked.path, self.key);
        let request = request.header("remuda-owner", SOMEBODY).header("content-type", self.kind);
        match self.client.send(request.body(asked.body.clone())).await {
            Ok(answer) if answer.status >= 500 && answer.status != 503 => {
                Some(format!("{} answers {} {}", asked.path, answer.status, answer.text()))
            }
            Ok(_) => None,
            Err(error) => {
                let silent = error.downcast_ref::<reqwest::Error>().is_some_and(reqwest::Error::is_timeout);
                silent.then(|| format!("{} does not answer within 30 s", asked.path))
            }
        }
    }

    /// Sends each body a few times at once, one body after the other, at least once and for as long as it lasts.
    async fn ask_all(&self, all: &[Asked], lasts: Duration) -> Vec<String> {
        let mut wrong = Vec::new();
        let deadline = Instant::now() + lasts;
        loop {
            for asked in all {
                let sent = join_all((0..AT_ONCE).map(|_| self.ask(asked))).await;
                wrong.extend(sent.into_iter().flatten());
            }
            if Instant::now() > deadline || !wrong.is_empty() {
                wrong.dedup();
                return wrong;
            }
        }
    }
}

fn graph() -> String {
    crate::probe::graph(1).to_string()
}

pub(crate) async fn prompt(stage: Stage) -> Result<Vec<String>> {
    let (graph, many) = (graph(), values(LARGE));
    let beside = |rest: String| Asked::new("/prompt", format!(r#"{{"prompt":{graph},{rest}}}"#));
    let mut all = vec![
        beside(format!(r#""partial_execution_targets":{many}"#)),
        beside(format!(r#""number":{many}"#)),
        beside(format!(r#""client_id":{many}"#)),
        beside(format!(r#""extra_data":{{"auth":{many}}}"#)),
        beside(format!(r#""extra_data":{{"extra_pnginfo":{{"workflow":{{"a":{many}}}}}}}"#)),
        beside(format!(r#""unknown":{many}"#)),
        Asked::new("/prompt", many),
    ];
    all.push(Asked::new("/prompt_sync", all[4].body.clone()));
    Ok(Guest::new(&stage, &stage.keys.mallory)?.ask_all(&all, stage.while_it_lasts()).await)
}

/// An object with many short names that is about this long.
fn names(bytes: usize) -> String {
    let mut text = String::with_capacity(bytes + 32);
    text.push('{');
    for n in 0_u32.. {
        let _ = write!(text, r#""{n:x}":0,"#);
        if text.len() > bytes {
            break;
        }
    }
    text + r#""":0}"#
}

/// Objects within objects, as deep as this many bytes allow.
fn nested(bytes: usize) -> String {
    let depth = bytes / 6;
    format!("{}0{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
}

pub(crate) async fn extra_data(stage: Stage) -> Result<Vec<String>> {
    let graph = graph();
    let beside = |value: String| {
        Asked::new("/prompt", format!(r#"{{"prompt":{graph},"extra_data":{{"x":{value}}}}}"#))
    };
    // A debug build needs 12 s for the whole of it, and the attacker would wait for its own answers too long.
    let large = if stage.quick { LARGE / 4 } else { LARGE };
    let zeros = |bytes: usize| beside(format!("[{}0]", "0,".repeat(bytes / 2)));
    // ComfyUI writes blanks between them: the first is refused for that when it is whole, the others are taken.
    let all =
        [zeros(large), zeros(large / 8 * 5), beside(names(large / 8 * 6)), beside(nested(large / 8 * 6))];
    let guest = Guest::new(&stage, &stage.keys.mallory)?;
    let deadline = Instant::now() + stage.while_it_lasts();
    loop {
        let sent = all.iter().flat_map(|asked| std::iter::repeat_n(asked, TOGETHER));
        let mut wrong: Vec<String> =
            join_all(sent.map(|asked| guest.ask(asked))).await.into_iter().flatten().collect();
        if Instant::now() > deadline || !wrong.is_empty() {
            wrong.dedup();
            return Ok(wrong);
        }
    }
}

pub(crate) async fn task(stage: Stage) -> Result<Vec<String>> {
    let (graph, many) = (graph(), values(LARGE));
    let beside = |rest: &str| Asked::new("/api/v1/tasks", format!(r#"{{"payload":{graph},{rest}}}"#));
    let node = |rest: &str| {
        let node = format!(r#"{{"class_type":"SaveImage",{rest}}}"#);
        Asked::new("/api/v1/tasks", format!(r#"{{"payload":{{"1":{node}}}}}"#))
    };
    let all = [
        beside(&format!(r#""metadata":{many}"#)),
        beside(&format!(r#""webhook":{many}"#)),
        beside(&format!(r#""inputs":{many}"#)),
        beside(&format!(r#""requires":{{"nodes":{many}}}"#)),
        node(&format!(r#""inputs":{{"images":{many}}}"#)),
        node(&format!(r#""inputs":{{"images":{{"__value__":{many}}}}}"#)),
        node(&format!(r#""inputs":{{}},"_meta":{many}"#)),
    ];
    Ok(Guest::new(&stage, &stage.keys.mallory)?.ask_all(&all, stage.while_it_lasts()).await)
}

pub(crate) async fn controls(stage: Stage) -> Result<Vec<String>> {
    let ids: Vec<String> = (0..10_000).map(|n| format!("x{n}")).collect();
    let ids = json!(ids).to_string();
    let mut all = Vec::new();
    for many in [values(LARGE), values(SMALL), ids] {
        let object = Bytes::from(format!(r#"{{"a":{many}}}"#));
        for path in ["/queue", "/history"] {
            all.push(Asked::new(path, format!(r#"{{"delete":{many}}}"#)));
            all.push(Asked::new(path, object.clone()));
        }
        all.push(Asked::new("/api/jobs/cancel", format!(r#"{{"job_ids":{many}}}"#)));
        for path in ["/interrupt", "/free", "/settings", "/settings/a", "/userdata/a/move/b"] {
            all.push(Asked::new(path, object.clone()));
        }
    }
    let (guest, deadline) =
        (Guest::new(&stage, &stage.keys.mallory)?, Instant::now() + stage.while_it_lasts());
    let lanes = (0..LANES).map(|lane| {
        let (guest, all) = (&guest, &all);
        async move {
            let mut wrong = Vec::new();
            for asked in all.iter().cycle().skip(lane * all.len() / LANES) {
                wrong.extend(guest.ask(asked).await);
                if Instant::now() > deadline || !wrong.is_empty() {
                    break;
                }
            }
            wrong
        }
    });
    let mut wrong = join_all(lanes).await.concat();
    wrong.sort();
    wrong.dedup();
    Ok(wrong)
}

/// A message of a websocket's client. Its mask is zero: the bytes stay as they are.
fn message(text: &str) -> Vec<u8> {
    let mut frame = vec![0x81, 0x80 | 127];
    frame.extend_from_slice(&(text.len() as u64).to_be_bytes());
    frame.extend_from_slice(&[0; 4]);
    frame.extend_from_slice(text.as_bytes());
    frame
}

pub(crate) async fn sockets(stage: Stage) -> Result<Vec<String>> {
    let said = |bytes| message(&format!(r#"{{"type":"feature_flags","data":{}}}"#, values(bytes)));
    // One that is far too long, one that is just allowed, and one that is just listened to.
    let messages = [said(16 << 20), said(65_000), said(4_000)];
    let deadline = Instant::now() + stage.while_it_lasts();
    let lanes = (0..24).map(|lane| {
        let (stage, message) = (&stage, &messages[lane % messages.len()]);
        async move {
            // A server that hangs up is right; the next socket says the same.
            while Instant::now() < deadline {
                let path = format!("/ws?clientId=values-{lane}");
                let head = head("GET", &path, &stage.server, &stage.keys.mallory, &HANDSHAKE);
                let Ok(mut stream) = connect(&stage.server).await else { continue };
                if answer_to(&mut stream, head.as_bytes(), Duration::from_secs(10)).await.is_err() {
                    continue;
                }
                for _ in 0..300 {
                    let sent = tokio::time::timeout(Duration::from_secs(5), stream.write_all(message)).await;
                    if !matches!(sent, Ok(Ok(()))) || Instant::now() > deadline {
                        break;
                    }
                }
            }
        }
    });
    join_all(lanes).await;
    Ok(Vec::new())
}

pub(crate) async fn worker(stage: Stage) -> Result<Vec<String>> {
    let lease = format!(r#""lease":{{"task":"{SOMEBODY}","fence":1}}"#);
    let mut all = Vec::new();
    // More than a report may have, and just what it may have.
    for many in [values(LARGE), values((8 << 20) - 1024)] {
        let said = |route: &str, body: String| Asked::new(&format!("/api/v1/worker/{route}"), body);
        let failure = format!(r#"{{"class":"execution","message":"x","node_id":null,"details":{many}}}"#);
        let result = format!(r#"{{"files":[],"outputs":{many},"execution_ms":1}}"#);
        // Where only names are taken, names.
        let names = format!("[{}\"\"]", r#""name","#.repeat(many.len() / TINY.len()));
        let capabilities = format!(r#"{{"labels":[],"nodes":{names},"models":[]}}"#);
        all.extend([
            said("end", format!(r#"{{{lease},"ending":{{"how":"failed","failure":{failure}}}}}"#)),
            said(
                "end",
                format!(r#"{{{lease},"ending":{{"how":"completed","result":{result},"gpu_ms":null}}}}"#),
            ),
            said("beat", format!(r#"{{"leases":{many},"workers":[],"wait_ms":0}}"#)),
            said("beat", format!(r#"{{"workers":[{{"id":"a","fence":1,"report":{many}}}]}}"#)),
            said(
                "acquire",
                format!(r#"{{"spec":{{"id":"values","endpoint":"http://127.0.0.1:9","labels":{many}}}}}"#),
            ),
            said("adopt", format!(r#"{{"worker":"values","worker_fence":1,"known":{many}}}"#)),
            said("give-back", format!(r#"{{{lease},"learnt":{{"labels":[],"nodes":{names},"models":[]}}}}"#)),
            said("harm", format!(r#"{{{lease},"harm":{many}}}"#)),
            said("release", format!(r#"{{"worker":"values","fence":1,"more":{many}}}"#)),
            said("claim", format!(r#"{{"worker":"values","worker_fence":1,"capabilities":{capabilities}}}"#)),
            said(
                "claim",
                format!(r#"{{"worker":"values","worker_fence":1,"capabilities":{{}},"loaded":{many}}}"#),
            ),
        ]);
    }
    Ok(Guest::new(&stage, &stage.keys.worker)?.ask_all(&all, stage.while_it_lasts()).await)
}

/// As many frames with this head as fit into a body.
fn frames(head: &str) -> Vec<u8> {
    let mut one = u32::try_from(head.len()).unwrap_or_default().to_be_bytes().to_vec();
    one.extend_from_slice(head.as_bytes());
    one.repeat((32 << 20) / one.len())
}

pub(crate) async fn live_frames(stage: Stage) -> Result<Vec<String>> {
    let head = |more: &str| {
        format!(
            r#"{{"task":"{SOMEBODY}","attempt":1,"what":{{"type":"progress","fraction":0.1,"value":1.0,"max":2.0,"nodes_done":0,"nodes":1{more}}},"payload":0}}"#
        )
    };
    let many = head(&format!(r#","more":{}"#, values(64_000)));
    let path = "/api/v1/worker/frames";
    // Many small frames, some large ones, and signs of life, which are the smallest.
    let all = [frames(&head("")), frames(&many), frames("")].map(|body| Asked::new(path, body));
    let mut guest = Guest::new(&stage, &stage.keys.worker)?;
    guest.kind = "application/vnd.remuda.frames";
    Ok(guest.ask_all(&all, stage.while_it_lasts()).await)
}
