//! The TaskDef that is served: what an existing deployment has registered, byte for byte.

use std::time::Duration;

use littlehorse::proto::{TaskDef, VariableDef};
use littlehorse::task_def::{input_type, shape};
use littlehorse::{Client, Error, NewTaskDef, Registered, Type};
use tokio::time::Instant;

/// The usual name of the task.
pub const TASK: &str = "execute-comfyui-workflow";

/// The input that has the graph.
pub const WORKFLOW: &str = "workflow";

/// The second input of the task with options.
pub const OPTIONS: &str = "options";

/// The longest pause between two tries to reach the server.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// How often it is said that the server is still away.
const REMINDER: Duration = Duration::from_secs(60);

type Fits = fn(&TaskDef) -> Option<Contract>;

/// A TaskDef that can be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Contract {
    /// Whether the workflow comes as text, exact, or as JSON that the server writes anew.
    pub workflow: Shape,
}

/// How the workflow comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// JSON_OBJ.
    Json,
    /// STR.
    Text,
}

/// One input `workflow`, a JSON object; a JSON object comes back; no description.
pub fn task_def(name: &str) -> NewTaskDef {
    NewTaskDef::new(name).input(WORKFLOW, Type::JsonObj).returns(Type::JsonObj)
}

/// The same with a second input `options`, a JSON object.
pub fn task_def_with_options(name: &str) -> NewTaskDef {
    NewTaskDef::new(name).input(WORKFLOW, Type::JsonObj).input(OPTIONS, Type::JsonObj).returns(Type::JsonObj)
}

/// Whether a registered TaskDef can be served: one input, a JSON object or text.
pub fn fits(def: &TaskDef) -> Option<Contract> {
    let [input] = def.input_vars.as_slice() else { return None };
    Some(Contract { workflow: shape_of(input)? })
}

/// Whether one with options can be served: two inputs, each a JSON object or text.
pub fn fits_with_options(def: &TaskDef) -> Option<Contract> {
    let [workflow, options] = def.input_vars.as_slice() else { return None };
    shape_of(options)?;
    Some(Contract { workflow: shape_of(workflow)? })
}

fn shape_of(input: &VariableDef) -> Option<Shape> {
    match input_type(input)? {
        Type::JsonObj => Some(Shape::Json),
        Type::Str => Some(Shape::Text),
        _ => None,
    }
}

/// Registers the TaskDef, or finds one that can be served. Waits for a server that is away, for ever.
pub async fn register(client: &Client, name: &str) -> Result<Contract, Error> {
    register_as(client, &task_def(name), fits).await
}

/// Registers the TaskDef with options, or finds one that can be served.
pub async fn register_with_options(client: &Client, name: &str) -> Result<Contract, Error> {
    register_as(client, &task_def_with_options(name), fits_with_options).await
}

async fn register_as(client: &Client, wanted: &NewTaskDef, fits: Fits) -> Result<Contract, Error> {
    let mut pause = Duration::from_millis(250);
    let mut told: Option<Instant> = None;
    loop {
        match try_register(client, wanted, fits).await {
            Err(error) if error.is_transient() => {
                if told.is_none_or(|at| at.elapsed() >= REMINDER) {
                    told = Some(Instant::now());
                    tracing::warn!(%error, "the LittleHorse server cannot be reached yet; waiting for it");
                }
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            done => return done,
        }
    }
}

async fn try_register(client: &Client, wanted: &NewTaskDef, fits: Fits) -> Result<Contract, Error> {
    let name = &wanted.request.name;
    let def = match client.put_task_def(wanted).await {
        Ok(Registered::Same(def) | Registered::Differs(def)) => def,
        // Who may not register may still serve what somebody else has registered.
        Err(refused @ Error::Refused { .. }) if !refused.is_transient() => {
            match client.get_task_def(name).await {
                Ok(def) => def,
                Err(_) => return Err(refused),
            }
        }
        Err(error) => return Err(error),
    };
    fits(&def).ok_or_else(|| Error::Differs {
        name: name.clone(),
        registered: shape(&def),
        wanted: format!("{}, or STR instead of JSON_OBJ", wanted.shape()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn def(inputs: &[(&str, Type)]) -> TaskDef {
        let new = inputs.iter().fold(NewTaskDef::new(TASK), |def, (name, of)| def.input(name, *of));
        TaskDef { input_vars: new.request.input_vars, ..TaskDef::default() }
    }

    #[test]
    fn one_object_or_text_can_be_served() {
        let json = fits(&def(&[("workflow", Type::JsonObj)]));
        assert_eq!(json, Some(Contract { workflow: Shape::Json }));
        // Inputs are taken by their place: names are for people.
        assert_eq!(fits(&def(&[("0-graph", Type::Str)])), Some(Contract { workflow: Shape::Text }));
        assert_eq!(fits(&def(&[])), None);
        assert_eq!(fits(&def(&[("workflow", Type::JsonArr)])), None);
        assert_eq!(fits(&def(&[("workflow", Type::JsonObj), ("more", Type::Int)])), None);
    }

    #[test]
    fn with_options_there_are_two() {
        let two =
            |workflow, options| fits_with_options(&def(&[("workflow", workflow), ("options", options)]));
        assert_eq!(two(Type::JsonObj, Type::JsonObj), Some(Contract { workflow: Shape::Json }));
        assert_eq!(two(Type::Str, Type::Str), Some(Contract { workflow: Shape::Text }));
        assert_eq!(two(Type::JsonObj, Type::Int), None);
        assert_eq!(fits_with_options(&def(&[("workflow", Type::JsonObj)])), None);
    }
}
