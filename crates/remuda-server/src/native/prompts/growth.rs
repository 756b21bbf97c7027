//! Entries of the history and of the queue, in the table of everything that must grow with its input; see the one of the
//! crate `comfyui`.

use std::hint::black_box;

use remuda_core::{PromptExtra, Status, TaskInput, TaskResult};
use remuda_testbed::growth::{case, check};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value, json};

use super::entry::{Entry, Item, outputs};
use crate::native::socket::tests::task;

/// An object with `n` members, each made by `member` from its number.
fn object(n: usize, member: impl Fn(usize) -> (String, Value)) -> Box<RawValue> {
    to_raw_value(&(0..n).map(member).collect::<Map<_, _>>()).unwrap()
}

#[test]
fn entries_grow_with_their_tasks() {
    check(&[case(
        &["Entry::new", "Item::new", "Item::number", "Item::workflow", "entry::outputs"],
        "many nodes, results, targets and members of extra_data",
        300,
        |n| {
            let graph = object(n, |at| (at.to_string(), json!({"class_type": "Save", "inputs": {"a": at}})));
            let extra_data = object(n, |at| (format!("member_{at}"), json!({"key": at, "text": "x"})));
            let file = |at: usize| json!({"images": [{"filename": format!("{at}.png"), "type": "output"}]});
            let left: Map<String, Value> = (0..n).map(|at| (at.to_string(), file(at))).collect();
            let mut ended = task(Status::Completed);
            ended.result = Some(TaskResult { outputs: Value::Object(left).into(), ..TaskResult::default() });
            let input = |outputs: Vec<String>| {
                let extra =
                    PromptExtra { outputs, extra_data: Some(extra_data.clone()), ..PromptExtra::default() };
                let extra = Some(Box::new(extra));
                TaskInput {
                    workflow: graph.clone(),
                    placements: Vec::new(),
                    requires: Default::default(),
                    extra,
                }
            };
            let unknown = input(Vec::new());
            let known = input((0..n).map(|at| at.to_string()).collect());
            Box::new(move || {
                for input in [&unknown, &known] {
                    let item = Item::new(&ended, input.clone());
                    black_box(serde_json::to_string(&(item.number(), item.workflow(), &item)).unwrap());
                    let entry = Entry::new(&ended, input.clone()).unwrap();
                    black_box(serde_json::to_string(&entry).unwrap());
                }
                black_box(outputs(&ended));
            })
        },
    )]);
}
