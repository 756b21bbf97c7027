//! One recording as data: what the client did, what the server answered, in the order of time.

use serde_json::{Map, Value};
use std::path::PathBuf;

/// Where the recordings are.
pub fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/recordings")
}

/// A scenario.
pub struct Recording {
    pub name: String,
    pub version: String,
    pub server_args: Vec<String>,
    pub exchanges: Vec<Exchange>,
    pub frames: Vec<Frame>,
    /// Facts that belong to no single exchange.
    pub facts: Map<String, Value>,
}

/// One HTTP request and what came back.
pub struct Exchange {
    pub at: f64,
    pub end: f64,
    pub note: String,
    pub request: Request,
    pub outcome: Outcome,
}

/// What the client sent.
pub struct Request {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: RequestBody,
}

/// The body of a request, as far as it was recorded.
pub enum RequestBody {
    None,
    Json(Value),
    Text(String),
    /// Short bodies are recorded whole in hex.
    Bytes(Vec<u8>),
    Multipart(Vec<Value>),
    /// The whole request as it went over TCP.
    Raw(String),
}

/// What came back.
pub enum Outcome {
    Answer(Answer),
    /// No answer: connection refused or lost.
    Failure(String),
}

/// A recorded answer.
pub struct Answer {
    pub status: u16,
    pub reason: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: AnswerBody,
    /// Status line and headers of a request that was sent raw, and whether the server closed.
    pub raw: Option<(String, bool)>,
}

/// The body of an answer, as far as it was recorded.
pub enum AnswerBody {
    Json(Value),
    Text(String),
    Binary { len: usize, sha256: String, head: Vec<u8> },
    Omitted { why: String },
    Empty,
}

/// Something that happened on a websocket.
pub struct Frame {
    pub at: f64,
    pub socket: String,
    pub kind: FrameKind,
}

/// What happened.
pub enum FrameKind {
    Open {
        path: String,
    },
    Refused {
        path: String,
    },
    /// The client closes.
    Closing,
    /// The server went away.
    Closed,
    SendText(String),
    SendBinary(Vec<u8>),
    SendPing(Vec<u8>),
    Text(Value),
    TextRaw(String),
    Binary(Value),
    /// A remark without an action.
    Remark,
}

impl FrameKind {
    /// Whether it came from the server.
    pub fn is_received(&self) -> bool {
        matches!(self, Self::Text(_) | Self::TextRaw(_) | Self::Binary(_))
    }
}

/// Reads the recording of that name.
pub fn load(name: &str) -> Recording {
    let path = folder().join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let mut facts: Map<String, Value> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let exchanges = facts.remove("exchanges");
    let frames = facts.remove("websocket");
    Recording {
        name: name.to_owned(),
        version: text_at(&facts["comfyui_version"]),
        server_args: list(facts.get("server_args")).iter().map(text_at).collect(),
        exchanges: list(exchanges.as_ref()).iter().map(exchange).collect(),
        frames: list(frames.as_ref()).iter().map(frame).collect(),
        facts,
    }
}

fn list(value: Option<&Value>) -> &[Value] {
    value.and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn text_at(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

fn pairs(value: Option<&Value>) -> Vec<(String, String)> {
    let Some(Value::Object(map)) = value else {
        return Vec::new();
    };
    map.iter().map(|(name, value)| (name.clone(), text_at(value))).collect()
}

fn exchange(value: &Value) -> Exchange {
    let at = value["t_ms"].as_f64().unwrap_or(0.0);
    Exchange {
        at,
        end: value["t_end_ms"].as_f64().unwrap_or(at),
        note: text_at(&value["note"]),
        request: request(&value["request"]),
        outcome: match value.get("response") {
            Some(response) => Outcome::Answer(answer(response)),
            None => Outcome::Failure(text_at(&value["failure"]["type"])),
        },
    }
}

fn request(value: &Value) -> Request {
    let body = if let Some(body) = value.get("body") {
        RequestBody::Json(body.clone())
    } else if let Some(text) = value.get("body_text") {
        RequestBody::Text(text_at(text))
    } else if let Some(bytes) = value.get("body_binary") {
        RequestBody::Bytes(from_hex(&text_at(&bytes["head_hex"])))
    } else if let Some(parts) = value.get("multipart") {
        RequestBody::Multipart(list(Some(parts)).to_vec())
    } else if let Some(raw) = value.get("raw") {
        RequestBody::Raw(text_at(raw))
    } else {
        RequestBody::None
    };
    Request {
        method: text_at(&value["method"]),
        path: text_at(&value["path"]),
        headers: pairs(value.get("headers")),
        body,
    }
}

fn answer(value: &Value) -> Answer {
    let body = if let Some(body) = value.get("body") {
        AnswerBody::Json(body.clone())
    } else if let Some(text) = value.get("body_text") {
        AnswerBody::Text(text_at(text))
    } else if let Some(binary) = value.get("body_binary") {
        AnswerBody::Binary {
            len: binary["len"].as_u64().map_or(0, |len| len as usize),
            sha256: text_at(&binary["sha256"]),
            head: from_hex(&text_at(&binary["head_hex"])),
        }
    } else if let Some(omitted) = value.get("body_omitted") {
        AnswerBody::Omitted { why: text_at(&omitted["why"]) }
    } else {
        AnswerBody::Empty
    };
    Answer {
        status: value["status"].as_u64().map_or(0, |status| status as u16),
        reason: value.get("reason").map(text_at),
        headers: pairs(value.get("headers")),
        body,
        raw: value
            .get("raw_head")
            .map(|head| (text_at(head), value["connection_closed_by_server"] == Value::Bool(true))),
    }
}

fn frame(value: &Value) -> Frame {
    let kind = if let Some(text) = value.get("text") {
        FrameKind::Text(text.clone())
    } else if let Some(text) = value.get("text_raw") {
        FrameKind::TextRaw(text_at(text))
    } else if value.get("binary").is_some() {
        FrameKind::Binary(value.clone())
    } else if let Some(sent) = value.get("sent") {
        FrameKind::SendText(sent.to_string())
    } else if let Some(sent) = value.get("sent_raw") {
        FrameKind::SendText(text_at(sent))
    } else if let Some(sent) = value.get("sent_binary") {
        FrameKind::SendBinary(from_hex(&text_at(sent)))
    } else if let Some(sent) = value.get("sent_ping") {
        FrameKind::SendPing(text_at(sent).into_bytes())
    } else {
        match value["event"].as_str() {
            Some("open") => FrameKind::Open { path: text_at(&value["request"]["path"]) },
            // The recorded error text ends with the address that was refused.
            Some("refused") => {
                let error = text_at(&value["error"]);
                let path = error.split_once("/ws?").map_or("", |(_, query)| query).trim_end_matches('\'');
                FrameKind::Refused { path: format!("/ws?{path}") }
            }
            Some("closing") => FrameKind::Closing,
            Some("closed") => FrameKind::Closed,
            _ => FrameKind::Remark,
        }
    };
    Frame { at: value["t_ms"].as_f64().unwrap_or(0.0), socket: text_at(&value["socket"]), kind }
}

/// Bytes from their hex digits.
pub fn from_hex(digits: &str) -> Vec<u8> {
    digits
        .as_bytes()
        .chunks_exact(2)
        .map(|pair| {
            let pair = std::str::from_utf8(pair).expect("hex is ASCII");
            u8::from_str_radix(pair, 16).unwrap_or_else(|_| panic!("{pair:?} is not hex"))
        })
        .collect()
}
