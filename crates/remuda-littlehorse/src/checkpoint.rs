//! Checkpoint 0: where a prompt is, for people who look while it renders, and for whoever gets the next attempt.

use littlehorse::proto::{
    Checkpoint, CheckpointId, LittleHorseVersion, PutCheckpointRequest, TaskRunId, VariableValue,
    put_checkpoint_response, variable_value,
};
use remuda_core::WorkerId;
use serde_json::json;
use uuid::Uuid;

/// Whether a server has checkpoints: from 0.15 on.
pub(crate) fn are_there(version: &LittleHorseVersion) -> bool {
    (version.major_version, version.minor_version) >= (0, 15)
}

/// What is kept: the prompt and the ComfyUI that has it.
pub(crate) fn request(
    task: TaskRunId,
    attempt: i32,
    prompt_id: Uuid,
    worker: &WorkerId,
) -> PutCheckpointRequest {
    let value = json!({ "prompt_id": prompt_id, "instance": worker.to_string() });
    let value = VariableValue { value: Some(variable_value::Value::JsonObj(value.to_string())) };
    PutCheckpointRequest { task_run_id: Some(task), task_attempt: attempt, value: Some(value), logs: None }
}

/// Its name.
pub(crate) fn id(task: TaskRunId) -> CheckpointId {
    CheckpointId { task_run: Some(task), checkpoint_number: 0 }
}

/// Which prompt an earlier attempt sent to which ComfyUI; nothing, if somebody else wrote something else.
pub(crate) fn read(checkpoint: &Checkpoint) -> Option<(String, String)> {
    let Some(variable_value::Value::JsonObj(text)) = checkpoint.value.as_ref()?.value.as_ref() else {
        return None;
    };
    let value: serde_json::Value = serde_json::from_str(text).ok()?;
    Some((value["prompt_id"].as_str()?.to_owned(), value["instance"].as_str()?.to_owned()))
}

/// Whether the server said that the attempt is over.
pub(crate) fn is_stop(answer: i32) -> bool {
    answer == i32::from(put_checkpoint_response::FlowControlContinue::StopTask)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_kept_can_be_read() {
        let worker = WorkerId::new("studio:8188").unwrap();
        let kept = request(TaskRunId::default(), 0, Uuid::nil(), &worker);
        let checkpoint = Checkpoint { value: kept.value, ..Checkpoint::default() };
        assert_eq!(read(&checkpoint), Some((Uuid::nil().to_string(), "studio:8188".to_owned())));
        assert_eq!(read(&Checkpoint::default()), None);
    }

    #[test]
    fn checkpoints_came_with_0_15() {
        let version = |major_version, minor_version| LittleHorseVersion {
            major_version,
            minor_version,
            ..LittleHorseVersion::default()
        };
        assert!(!are_there(&version(0, 14)));
        assert!(are_there(&version(0, 15)) && are_there(&version(1, 0)));
    }
}
