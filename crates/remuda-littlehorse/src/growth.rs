//! Inputs of tasks, in the table of everything that must grow with its input; see the one of the crate `comfyui`.

use std::hint::black_box;

use comfyui::workflow::Limits;
use littlehorse::{Input, Value};

use crate::input;
use remuda_testbed::growth::{case, check};

#[test]
fn inputs_grow_with_their_graphs() {
    check(&[case(&["input::workflow"], "many nodes with numbers", 300, |n| {
        let node =
            |at: usize| format!(r#""{at}": {{"class_type": "A", "inputs": {{"seed": {at}, "cfg": 1.5e3}}}}"#);
        let text = format!("{{{}}}", (0..n).map(node).collect::<Vec<_>>().join(", "));
        let input = Input { name: "workflow".to_owned(), value: Value::JsonObj(text), masked: false };
        Box::new(move || {
            black_box(input::workflow(&input, &Limits::default()).is_ok());
        })
    })]);
}
