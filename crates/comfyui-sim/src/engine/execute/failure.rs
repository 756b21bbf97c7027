//! What is told about a node that failed, was interrupted, blocked, or waits for itself.

use super::{Execution, Failure};
use crate::config::Profile;
use crate::engine::{Exception, Frame, Raised};
use crate::hub::Outgoing;
use crate::json::{Dict, Json, dict, list};
use crate::nodes::Value;
use indexmap::IndexMap;

/// What ComfyUI adds to the message of a lack of memory.
const MEMORY_ADVICE: &str = "This error means you ran out of memory on your GPU.\n\nTIPS: If the workflow worked \
                             before you might have accidentally set the batch_size to a large number.";

impl Execution<'_> {
    pub(super) fn cycle(&mut self, nodes: &[String], current_outputs: &[String]) -> Failure {
        let made = nodes.iter().find(|id| self.graph.display(id) != id.as_str());
        let blamed =
            made.map_or(nodes.first().cloned().unwrap_or_default(), |id| self.graph.display(id).to_owned());
        let data = self.error(
            &blamed,
            "Dependency cycle detected",
            "graph.DependencyCycleError",
            Json::List(Vec::new()),
            Json::List(Vec::new()),
            current_outputs,
        );
        self.message("execution_error", data, false);
        Failure::Told
    }

    pub(super) fn failed(
        &mut self,
        id: &str,
        raised: Raised,
        inputs: &IndexMap<String, Value>,
        current_outputs: &[String],
    ) -> Failure {
        let real = self.graph.real(id).to_owned();
        match raised {
            Raised::WorkerEnds => Failure::WorkerDies,
            Raised::ProcessEnds => Failure::ProcessEnds,
            Raised::Interrupted => {
                self.kept.success = false;
                let data = dict([
                    ("prompt_id", self.id()),
                    ("node_id", real.as_str().into()),
                    ("node_type", self.graph.class(&real).into()),
                    ("executed", list(self.executed.iter())),
                ]);
                self.message("execution_interrupted", data, true);
                Failure::Told
            }
            Raised::Exception(exception) => {
                self.kept.success = false;
                let advice = if exception.kind == "torch.OutOfMemoryError" { MEMORY_ADVICE } else { "" };
                let message = if self.run.profile() < Profile::V0_3_64 {
                    exception.message.clone()
                } else {
                    format!("{}\n{advice}", exception.message)
                };
                let shown = inputs.iter().map(|(name, value)| (name.clone(), list([value.shown()])));
                let above = [
                    Frame::comfy("execution.py", 518, "execute"),
                    Frame::comfy("execution.py", 329, "get_output_data"),
                    Frame::comfy("execution.py", 303, "_async_map_node_over_list"),
                    Frame::comfy("execution.py", 291, "process_inputs"),
                ];
                let traceback = exception.traceback(&above);
                let data = self.error(
                    &real,
                    &message,
                    &exception.kind,
                    traceback,
                    Json::Dict(shown.collect()),
                    current_outputs,
                );
                self.message("execution_error", data, false);
                Failure::Told
            }
        }
    }

    fn error(
        &self,
        node: &str,
        message: &str,
        kind: &str,
        traceback: Json,
        inputs: Json,
        current_outputs: &[String],
    ) -> Json {
        dict([
            ("prompt_id", self.id()),
            ("node_id", node.into()),
            ("node_type", self.graph.class(node).into()),
            ("executed", list(self.executed.iter())),
            ("exception_message", message.into()),
            ("exception_type", kind.into()),
            ("traceback", traceback),
            ("current_inputs", inputs),
            ("current_outputs", list(current_outputs.iter())),
        ])
    }

    /// A blocked branch looks like an error on the socket and leaves no trace in the history.
    pub(super) fn tell_blocked(&self, id: &str, message: &str) {
        let data = self.error(
            id,
            &format!("Execution Blocked: {message}"),
            "ExecutionBlocked",
            Json::List(Vec::new()),
            Json::List(Vec::new()),
            &[],
        );
        self.run.client.tell_or_all(&*self.run.hub, Outgoing::Text { event: "execution_error", data });
    }
}

/// Every member of a ui becomes a list of what Python finds when walking over it.
pub(super) fn flatten(ui: &Json) -> Result<Dict, Exception> {
    let Json::Dict(members) = ui else {
        let message = format!("'{}' object has no attribute 'keys'", ui.type_name());
        return Err(Exception::new("AttributeError", message));
    };
    let walk = |value: &Json| match value {
        Json::List(values) => Ok(values.clone()),
        Json::Str(text) => Ok(text.chars().map(|letter| letter.to_string().into()).collect()),
        Json::Dict(members) => Ok(members.keys().map(Json::from).collect()),
        other => Err(Exception::new("TypeError", format!("'{}' object is not iterable", other.type_name()))),
    };
    members.iter().map(|(key, value)| Ok((key.clone(), Json::List(walk(value)?)))).collect()
}
