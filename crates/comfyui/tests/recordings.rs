//! Every recorded answer and frame of a real ComfyUI goes through the decoders.

#![allow(clippy::expect_used, clippy::unwrap_used, reason = "test code")]

use std::path::PathBuf;

use bytes::Bytes;
use comfyui::ws::{Message, decode_binary, decode_text};
use comfyui::{HistoryEntry, Job, JobsPage, Outcome, PromptId, Queue, Refusal, SystemStats, lenient};
use serde_json::Value;

struct Recording {
    name: String,
    value: Value,
}

impl Recording {
    fn all() -> Vec<Recording> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../comfyui-sim/tests/recordings");
        let mut all: Vec<_> = std::fs::read_dir(folder)
            .expect("the recordings are in the repository")
            .map(|file| file.expect("a readable folder").path())
            .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
            .map(|path| Recording {
                name: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
                value: serde_json::from_slice(&std::fs::read(&path).expect("a readable file")).expect("JSON"),
            })
            .collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(all.len() > 40, "only {} recordings", all.len());
        all
    }

    fn named(name: &str) -> Recording {
        Recording::all()
            .into_iter()
            .find(|recording| recording.name == name)
            .expect("a recording of that name")
    }

    /// Path and body text of every answer with this status.
    fn answers(&self, method: &str, status: u64) -> Vec<(String, String)> {
        let exchanges = self.value["exchanges"].as_array().cloned().unwrap_or_default();
        exchanges
            .iter()
            .filter(|exchange| {
                exchange["request"]["method"] == method && exchange["response"]["status"] == status
            })
            .filter_map(|exchange| {
                let path = exchange["request"]["path"].as_str()?.to_owned();
                let response = &exchange["response"];
                let text = match (&response["body"], &response["body_text"]) {
                    (Value::Null, Value::String(text)) => text.clone(),
                    (Value::Null, _) => return None,
                    (body, _) => body.to_string(),
                };
                Some((path, text))
            })
            .collect()
    }

    fn frames(&self) -> Vec<String> {
        let frames = self.value["websocket"].as_array().cloned().unwrap_or_default();
        frames
            .iter()
            .filter_map(|frame| match (&frame["text"], &frame["text_raw"]) {
                (Value::Null, Value::String(raw)) => Some(raw.clone()),
                (Value::Null, _) => None,
                (text, _) => Some(text.to_string()),
            })
            .collect()
    }

    fn histories(&self) -> Vec<(PromptId, HistoryEntry)> {
        self.answers("GET", 200)
            .into_iter()
            .filter(|(path, _)| path.split('?').next().is_some_and(|path| path.starts_with("/history")))
            .flat_map(|(path, text)| {
                lenient::from_str::<indexmap::IndexMap<PromptId, HistoryEntry>>(&text)
                    .unwrap_or_else(|error| panic!("{} {path}: {error}", self.name))
            })
            .collect()
    }
}

#[test]
fn every_text_frame_is_understood() {
    let mut seen = 0;
    for recording in Recording::all() {
        for frame in recording.frames() {
            let message =
                decode_text(&frame).unwrap_or_else(|error| panic!("{}: {error}: {frame}", recording.name));
            assert!(!matches!(message, Message::Other { .. }), "{}: not understood: {frame}", recording.name);
            seen += 1;
        }
    }
    assert!(seen > 1_500, "only {seen} frames");
}

#[test]
fn binary_frames_say_what_the_recording_decoded() {
    let recording = Recording::named("progress_preview");
    let mut seen = 0;
    for frame in recording.value["websocket"].as_array().expect("frames") {
        let Some(head) = frame["binary"]["head_hex"].as_str() else {
            continue;
        };
        let decoded = &frame["decoded"];
        let mut bytes: Vec<u8> = (0..head.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&head[at..at + 2], 16).expect("hex"))
            .collect();
        if decoded["event_type"] == 4 || decoded["event_type"] == 3 {
            // Only the head is recorded: put the described parts together again.
            let inner = if decoded["event_type"] == 4 {
                decoded["metadata"].to_string()
            } else {
                decoded["node_id"].as_str().expect("a node id").to_owned()
            };
            bytes.truncate(4);
            bytes.extend((inner.len() as u32).to_be_bytes());
            bytes.extend(inner.as_bytes());
            bytes.extend(decoded["text"].as_str().unwrap_or_default().as_bytes());
        }
        let message = decode_binary(Bytes::from(bytes)).expect("a real frame");
        match (decoded["event_type"].as_u64(), message) {
            (Some(1), Message::Preview(preview)) => {
                assert_eq!(preview.format as u64 + 1, decoded["image_format"].as_u64().expect("a format"));
                assert!(preview.source.is_none());
            }
            (Some(3), Message::Text(text)) => {
                assert_eq!(text.node_id, decoded["node_id"].as_str().unwrap_or_default());
                assert_eq!(text.text, decoded["text"].as_str().unwrap_or_default());
            }
            (Some(4), Message::Preview(preview)) => {
                let source = preview.source.expect("metadata");
                assert_eq!(source.node_id.as_deref(), decoded["metadata"]["node_id"].as_str());
                assert_eq!(
                    source.prompt_id.as_ref().map(PromptId::as_str),
                    decoded["metadata"]["prompt_id"].as_str()
                );
            }
            (event, message) => panic!("event {event:?} became {message:?}"),
        }
        seen += 1;
    }
    assert!(seen >= 10, "only {seen} binary frames");
}

