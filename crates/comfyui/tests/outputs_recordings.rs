//! The outputs in the recordings of a real ComfyUI.

#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use comfyui::outputs::{Output, Outputs};
use serde_json::Value;

fn recording(name: &str) -> Value {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../comfyui-sim/tests/recordings");
    serde_json::from_slice(&std::fs::read(folder.join(name)).unwrap()).unwrap()
}

/// Every distinct file of the history entries of a recording: class of the node, key, ending, kind.
fn files(name: &str) -> BTreeSet<(String, String, String, String)> {
    let recording = recording(name);
    let mut found = BTreeSet::new();
    for exchange in recording["exchanges"].as_array().unwrap() {
        for entry in exchange["response"]["body"].as_object().into_iter().flat_map(|body| body.values()) {
            let (Some(outputs), Some(graph)) = (entry.get("outputs"), entry["prompt"].get(2)) else {
                continue;
            };
            let outputs = Outputs::from_history(&serde_json::value::to_raw_value(outputs).unwrap());
            for file in outputs.files() {
                let class = graph[&file.node_id]["class_type"].as_str().unwrap_or("?").to_owned();
                let ending = file.filename.rsplit('.').next().unwrap().to_owned();
                found.insert((class, file.key.clone(), ending, file.kind.to_string()));
            }
        }
    }
    found
}

#[test]
fn every_kind_of_file_is_recognised() {
    let expected = [
        ("MaskPreview", "images", "png", "image"),
        ("PreviewAudio", "audio", "flac", "audio"),
        ("PreviewImage", "images", "png", "image"),
        ("SaveAnimatedPNG", "images", "png", "animated image"),
        ("SaveAnimatedWEBP", "images", "webp", "animated image"),
        ("SaveAudio", "audio", "flac", "audio"),
        ("SaveAudioMP3", "audio", "mp3", "audio"),
        ("SaveAudioOpus", "audio", "opus", "audio"),
        ("SaveGLB", "3d", "glb", "3d model"),
        ("SaveImage", "images", "png", "image"),
        ("SaveLatent", "latents", "latent", "latent"),
        ("SaveSVGNode", "images", "svg", "image"),
        ("SaveVideo", "images", "mp4", "video"),
        ("SaveWEBM", "images", "webm", "video"),
    ];
    let expected: BTreeSet<_> = expected
        .map(|(class, key, ending, kind)| {
            (class.to_owned(), key.to_owned(), ending.to_owned(), kind.to_owned())
        })
        .into();
    assert_eq!(files("outputs_kinds.json"), expected);
}

#[test]
fn video_helper_suite_reports_under_gifs() {
    let files = files("video_helper_suite.json");
    assert!(files.iter().all(|(_, key, _, _)| key == "gifs"), "{files:?}");
    let videos = files.iter().filter(|(_, _, _, kind)| kind == "video").count();
    assert!(videos > 0, "{files:?}");
}

/// A node of the recording puts odd things into its results on purpose.
#[test]
fn what_is_no_file_is_kept_as_it_is() {
    let recording = recording("outputs_kinds.json");
    let outputs: Vec<Outputs> = (recording["exchanges"].as_array().unwrap().iter())
        .flat_map(|exchange| {
            exchange["response"]["body"].as_object().into_iter().flat_map(|body| body.values())
        })
        .filter_map(|entry| entry.get("outputs"))
        .map(|outputs| Outputs::from_history(&serde_json::value::to_raw_value(outputs).unwrap()))
        .collect();
    assert!(outputs.iter().any(|outputs| outputs.texts().eq(["a text result"])));
    let mut data = outputs.iter().flat_map(|outputs| &outputs.nodes).flat_map(|node| &node.outputs);
    assert!(data.any(|output| matches!(output, Output::Data { key, raw } if key == "text" && raw.get() == r#"{"deep":[1]}"#)));
}
