//! Comparison of the frames of one socket.
//!
//! Three rules loosen the order, because the real server is not determined there either:
//!
//! * **Status race**: with more than one prompt in flight, the `status` of a submission and the frames of the
//!   worker come from two threads. The `status` frames are then compared among themselves: as many as recorded,
//!   and the same numbers once repeats are folded.
//! * **Cut progress**: where a run of progress frames does not go from the first step to the last (an interrupt
//!   or a lost socket cut it), its length depends on the clock. The frames of a step and the counting are compared.
//! * **Sibling order**: see `siblings.rs`.

use crate::compare::Comparison;
use crate::json;
use crate::sockets::Incoming;
use serde_json::{Value, json};

/// A frame as a document: text frames are their JSON, binary frames what they mean.
#[derive(Debug, Clone)]
pub struct Shape {
    /// The `type`, or `binary` and the event number.
    pub kind: String,
    pub document: Value,
}

impl Shape {
    /// From a recorded text frame.
    pub fn text(document: Value) -> Self {
        Self { kind: document["type"].as_str().unwrap_or("?").to_owned(), document }
    }

    /// From a recorded text frame that is not strict JSON.
    pub fn text_raw(text: &str) -> Self {
        Self::text(json::parse(text).unwrap_or_else(|error| panic!("recorded frame: {error}")))
    }

    /// From a recorded binary frame, of which only the beginning is kept.
    pub fn recorded_binary(frame: &Value) -> Self {
        let head = crate::recording::from_hex(frame["binary"]["head_hex"].as_str().unwrap_or_default());
        let decoded = &frame["decoded"];
        let event = decoded["event_type"].as_u64().unwrap_or_default();
        let document = match event {
            1 => json!({"event": 1, "format": decoded["image_format"], "image": picture(&head[8..])}),
            3 => json!({"event": 3, "node": decoded["node_id"], "text": decoded["payload_text"]}),
            _ => {
                let head =
                    crate::recording::from_hex(decoded["payload_head_hex"].as_str().unwrap_or_default());
                json!({"event": event, "metadata": decoded["metadata"], "image": picture(&head)})
            }
        };
        Self { kind: format!("binary {event}"), document }
    }

    /// From a frame that came.
    pub fn incoming(frame: &Incoming) -> Result<Self, String> {
        match frame {
            Incoming::Text(text) => {
                if let Some(fault) = json::not_as_python_writes(text) {
                    return Err(format!("frame is not written as Python writes JSON: {fault}: {text}"));
                }
                Ok(Self::text(json::parse(text).map_err(|error| format!("{error}: {text}"))?))
            }
            Incoming::Binary(bytes) => {
                binary(bytes).ok_or_else(|| format!("binary frame of {} bytes is cut", bytes.len()))
            }
        }
    }

    /// Whether this tells of a step inside a node.
    pub fn is_step(&self) -> bool {
        match self.kind.as_str() {
            "progress" | "binary 1" | "binary 4" => true,
            "progress_state" => self.document["data"]["nodes"].as_object().is_some_and(|nodes| {
                nodes.values().any(|node| node["state"] == "running" && node["value"].as_f64() > Some(0.0))
            }),
            _ => false,
        }
    }

    fn remaining(&self) -> Option<i64> {
        (self.kind == "status")
            .then(|| self.document["data"]["status"]["exec_info"]["queue_remaining"].as_i64())
            .flatten()
    }
}

fn binary(bytes: &[u8]) -> Option<Shape> {
    let number = |at: usize| -> Option<usize> {
        let four: [u8; 4] = bytes.get(at..at + 4)?.try_into().ok()?;
        Some(u32::from_be_bytes(four) as usize)
    };
    let event = number(0)?;
    let document = match event {
        1 => json!({"event": 1, "format": number(4)?, "image": picture(&bytes[8..])}),
        3 => {
            let length = number(4)?;
            let node = String::from_utf8_lossy(bytes.get(8..8 + length)?).into_owned();
            json!({"event": 3, "node": node, "text": String::from_utf8_lossy(&bytes[8 + length..])})
        }
        4 => {
            let length = number(4)?;
            let metadata = json::parse(&String::from_utf8_lossy(bytes.get(8..8 + length)?)).ok()?;
            // Only sixteen bytes of such a picture are recorded.
            let image = &bytes[8 + length..];
            json!({"event": 4, "metadata": metadata, "image": picture(&image[..image.len().min(16)])})
        }
        _ => return None,
    };
    Some(Shape { kind: format!("binary {event}"), document })
}

/// What is compared of a picture: its kind, and the size of a PNG as far as it is known.
fn picture(bytes: &[u8]) -> Value {
    if bytes.starts_with(&[0xff, 0xd8, 0xff]) {
        json!("JPEG")
    } else if bytes.starts_with(b"\x89PNG\r\n\x1a\n") {
        match bytes.get(16..24) {
            Some(size) => json!(format!("PNG {}", crate::bodies::hex(size))),
            None => json!("PNG"),
        }
    } else {
        json!(format!("neither JPEG nor PNG: {}", crate::bodies::hex(&bytes[..bytes.len().min(16)])))
    }
}

