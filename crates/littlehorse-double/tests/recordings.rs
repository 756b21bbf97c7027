//! The messages of the recordings: what the double sends is what was sent then, byte for byte.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "tests may fail")]

mod scenarios;

use littlehorse_double::Message;
use littlehorse_double::proto::{
    Checkpoint, CheckpointId, PollTaskRequest, PollTaskResponse, PutCheckpointRequest, PutCheckpointResponse,
    PutTaskDefRequest, RegisterTaskWorkerRequest, RegisterTaskWorkerResponse, ReportTaskRun, TaskDef,
    TaskDefId,
};
use littlehorse_double::recording::{Lane, Recorded, Recording, Transcript, compare, to_json};
use serde_json::{Value, json};

fn all() -> Vec<(String, Recording)> {
    let files = std::fs::read_dir(scenarios::folder()).expect("the recordings").flatten();
    let files =
        files.map(|file| file.path()).filter(|file| file.extension().is_some_and(|end| end == "json"));
    files.map(|file| (file.display().to_string(), Recording::read(&file).expect("a recording"))).collect()
}

fn decoded(event: &Recorded, raw: &[u8]) -> Message {
    fn of<M: prost::Message + Default + Into<Message>>(raw: &[u8]) -> Message {
        M::decode(raw).expect("a message").into()
    }
    match (event.method(), event.is_from_client()) {
        ("PutTaskDef", true) => of::<PutTaskDefRequest>(raw),
        ("PutTaskDef" | "GetTaskDef", false) => of::<TaskDef>(raw),
        ("GetTaskDef", true) => of::<TaskDefId>(raw),
        ("RegisterTaskWorker", true) => of::<RegisterTaskWorkerRequest>(raw),
        ("RegisterTaskWorker", false) => of::<RegisterTaskWorkerResponse>(raw),
        ("PollTask", true) => of::<PollTaskRequest>(raw),
        ("PollTask", false) => of::<PollTaskResponse>(raw),
        ("ReportTask", true) => of::<ReportTaskRun>(raw),
        ("ReportTask", false) => of::<()>(raw),
        ("PutCheckpoint", true) => of::<PutCheckpointRequest>(raw),
        ("PutCheckpoint", false) => of::<PutCheckpointResponse>(raw),
        ("GetCheckpoint", true) => of::<CheckpointId>(raw),
        ("GetCheckpoint", false) => of::<Checkpoint>(raw),
        (other, _) => panic!("{other} has no message here"),
    }
}

/// The fields of a message, by number. In reports all of them are numbers or have a length.
fn fields(mut raw: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut fields = Vec::new();
    while !raw.is_empty() {
        let key = prost::encoding::decode_varint(&mut raw).expect("a key");
        let value = prost::encoding::decode_varint(&mut raw).expect("a number or a length");
        let value = match key & 7 {
            0 => value.to_be_bytes().to_vec(),
            2 => raw.split_off(..usize::try_from(value).unwrap()).expect("so many bytes").to_vec(),
            other => panic!("no report has wire type {other}"),
        };
        fields.push((key, value));
    }
    fields.sort_by_key(|(key, _)| *key);
    fields
}

/// Times are all the same in our JSON.
fn without_times(value: &Value) -> Value {
    match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| match name.as_str() {
                "time" | "created_at" => (name.clone(), json!("<time>")),
                _ => (name.clone(), without_times(value)),
            })
            .collect(),
        Value::Array(items) => items.iter().map(without_times).collect(),
        other => other.clone(),
    }
}

#[test]
fn every_message_is_written_with_the_same_bytes_and_means_the_same() {
    let mut seen = 0;
    for (file, recording) in all() {
        for event in &recording.events {
            let Some(raw) = event.raw() else { continue };
            let message = decoded(event, &raw);
            let written = message.encode();
            match event.method() {
                // A report has its result before its log, where the official SDK has it after; order has no meaning.
                "ReportTask" => assert_eq!(fields(&written), fields(&raw), "{file}: at {}", event.t),
                method => assert_eq!(written, raw, "{file}: {method} at {}", event.t),
            }
            let meant = without_times(event.message.as_ref().expect("its meaning"));
            assert_eq!(to_json(&message), meant, "{file}: {} at {}", event.method(), event.t);
            seen += 1;
        }
    }
    assert!(seen > 300, "only {seen} messages were found");
}