#[test]
fn every_history_entry_is_judged_as_the_contract_says() {
    let mut seen = 0;
    for recording in Recording::all() {
        for (id, entry) in recording.histories() {
            let status = entry.status.clone().expect("every recorded entry has a status");
            let last = status.messages.last().cloned();
            let outcome = Outcome::judge(entry);
            let context = || format!("{}: {id}", recording.name);
            match last {
                Some(Message::ExecutionSuccess(_)) => {
                    assert!(matches!(outcome, Outcome::Succeeded(_)), "{}", context());
                }
                Some(Message::ExecutionError(error)) => {
                    let Outcome::Failed(failure) = outcome else { panic!("{}: {outcome:?}", context()) };
                    assert_eq!(failure.exception_type, error.exception_type, "{}", context());
                    assert!(!failure.message.ends_with('\n'));
                }
                Some(Message::ExecutionInterrupted(_)) => {
                    assert!(matches!(outcome, Outcome::Interrupted(_)), "{}", context());
                }
                other => panic!("{}: ends with {other:?}", context()),
            }
            seen += 1;
        }
    }
    assert!(seen > 100, "only {seen} entries");
}

#[test]
fn out_of_memory_and_ordinary_errors_are_told_apart() {
    let outcomes: Vec<_> = Recording::named("execution_error")
        .histories()
        .into_iter()
        .filter_map(|(_, entry)| match Outcome::judge(entry) {
            Outcome::Failed(failure) => Some(failure),
            _ => None,
        })
        .collect();
    let (memory, other): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(|failure| failure.out_of_memory);
    assert!(
        memory.iter().all(|failure| failure.exception_type == "torch.OutOfMemoryError") && !memory.is_empty()
    );
    assert!(other.iter().all(|failure| !failure.node_id.is_empty()) && other.len() >= 3);
}

#[test]
fn a_run_time_cycle_is_a_failure_although_the_status_says_success() {
    let lying: Vec<_> = Recording::named("expand_block_async")
        .histories()
        .into_iter()
        .filter(|(_, entry)| {
            let status = entry.status.as_ref().expect("a status");
            status.status_str == "success"
                && matches!(status.messages.last(), Some(Message::ExecutionError(_)))
        })
        .collect();
    assert!(!lying.is_empty(), "the trap is in the recording");
    for (id, entry) in lying {
        assert!(matches!(Outcome::judge(entry), Outcome::Failed(_)), "{id}");
    }
}

#[test]
fn a_blocked_branch_is_not_the_end() {
    let blocked = Recording::named("expand_block_async")
        .frames()
        .iter()
        .filter_map(|frame| match decode_text(frame) {
            Ok(Message::ExecutionError(error)) if error.is_blocked_branch() => Some(error),
            _ => None,
        })
        .count();
    assert_eq!(blocked, 1);
}

#[test]
fn queues_jobs_refusals_and_stats_are_read_in_every_version() {
    let (mut queues, mut jobs, mut refusals, mut stats) = (0, 0, 0, 0);
    for recording in Recording::all() {
        let complain =
            |path: &str, error: serde_json::Error| -> ! { panic!("{} {path}: {error}", recording.name) };
        for (path, text) in recording.answers("GET", 200) {
            match path.split('?').next().unwrap_or_default() {
                "/queue" => {
                    let queue: Queue =
                        lenient::from_str(&text).unwrap_or_else(|error| complain(&path, error));
                    let items = queue.running.iter().chain(&queue.pending);
                    assert!(items.clone().all(|item| item.prompt.get().starts_with('{')));
                    let sorted = queue.in_order();
                    assert!(sorted.windows(2).all(|pair| pair[0].number.total_cmp(&pair[1].number).is_le()));
                    queues += 1;
                }
                "/api/jobs" | "/api/api/jobs" => {
                    let _: JobsPage = lenient::from_str(&text).unwrap_or_else(|error| complain(&path, error));
                    jobs += 1;
                }
                other if other.starts_with("/api/jobs/") => {
                    let _: Job = lenient::from_str(&text).unwrap_or_else(|error| complain(&path, error));
                    jobs += 1;
                }
                "/system_stats" | "/api/system_stats" => {
                    let read: SystemStats =
                        lenient::from_str(&text).unwrap_or_else(|error| complain(&path, error));
                    assert!(read.system.comfyui_version.is_some());
                    stats += 1;
                }
                _ => {}
            }
        }
        for (path, text) in recording.answers("POST", 400) {
            if path.ends_with("/prompt") {
                let refusal: Refusal =
                    lenient::from_str(&text).unwrap_or_else(|error| complain(&path, error));
                assert!(!refusal.to_string().is_empty());
                refusals += 1;
            }
        }
    }
    assert!(queues > 20 && jobs > 30 && refusals > 20 && stats > 5, "{queues} {jobs} {refusals} {stats}");
}

#[test]
fn bare_nan_is_read() {
    let recording = Recording::named("nan_in_json");
    let raw: Vec<_> = recording.frames().into_iter().filter(|frame| frame.contains("NaN")).collect();
    assert!(!raw.is_empty(), "the trap is in the recording");
    for frame in raw {
        assert!(serde_json::from_str::<Value>(&frame).is_err());
        assert!(matches!(decode_text(&frame), Ok(Message::Executed(_))));
    }
}
