//! TaskDefs: registered once, never changed.

use std::collections::HashMap;

use tokio::time::Instant;
use tonic::Status;

use super::Cluster;
use crate::proto::{PutTaskDefRequest, TaskDef, TaskDefId};

#[derive(Debug, Default)]
pub(super) struct Defs {
    /// By tenant and name.
    known: HashMap<(String, String), Known>,
}

#[derive(Debug)]
struct Known {
    def: TaskDef,
    visible: Instant,
}

impl Cluster {
    pub(crate) fn put_task_def(&self, tenant: &str, asked: PutTaskDefRequest) -> Result<TaskDef, Status> {
        let wrong = |c: char| !(c.is_ascii_alphanumeric() || c == '-');
        if asked.name.is_empty() || asked.name.contains(wrong) {
            return Err(Status::invalid_argument("TaskDefName must be a valid hostname"));
        }
        let key = (tenant.to_owned(), asked.name.clone());
        let visible = self.clock.now() + self.options.visible_after;
        let mut state = self.state();
        if let Some(Known { def, .. }) = state.defs.known.get(&key) {
            let same = def.input_vars == asked.input_vars
                && def.return_type.clone().unwrap_or_default() == asked.return_type.unwrap_or_default()
                && def.description == asked.description;
            return match same {
                true => Ok(def.clone()),
                false => Err(Status::already_exists(format!(
                    "TaskDef [{}] already exists and is immutable.",
                    asked.name
                ))),
            };
        }
        let def = TaskDef {
            id: Some(TaskDefId { name: asked.name }),
            input_vars: asked.input_vars,
            created_at: Some(self.clock.timestamp()),
            return_type: asked.return_type,
            description: asked.description,
        };
        state.defs.known.insert(key, Known { def: def.clone(), visible });
        Ok(def)
    }

    pub(crate) fn get_task_def(&self, tenant: &str, id: &TaskDefId) -> Result<TaskDef, Status> {
        let state = self.state();
        let known = state.defs.known.get(&(tenant.to_owned(), id.name.clone()));
        let visible = known.filter(|known| known.visible <= self.clock.now());
        visible
            .map(|known| known.def.clone())
            .ok_or_else(|| Status::not_found(format!("Couldn't find TaskDef {}", id.name)))
    }
}

impl super::State {
    /// A TaskDef, visible to others or not.
    pub(super) fn task_def(&self, tenant: &str, name: &str) -> Option<&TaskDef> {
        self.defs.known.get(&(tenant.to_owned(), name.to_owned())).map(|known| &known.def)
    }
}
