//! Checkpoint 0: where a prompt is, for whoever gets the next attempt.

use littlehorse::proto::{
    LittleHorseVersion, PutCheckpointRequest, TaskRunId, VariableValue, put_checkpoint_response,
    variable_value,
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

/// Whether the server said that the attempt is over.
pub(crate) fn is_stop(answer: i32) -> bool {
    answer == i32::from(put_checkpoint_response::FlowControlContinue::StopTask)
}

#[cfg(test)]
mod tests {
    use super::*;

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
