//! Stories of prompts, in the table of everything that must grow with its input; see the one of the crate `comfyui`.

use std::hint::black_box;

use remuda_core::{Status, TaskResult};
use remuda_frames::{Frame, FrameKind};
use serde_json::{Map, Value, json};

use super::story::Story;
use super::tests::task;
use crate::native::names;
use remuda_testbed::growth::{case, check};

#[test]
fn stories_grow_with_what_is_told() {
    check(&[case(
        &["Story::hear", "Story::end", "names::shown_outputs"],
        "a file and a text from each of many nodes",
        150,
        |n| {
            let files = |at: usize| json!({"images": [{"filename": format!("{at}.png"), "type": "output"}]});
            let outputs: Map<String, Value> = (0..n).map(|at| (at.to_string(), files(at))).collect();
            let mut ended = task(Status::Completed);
            ended.result =
                Some(TaskResult { outputs: Value::Object(outputs).into(), ..TaskResult::default() });
            let frame = |data: Value| {
                let what = FrameKind::Message { kind: "executed".to_owned(), data: data.to_string() };
                Frame { task: ended.id, attempt: 1, what }
            };
            let frames: Vec<Frame> = (0..n)
                .flat_map(|at| {
                    let text = format!("t{at}");
                    [
                        json!({"node": at.to_string(), "output": files(at)}),
                        json!({"node": text, "output": {"text": ["x"]}}),
                    ]
                })
                .map(frame)
                .collect();
            Box::new(move || {
                let mut story = Story::new(ended.id, "x".to_owned());
                let mut out = Vec::new();
                frames.iter().for_each(|frame| story.hear(frame, &mut out));
                story.end(&ended, None, &mut out);
                black_box(names::shown_outputs(ended.id, &ended.result.as_ref().unwrap().outputs));
                black_box(out);
            })
        },
    )]);
}
