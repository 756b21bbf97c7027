//! Merges of descriptions, in the table of everything that must grow with its input; see the one of the crate `comfyui`.

use std::hint::black_box;

use serde_json::{Value, json};

use super::merge::{Description, add_choices, merge};
use remuda_testbed::growth::{case, check};

fn description(name: &str, classes: usize, choices: usize, shift: usize) -> Description {
    let list: Vec<Value> = (shift..choices + shift).map(|at| json!(format!("m{at}.safetensors"))).collect();
    let class =
        json!({"input": {"required": {"ckpt_name": [list, {"image_upload": true}]}}, "output": ["A"]});
    let classes: Vec<String> = (0..classes).map(|at| format!("\"C{at}\": {class}")).collect();
    Description { workers: vec![name.to_owned()], key: None, json: format!("{{{}}}", classes.join(", ")) }
}

#[test]
fn merges_grow_with_their_descriptions() {
    check(&[
        case(&["merge::merge"], "many classes", 100, |n| {
            let descriptions = [description("a", n, 2, 0), description("b", n, 2, 1)];
            Box::new(move || {
                black_box(merge(&descriptions));
            })
        }),
        case(&["merge::merge", "merge::add_choices"], "many choices, each somewhere else", 200, |n| {
            let descriptions =
                [description("a", 1, n, 0), description("b", 1, n, n / 2), description("c", 1, n, n)];
            Box::new(move || {
                let (merged, errors) = merge(&descriptions);
                assert!(errors.is_empty());
                let mut class: Value =
                    serde_json::from_slice(&merged.whole[merged.classes["C0"].clone()]).unwrap();
                add_choices(
                    &mut class,
                    "ckpt_name",
                    (0..merged.whole.len() / 20).map(|at| format!("{at}.png")),
                );
                black_box(class);
            })
        }),
        case(&["merge::merge"], "one description for each of many workers", 4, |n| {
            let descriptions: Vec<Description> =
                (0..n).map(|at| description(&format!("w{at}"), 20, 5, at)).collect();
            Box::new(move || {
                black_box(merge(&descriptions));
            })
        }),
    ]);
}
