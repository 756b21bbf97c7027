//! Answers of the synchronous handler, in the table of everything that must grow with its input; see the one of the crate `comfyui`.

use std::hint::black_box;
use std::time::Duration;

use remuda_core::{OutputFile, Sha256, TaskId, TaskResult};

use super::answer;
use remuda_testbed::growth::{case, check};

#[test]
fn answers_grow_with_their_files() {
    check(&[case(&["answer::plan"], "a file from each of many nodes", 200, |n| {
        let file = |at: usize| OutputFile {
            n: 0,
            key: format!("outputs/x/{at}"),
            filename: format!("{at}.png"),
            subfolder: String::new(),
            node_id: at.to_string(),
            output: "images".to_owned(),
            file_type: "output".to_owned(),
            mime: "image/png".to_owned(),
            size: 1,
            sha256: Sha256([0; 32]),
        };
        let result = TaskResult { files: (0..n).map(file).collect(), ..TaskResult::default() };
        Box::new(move || {
            black_box(answer::planned(TaskId::new(), &result, Duration::ZERO));
        })
    })]);
}