/// A recording against itself with one thing changed: what is found, by lane and line.
fn found(change: impl Fn(&mut Recording)) -> Vec<(Lane, usize)> {
    let recording = scenarios::read("checkpoints");
    let mut changed = recording.clone();
    change(&mut changed);
    let differences = compare(&Transcript::of_recording(&recording), &Transcript::of_recording(&changed));
    differences.into_iter().map(|difference| (difference.lane, difference.line)).collect()
}

fn calls<'r>(recording: &'r mut Recording, method: &str) -> Vec<&'r mut Recorded> {
    let events = recording.events.iter_mut();
    events
        .filter(|event| event.is_from_client() && event.method() == method && event.kind != "stream-open")
        .collect()
}

#[test]
fn what_is_equal_is_found_equal() {
    for (file, recording) in all() {
        let transcript = Transcript::of_recording(&recording);
        assert_eq!(compare(&transcript, &transcript.clone()), [], "{file}");
        assert!(file.contains("start-unreachable") || transcript.said_by_client() > 0, "{file}");
    }
}

#[test]
fn what_does_not_matter_is_not_found() {
    let differences = found(|recording| {
        for event in &mut recording.events {
            event.t += 100.0;
            if let Some(agent) = event.metadata.get_mut("user-agent") {
                "another".clone_into(agent);
            }
        }
        let report = calls(recording, "ReportTask").remove(0).message.as_mut().unwrap();
        report["time"] = json!("2031-01-01T00:00:00Z");
        report["error"]["message"] = json!(
            "Traceback (most recent call last):\n  File \"elsewhere\"\nRuntimeError: lost after checkpoint\n"
        );
    });
    assert_eq!(differences, []);
}

#[test]
fn a_planted_fault_is_found_where_it_is() {
    let task = Lane::Task("wfrun-1/0-1".to_owned());
    // A wrong word in a message.
    let differences = found(|recording| {
        calls(recording, "ReportTask").remove(0).message.as_mut().unwrap()["status"] = json!("TASK_TIMEOUT");
    });
    assert_eq!(differences, [(task.clone(), 3)]);
    // A field too many.
    let differences = found(|recording| {
        calls(recording, "PollTask").remove(1).message.as_mut().unwrap()["masked"] = json!(true);
    });
    assert_eq!(differences, [(Lane::Stream(1, 1), 4)]);
    // Metadata that should not be there, and some that is missing.
    let differences = found(|recording| {
        calls(recording, "GetTaskDef").remove(0).metadata.insert("tenantid".to_owned(), "x".to_owned());
        calls(recording, "RegisterTaskWorker").remove(0).metadata.clear();
    });
    assert_eq!(differences, [(Lane::Control, 3), (Lane::Control, 5)]);
    // No deadline.
    let differences = found(|recording| calls(recording, "ReportTask").remove(0).deadline_s = None);
    assert_eq!(differences, [(task.clone(), 3)]);
    // Two calls in the wrong order.
    let differences = found(|recording| {
        let mut calls = calls(recording, "PutCheckpoint");
        let (first, rest) = calls.split_first_mut().unwrap();
        std::mem::swap(&mut first.message, &mut rest[0].message);
    });
    assert_eq!(differences, [(task.clone(), 1), (task.clone(), 7)]);
    // A call too few, a call too many.
    let last =
        |recording: &Recording| recording.events.iter().rposition(|event| event.method() == "ReportTask");
    let differences = found(|recording| {
        let last = last(recording).unwrap();
        recording.events.remove(last);
    });
    assert_eq!(differences, [(Lane::Task("wfrun-2/0-1".to_owned()), 4)]);
    let differences = found(|recording| {
        let again = recording.events[last(recording).unwrap() - 1].clone();
        recording.events.push(again);
    });
    assert_eq!(differences.len(), 1);
}

#[test]
fn repeated_heartbeats_say_nothing_but_new_answers_do() {
    let recording = scenarios::read("rebalance");
    let control = |recording: &Recording| Transcript::of_recording(recording).lanes[&Lane::Control].len();
    let before = control(&recording);
    let heartbeat = |recording: &Recording| {
        recording.events.iter().position(|event| event.method() == "RegisterTaskWorker").unwrap()
    };
    let mut again = recording.clone();
    let first = heartbeat(&again);
    let pair = again.events[first..first + 2].to_vec();
    again.events.splice(first..first, pair);
    assert_eq!(control(&again), before);
    again.events[first + 1].message = Some(json!({"is_cluster_healthy": true}));
    assert_eq!(control(&again), before + 2);
}
