//! Values that attempts keep for later ones, which also tell an attempt that it is over.

use tonic::Status;

use super::{Cluster, RunKey, not_found};
use crate::proto::put_checkpoint_response::FlowControlContinue;
use crate::proto::{
    Checkpoint, CheckpointId, PutCheckpointRequest, PutCheckpointResponse, TaskRun, TaskRunId, TaskStatus,
};

impl Cluster {
    pub(crate) fn put_checkpoint(
        &self,
        tenant: &str,
        request: PutCheckpointRequest,
    ) -> Result<PutCheckpointResponse, Status> {
        let unknown = || Status::invalid_argument("Could not find specified TaskRun");
        let id = request.task_run_id.ok_or_else(unknown)?;
        let now = self.clock.timestamp();
        let mut state = self.state();
        let run = state.runs.get_mut(&RunKey::new(tenant, &id)).ok_or_else(unknown)?;
        if run.latest() != request.task_attempt || run.status() != TaskStatus::TaskRunning || run.stops {
            let stop = FlowControlContinue::StopTask as i32;
            return Ok(PutCheckpointResponse { flow_control_continue_type: stop, created_checkpoint: None });
        }
        let checkpoint_number = i32::try_from(run.checkpoints.len()).unwrap_or(i32::MAX);
        let made = Checkpoint {
            id: Some(CheckpointId { task_run: Some(id), checkpoint_number }),
            value: request.value,
            logs: request.logs,
            created_at: Some(now),
        };
        run.checkpoints.push(made.clone());
        drop(state);
        self.tell();
        let go_on = FlowControlContinue::ContinueTask as i32;
        Ok(PutCheckpointResponse { flow_control_continue_type: go_on, created_checkpoint: Some(made) })
    }

    pub(crate) fn get_checkpoint(&self, tenant: &str, id: &CheckpointId) -> Result<Checkpoint, Status> {
        let state = self.state();
        let run = id.task_run.as_ref().and_then(|run| state.runs.get(&RunKey::new(tenant, run)));
        let place = usize::try_from(id.checkpoint_number).unwrap_or(usize::MAX);
        let kept = run.and_then(|run| run.checkpoints.get(place));
        kept.cloned().ok_or_else(not_found)
    }

    pub(crate) fn get_task_run(&self, tenant: &str, id: &TaskRunId) -> Result<TaskRun, Status> {
        let state = self.state();
        let run = state.runs.get(&RunKey::new(tenant, id));
        run.map(|run| run.frozen.clone().unwrap_or_else(|| run.message())).ok_or_else(not_found)
    }
}
