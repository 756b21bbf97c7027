//! What clients see of prompts that run.

use super::{Rig, at};
use crate::config::Profile;
use crate::engine::client::Client;
use crate::engine::{Answer, PromptFaults, Raised, Run};
use crate::json::Json;
use crate::media::png;
use crate::nodes::{Call, Memory};

const CHAIN: &str = r#""1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 1}},
    "3": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
    "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "rig/ok"}}"#;

#[tokio::test]
async fn the_owner_sees_every_step_in_order() {
    let rig = Rig::new(Profile::V0_7_0);
    let (entry, frames) = rig.run(&format!(r#"{{"prompt": {{{CHAIN}}}, "client_id": "me"}}"#)).await;
    let file = r#"[{"filename": "ok_00001_.png", "subfolder": "rig", "type": "output"}]"#;
    assert_eq!(
        frames,
        [
            "*: status 1",
            "*: status 1",
            "me: execution_start",
            "me: execution_cached  []",
            "me: state 1 0.0 running",
            "me: executing 1",
            "me: state 1 1.0 finished",
            "me: state 3 0.0 running",
            "me: executing 3",
            "me: state 3 1.0 finished",
            "me: state 4 0.0 running",
            "me: executing 4",
            &format!(r#"me: executed 4 {{"images": {file}}}"#),
            "me: state 4 1.0 finished",
            "me: execution_success",
            "*: status 0",
            "me: executing None",
        ]
    );
    assert_eq!(at(&entry, "outputs/4/images").dump(), file);
    assert_eq!(at(&entry, "status/status_str").str(), "success");
    assert_eq!(
        at(&entry, "meta").dump(),
        r#"{"4": {"node_id": "4", "display_node": "4", "parent_node": null, "real_node_id": "4"}}"#
    );
    let png = std::fs::read(rig.base.path().join("output/rig/ok_00001_.png")).unwrap();
    assert_eq!(png::decode(&png).unwrap().pixel(5, 5), [255, 255, 254]);
    assert!(png.windows(12).any(|part| part == b"tEXtprompt\0{"), "the prompt is in the file");
}

#[tokio::test]
async fn cached_prompts_report_the_earlier_files_unless_nobody_asks() {
    let with_owner = format!(r#"{{"prompt": {{{CHAIN}}}, "client_id": "me"}}"#);
    let without = format!(r#"{{"prompt": {{{CHAIN}}}}}"#);
    let rig = Rig::new(Profile::V0_7_0);
    rig.run(&with_owner).await;
    let (entry, frames) = rig.run(&with_owner).await;
    assert_eq!(at(&entry, "outputs/4/images/0/filename").str(), "ok_00001_.png");
    let shown: Vec<&str> = frames.iter().filter_map(|frame| frame.strip_prefix("me: ")).collect();
    assert_eq!(shown[1], r#"execution_cached  ["1", "3", "4"]"#);
    assert!(shown[2].starts_with("executed 4 {"), "{shown:?}");
    assert_eq!(shown[3], "state 4 1 finished");
    let (entry, frames) = rig.run(&without).await;
    assert_eq!(at(&entry, "outputs").dump(), "{}");
    assert_eq!(at(&entry, "status/status_str").str(), "success");
    assert_eq!(frames, ["*: status 1", "*: status 1", "*: state 4 1 finished", "*: status 0"]);
    assert_eq!(rig.executions.snapshot().executions_total, 3);

    let older = Rig::new(Profile::V0_3_64);
    older.run(&with_owner).await;
    let (entry, _) = older.run(&without).await;
    assert_eq!(at(&entry, "outputs/4/images/0/filename").str(), "ok_00001_.png");
}

#[tokio::test]
async fn expansions_blockers_and_asynchronous_nodes() {
    let rig = Rig::new(Profile::V0_7_0);
    let expand = |mode: &str| {
        format!(
            r#"{{"prompt": {{"1": {{"class_type": "RigExpand", "inputs": {{"mode": "{mode}", "seed": {}}}}},
                "2": {{"class_type": "SaveImage", "inputs": {{"images": ["1", 0], "filename_prefix": "x"}}}}}},
                "client_id": "me"}}"#,
            // Another seed for each: what one expansion made would serve the next.
            mode.len()
        )
    };
    let names = |frames: &[String]| -> Vec<String> {
        frames.iter().filter_map(|frame| frame.strip_prefix("me: executing ")).map(str::to_owned).collect()
    };
    let (entry, frames) = rig.run(&expand("save")).await;
    assert_eq!(names(&frames), ["1", "1.0.0.1", "1.0.0.2", "1.0.0.3", "2", "None"]);
    assert_eq!(
        at(&entry, "meta/1.0.0.3").dump(),
        r#"{"node_id": "1.0.0.3", "display_node": "1", "parent_node": "1", "real_node_id": "1"}"#
    );

    let (entry, _) = rig.run(&expand("raise")).await;
    let error = at(&entry, "status/messages/last/1");
    assert_eq!(at(error, "node_id").str(), "1");
    assert_eq!(at(error, "executed").dump(), r#"["1.0.0.1", "1.0.0.2"]"#);
    assert_eq!(at(error, "current_outputs").dump(), r#"["1", "2", "1.0.0.1", "1.0.0.2", "1.0.0.3"]"#);

    let (entry, _) = rig.run(&expand("cycle")).await;
    assert_eq!(at(&entry, "status/messages/last/1/exception_type").str(), "graph.DependencyCycleError");
    assert_eq!(at(&entry, "status/completed").dump(), "true");

    let blocked = r#"{"prompt": {"1": {"class_type": "RigBlock", "inputs": {"message": "on purpose", "silent": false}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
        "3": {"class_type": "RigText", "inputs": {"text": "t"}}}, "client_id": "me"}"#;
    let (entry, frames) = rig.run(blocked).await;
    assert_eq!(names(&frames), ["3", "1", "2", "None"]);
    assert!(frames.contains(&r#"me: execution_error 2 "ExecutionBlocked""#.to_owned()));
    assert_eq!(at(&entry, "outputs").dump(), r#"{"3": {"text": ["t"]}}"#);
    assert_eq!(at(&entry, "status/messages/last/0").str(), "execution_success");

    let both = r#"{"prompt": {"1": {"class_type": "RigAsync", "inputs": {"seconds": 0.05, "seed": 1}},
        "2": {"class_type": "RigAsync", "inputs": {"seconds": 0.05, "seed": 2}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}}}, "client_id": "me"}"#;
    let (_, frames) = rig.run(both).await;
    assert_eq!(names(&frames), ["1", "2", "3", "4", "None"]);
}

#[tokio::test]
async fn errors_carry_the_whole_tensor_and_interrupts_reach_everybody() {
    let rig = Rig::new(Profile::V0_7_0);
    let raise = r#"{"prompt": {"1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 1}},
        "2": {"class_type": "RigRaise", "inputs": {"kind": "OOM", "message": "m", "seed": 1, "image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}}}, "client_id": "me"}"#;
    let (entry, _) = rig.run(raise).await;
    let error = at(&entry, "status/messages/last/1");
    assert_eq!(at(error, "exception_type").str(), "torch.OutOfMemoryError");
    assert!(at(error, "exception_message").str().starts_with("m\nThis error means you ran out of memory"));
    assert_eq!(at(error, "traceback").as_list().unwrap().len(), 5);
    assert!(at(error, "current_inputs/image/0").str().starts_with("tensor([[[[0.0000, 0.0000, 0.0039],\n"));
    assert_eq!(at(&entry, "status/completed").dump(), "false");

    let long = r#"{"prompt": {"1": {"class_type": "RigProgress", "inputs": {"steps": 10000, "step_ms": 1, "preview": "none",
        "preview_size": 8, "seed": 1}}, "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}}}}"#;
    let (_, answer) = rig.submit(long);
    let id = at(&answer, "prompt_id").str();
    let heard = |rig: &Rig, text: &str| rig.ear.0.lock().unwrap().iter().any(|frame| frame.contains(text));
    rig.until("no progress", |rig| heard(rig, "*: progress 1 3")).await;
    let other = Json::parse(br#"{"prompt_id": "other"}"#).unwrap();
    assert_eq!(rig.engine.interrupt(Some(&other)), Answer::Empty(200));
    rig.until("no progress", |rig| heard(rig, "*: progress 1 9")).await;
    assert!(rig.history(&id).is_none());
    assert_eq!(rig.engine.interrupt(None), Answer::Empty(200));
    rig.until("not interrupted", |rig| rig.history(&id).is_some()).await;
    assert!(heard(&rig, "*: execution_interrupted 1"));
}

#[tokio::test]
async fn a_render_shows_progress_and_previews_to_those_who_can_read_them() {
    let rig = Rig::new(Profile::V0_7_0);
    let render = |client: &str, seed: u64| {
        format!(
            r#"{{"prompt": {{"4": {{"class_type": "CheckpointLoaderSimple", "inputs": {{"ckpt_name": "flux1-dev-fp8.safetensors"}}}},
            "5": {{"class_type": "EmptyLatentImage", "inputs": {{"width": 64, "height": 64, "batch_size": 2}}}},
            "6": {{"class_type": "CLIPTextEncode", "inputs": {{"text": "a horse", "clip": ["4", 1]}}}},
            "7": {{"class_type": "CLIPTextEncode", "inputs": {{"text": "", "clip": ["4", 1]}}}},
            "3": {{"class_type": "KSampler", "inputs": {{"seed": {seed}, "steps": 2, "cfg": 7, "sampler_name": "euler",
                "scheduler": "normal", "denoise": 1.0, "model": ["4", 0], "positive": ["6", 0], "negative": ["7", 0], "latent_image": ["5", 0]}}}},
            "8": {{"class_type": "VAEDecode", "inputs": {{"samples": ["3", 0], "vae": ["4", 2]}}}},
            "9": {{"class_type": "SaveImage", "inputs": {{"images": ["8", 0], "filename_prefix": "{client}/r"}}}}}}, "client_id": "{client}"}}"#
        )
    };
    let (entry, frames) = rig.run(&render("plain", u64::MAX)).await;
    assert_eq!(at(&entry, "outputs/9/images").as_list().unwrap().len(), 2);
    let of_sampler: Vec<&str> = frames
        .iter()
        .filter_map(|frame| frame.strip_prefix("plain: "))
        .filter(|frame| frame.contains(" 3 ") || frame.starts_with("binary"))
        .collect();
    assert_eq!(
        of_sampler,
        [
            "state 3 0.0 running",
            "state 3 1 running",
            "progress 3 1",
            "binary 1",
            "state 3 2 running",
            "progress 3 2",
            "binary 1",
            "state 3 2 finished"
        ]
    );
    rig.engine.free(&Json::parse(br#"{"free_memory": true}"#).unwrap());
    let (_, frames) = rig.run(&render("flagged", 1)).await;
    let of_previews: Vec<&str> = frames
        .iter()
        .filter_map(|frame| frame.strip_prefix("flagged: "))
        .filter(|frame| frame.starts_with("progress 3") || frame.starts_with("binary"))
        .collect();
    assert_eq!(of_previews, ["binary 4", "progress 3 1", "binary 4", "progress 3 2"]);
}

/// Every class that is described can also be run: none answers that it is not simulated.
#[tokio::test]
async fn every_described_class_is_simulated() {
    let rig = Rig::new(Profile::V0_7_0);
    let Answer::Json(_, described) = rig.engine.object_info(None) else {
        panic!("no object_info");
    };
    for class in described.as_dict().unwrap().keys().filter(|class| *class != "RigExit") {
        let run = Run::new("id".into(), Client::Nobody, PromptFaults::default(), false, &rig.engine);
        let memory = Memory::new(0);
        let call = Call {
            run: &run,
            memory: &memory,
            node: "1",
            class: rig.engine.registry.get(class).unwrap(),
            inputs: &indexmap::IndexMap::new(),
            prompt: &Json::Null,
            png_info: &Json::Null,
        };
        if let Err(Raised::Exception(exception)) = crate::nodes::run(&call).await {
            assert_ne!(exception.kind, "NotImplementedError", "{class}");
        }
    }
}
