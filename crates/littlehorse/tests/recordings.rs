//! Our messages against those of the official Python SDK.
#![allow(clippy::unwrap_used, reason = "clippy does not see that the helpers are part of tests")]

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use littlehorse::proto::report_task_run::Result as Outcome;
use littlehorse::{Ending, NewTaskDef, Report, Type, Value, proto};
use prost::Message;
use serde_json::Value as Json;

/// A recorded message with its bytes.
struct Recorded {
    file: String,
    method: String,
    to_server: bool,
    bytes: Vec<u8>,
}

fn recorded() -> Vec<Recorded> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|ending| ending != "json") {
            continue;
        }
        let recording: Json = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        for event in recording["events"].as_array().unwrap() {
            if let (Some(raw), Some(method)) = (event["raw_b64"].as_str(), event["method"].as_str()) {
                all.push(Recorded {
                    file: path.file_stem().unwrap().to_string_lossy().into_owned(),
                    method: method.rsplit('/').next().unwrap().to_owned(),
                    to_server: event["dir"] == "client->server",
                    bytes: BASE64.decode(raw).unwrap(),
                });
            }
        }
    }
    all
}

fn again<M: Message + Default>(bytes: &[u8]) -> Vec<u8> {
    M::decode(bytes).unwrap().encode_to_vec()
}

/// Whatever was left out of our schema, or has another number, would not come back.
#[test]
fn every_recorded_message_comes_back_whole() {
    let mut seen: BTreeMap<(String, bool), usize> = BTreeMap::new();
    for message in recorded() {
        let bytes = &message.bytes;
        let back = match (message.method.as_str(), message.to_server) {
            ("PutTaskDef", true) => again::<proto::PutTaskDefRequest>(bytes),
            ("GetTaskDef", true) => again::<proto::TaskDefId>(bytes),
            ("PutTaskDef" | "GetTaskDef", false) => again::<proto::TaskDef>(bytes),
            ("RegisterTaskWorker", true) => again::<proto::RegisterTaskWorkerRequest>(bytes),
            ("RegisterTaskWorker", false) => again::<proto::RegisterTaskWorkerResponse>(bytes),
            ("PollTask", true) => again::<proto::PollTaskRequest>(bytes),
            ("PollTask", false) => again::<proto::PollTaskResponse>(bytes),
            ("ReportTask", true) => again::<proto::ReportTaskRun>(bytes),
            ("ReportTask", false) => again::<()>(bytes),
            ("PutCheckpoint", true) => again::<proto::PutCheckpointRequest>(bytes),
            ("PutCheckpoint", false) => again::<proto::PutCheckpointResponse>(bytes),
            ("GetCheckpoint", true) => again::<proto::CheckpointId>(bytes),
            ("GetCheckpoint", false) => again::<proto::Checkpoint>(bytes),
            (other, _) => panic!("{}: {other} has no type here", message.file),
        };
        if (message.method.as_str(), message.to_server) == ("ReportTask", true) {
            // Only the order of the fields may differ, which the encoding leaves open.
            assert_eq!(back.len(), bytes.len(), "{}", message.file);
        } else {
            assert_eq!(&back, bytes, "{}: {} to_server={}", message.file, message.method, message.to_server);
        }
        *seen.entry((message.method, message.to_server)).or_default() += 1;
    }
    assert_eq!(seen.len(), 14, "{seen:?}");
}

#[test]
fn a_task_def_is_registered_with_the_same_bytes() {
    let ours = NewTaskDef::new("execute-comfyui-workflow")
        .input("workflow", Type::JsonObj)
        .returns(Type::JsonObj)
        .request
        .encode_to_vec();
    assert_eq!(BASE64.encode(&ours), "ChhleGVjdXRlLWNvbWZ5dWktd29ya2Zsb3cSDhIId29ya2Zsb3cqAggAGgQKAggA");
    let theirs: Vec<_> = recorded()
        .into_iter()
        .filter(|r| r.method == "PutTaskDef" && r.to_server && r.file == "success-json")
        .collect();
    assert_eq!(theirs.len(), 1);
    assert_eq!(theirs[0].bytes, ours);
}

/// Rebuilds every recorded report from what it says, and wants the same bytes. The Python SDK writes TASK_ERROR where all
/// others, and we, write TASK_FAILURE.
#[test]
fn reports_are_built_as_the_official_ones() {
    let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
    for message in recorded().into_iter().filter(|r| r.method == "ReportTask" && r.to_server) {
        let mut theirs = proto::ReportTaskRun::decode(message.bytes.as_slice()).unwrap();
        let ending = match theirs.result.as_mut().unwrap() {
            Outcome::Output(output) => Ending::Success(Value::try_from(output.clone()).unwrap()),
            Outcome::Exception(exception) => Ending::Exception {
                name: exception.name.clone(),
                message: exception.message.clone(),
                content: Value::try_from(exception.content.clone().unwrap_or_default()).unwrap(),
            },
            Outcome::Error(error) => match theirs.status.try_into().unwrap() {
                proto::TaskStatus::TaskFailed => {
                    assert_eq!(error.r#type(), proto::LhErrorType::TaskError, "{}", message.file);
                    error.set_type(proto::LhErrorType::TaskFailure);
                    Ending::Failed { message: error.message.clone() }
                }
                proto::TaskStatus::TaskOutputSerdeError => {
                    error.set_type(proto::LhErrorType::VarMutationError);
                    Ending::BadOutput { message: error.message.clone() }
                }
                other => panic!("{}: {other:?}", message.file),
            },
        };
        let log = theirs.log_output.clone().map(|log| match Value::try_from(log) {
            Ok(Value::Str(text)) => text,
            other => panic!("{}: {other:?}", message.file),
        });
        let mut ours =
            Report::new(theirs.task_run_id.as_ref().unwrap(), theirs.attempt_number, &ending, log.as_deref());
        ours.message.time = theirs.time;
        assert_eq!(ours.message, theirs, "{}", message.file);
        assert_eq!(Report::from_bytes(&ours.to_bytes()).unwrap(), ours);
        *kinds.entry(format!("{:?}", theirs.status())).or_default() += 1;
    }
    assert!(kinds.contains_key("TaskSuccess") && kinds.contains_key("TaskException"), "{kinds:?}");
}