/// Compares all frames of one socket. Names in `expected` must be translated already.
pub fn compare(comparison: &mut Comparison<'_>, expected: Vec<Shape>, got: Vec<Shape>) {
    let several_in_flight = expected.iter().any(|shape| shape.remaining() > Some(1));
    let (expected, got) = if several_in_flight {
        let (expected_status, expected) = split_status(expected);
        let (got_status, got) = split_status(got);
        comparison.same("status frames", expected_status.len(), got_status.len());
        comparison.same("status frames, repeats folded", folded(expected_status), folded(got_status));
        (expected, got)
    } else {
        (expected, got)
    };
    let (expected, got) = crate::siblings::in_one_order(expected, got);
    let expected = runs(expected);
    let got = runs(got);
    for (index, pair) in expected.iter().zip(&got).enumerate() {
        let place = comparison.place.clone();
        comparison.place = format!("{place}, item {index} ({})", pair.0.name());
        let before = comparison.differences.len();
        match pair {
            (Item::One(expected), Item::One(got)) => comparison.json(&expected.document, &got.document),
            (Item::Steps(expected), Item::Steps(got)) if expected.len() == got.len() => {
                for (expected, got) in expected.iter().zip(got) {
                    comparison.json(&expected.document, &got.document);
                }
            }
            (Item::Steps(expected), Item::Steps(got)) if is_cut(expected) || is_cut(got) => {
                comparison.same("frames of one step", pattern(expected), pattern(got));
            }
            (expected, got) => comparison.differ("frames", expected.name(), got.name()),
        }
        comparison.place = place;
        // After the first frame of another kind everything is shifted; one account of it is enough.
        if comparison.differences.len() > before && pair.0.kind() != pair.1.kind() {
            break;
        }
    }
    if expected.len() != got.len() {
        let names = |items: &[Item]| items.iter().map(Item::name).collect::<Vec<_>>().join(", ");
        let from = expected.len().min(got.len());
        comparison.differ(
            &format!("frames ({} expected, {} came)", expected.len(), got.len()),
            format_args!("… {}", names(&expected[from..])),
            format_args!("… {}", names(&got[from..])),
        );
    }
}

fn split_status(shapes: Vec<Shape>) -> (Vec<i64>, Vec<Shape>) {
    let remaining = shapes.iter().filter_map(Shape::remaining).collect();
    (remaining, shapes.into_iter().filter(|shape| shape.kind != "status").collect())
}

fn folded(mut numbers: Vec<i64>) -> Vec<i64> {
    numbers.dedup();
    numbers
}

/// A frame, or a run of steps inside nodes.
enum Item {
    One(Shape),
    Steps(Vec<Shape>),
}

impl Item {
    fn name(&self) -> String {
        match self {
            Self::One(shape) => match &shape.document["data"]["node"] {
                Value::Null => shape.kind.clone(),
                node => format!("{} {node}", shape.kind),
            },
            Self::Steps(shapes) => format!("{} frames of steps", shapes.len()),
        }
    }

    fn kind(&self) -> &str {
        match self {
            Self::One(shape) => &shape.kind,
            Self::Steps(_) => "steps",
        }
    }
}

fn runs(shapes: Vec<Shape>) -> Vec<Item> {
    let mut items = Vec::new();
    for shape in shapes {
        if !shape.is_step() {
            items.push(Item::One(shape));
        } else if let Some(Item::Steps(run)) = items.last_mut() {
            run.push(shape);
        } else {
            items.push(Item::Steps(vec![shape]));
        }
    }
    items
}

/// Value and maximum of a step, if the frame tells them.
fn step(shape: &Shape) -> Option<(i64, i64)> {
    let data = &shape.document["data"];
    let of = match shape.kind.as_str() {
        "progress" => data,
        "progress_state" => data["nodes"].as_object()?.values().find(|node| node["state"] == "running")?,
        _ => return None,
    };
    Some((of["value"].as_f64()? as i64, of["max"].as_f64()? as i64))
}

fn is_cut(run: &[Shape]) -> bool {
    let first = run.iter().find_map(step).map(|(value, _)| value);
    let last = run.iter().rev().find_map(step);
    first > Some(1) || last.is_some_and(|(value, max)| value < max)
}

/// The kinds of frames that each step sends, once; a step that miscounts shows as its numbers.
fn pattern(run: &[Shape]) -> Vec<String> {
    let mut steps: Vec<(i64, Vec<String>)> = Vec::new();
    for shape in run {
        let value = step(shape).map(|(value, _)| value);
        match steps.last_mut() {
            Some((current, kinds)) if value.is_none_or(|value| value == *current) => {
                kinds.push(shape.kind.clone())
            }
            _ => steps.push((value.unwrap_or_default(), vec![shape.kind.clone()])),
        }
    }
    for pair in steps.windows(2) {
        if pair[1].0 != pair[0].0 + 1 {
            return vec![format!("step {} after step {}", pair[1].0, pair[0].0)];
        }
    }
    // The first and the last step of a cut run may lack frames.
    steps.into_iter().map(|(_, kinds)| kinds).max_by_key(Vec::len).unwrap_or_default()
}
