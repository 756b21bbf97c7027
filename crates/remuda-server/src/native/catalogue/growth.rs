//! Merges of descriptions, in the table of everything that must grow with its input; see the one of the crate `comfyui`.

use std::hint::black_box;

use comfyui::object_info::UploadKind;
use remuda_core::{Sha256, Tenant, Timestamp};
use remuda_store::Asset;
use serde_json::{Value, json};

use super::choices::{places, put_in};
use super::merge::{Description, merge};
use remuda_testbed::growth::{case, check};

fn description(name: &str, classes: usize, choices: usize, shift: usize) -> Description {
    let list: Vec<Value> = (shift..choices + shift).map(|at| json!(format!("m{at}.safetensors"))).collect();
    let class =
        json!({"input": {"required": {"ckpt_name": [list, {"image_upload": true}]}}, "output": ["A"]});
    let classes: Vec<String> = (0..classes).map(|at| format!("\"C{at}\": {class}")).collect();
    Description { workers: vec![name.to_owned()], key: None, json: format!("{{{}}}", classes.join(", ")) }
}

fn upload(n: usize) -> Asset {
    Asset {
        tenant: Tenant::new("a").unwrap(),
        sha256: Sha256::of(b"x"),
        key: String::new(),
        filename: format!("m{n}.safetensors"),
        mime: "image/png".to_owned(),
        size: 1,
        created_at: Timestamp::UNIX_EPOCH,
    }
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
        case(&["merge::merge", "choices::places"], "many choices, each somewhere else", 200, |n| {
            let descriptions =
                [description("a", 1, n, 0), description("b", 1, n, n / 2), description("c", 1, n, n)];
            Box::new(move || {
                let (merged, errors) = merge(&descriptions);
                assert!(errors.is_empty());
                let text = std::str::from_utf8(&merged.whole[merged.classes["C0"].clone()]).unwrap();
                let inputs = [("ckpt_name".to_owned(), UploadKind::Image)].into();
                assert_eq!(black_box(places(text, &inputs)).len(), 1);
            })
        }),
        case(&["choices::put_in"], "many uploads among many choices", 200, |n| {
            let (merged, _) = merge(&[description("a", 3, n, 0)]);
            let uploads: Vec<Asset> = (0..n).map(upload).collect();
            Box::new(move || {
                black_box(put_in(&merged, 0..merged.whole.len(), &merged.uploads, &uploads));
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
