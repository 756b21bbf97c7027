//! What a task returns, and how it fails.

use littlehorse_double::NewRun;
use littlehorse_double::proto::TaskStatus;
use serde_json::json;

use crate::stage::{Stage, ended, error, exception, graph, last, log, output, text_run, until};
use crate::support::{PATIENCE, get, post};

#[tokio::test]
async fn a_workflow_returns_its_id_and_the_paths_of_its_files() {
    let stage = Stage::new().await;
    let mut worker = stage.worker().await;
    assert_eq!(worker.first["task"], "execute-comfyui-workflow");
    let run = stage.double.schedule(NewRun::json("order-1", graph(1, 100).to_string()));
    let task = ended(&run).await;
    let result = output(&task);
    let outputs = result["outputs"].as_array().unwrap();
    assert_eq!(outputs.len(), 1, "{result}");
    let path = outputs[0].as_str().unwrap();
    assert_eq!(path, format!("{}/fox/a_00001_.png", stage.output()));
    assert!(std::fs::read(path).unwrap().starts_with(b"\x89PNG"));
    // The id is the one that ComfyUI knows, and the entry stays for whoever asks again.
    let id = result["prompt_id"].as_str().unwrap();
    let history = get(&format!("{}/history/{id}", stage.sim.url()), None).await;
    assert_eq!(history[id]["status"]["status_str"], "success", "{history}");
    let log = log(last(&task));
    assert!(
        log.contains(&format!(
            "submitted to {} as prompt {id}",
            worker.first["workers"][0].as_str().unwrap()
        )),
        "{log}"
    );
    assert!(log.ends_with("workflow complete"), "{log}");
    assert_eq!(stage.sim.executions().await, 1);
    // So does who runs the worker learn of it.
    let done = worker.program.wait_line("a task is done", PATIENCE).await.unwrap();
    assert!(done.contains("took_s"), "{done}");
}

#[tokio::test]
async fn every_kind_of_file_is_returned() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let graph = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 4, "color": 255}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "still"}},
        "3": {"class_type": "VHS_VideoCombine", "inputs": {"images": ["1", 0], "frame_rate": 8, "loop_count": 0,
            "filename_prefix": "clips/film", "format": "video/h264-mp4", "pingpong": false, "save_output": true}},
        "4": {"class_type": "EmptyAudio", "inputs": {"duration": 0.1, "sample_rate": 44100, "channels": 1}},
        "5": {"class_type": "SaveAudio", "inputs": {"audio": ["4", 0], "filename_prefix": "audio/beep"}},
        "6": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
    });
    let run = stage.double.schedule(NewRun::json("order-1", graph.to_string()));
    let result = output(&ended(&run).await);
    let folder = stage.output();
    let mut paths: Vec<&str> =
        result["outputs"].as_array().unwrap().iter().map(|path| path.as_str().unwrap()).collect();
    assert!(paths.iter().all(|path| std::fs::metadata(path).is_ok()), "{paths:?}");
    paths.sort_unstable();
    let names: Vec<&str> = paths.iter().map(|path| path.strip_prefix(&folder).unwrap()).collect();
    // Four stills, a film, a sound; no preview.
    assert_eq!(names.len(), 6, "{names:?}");
    assert!(names[0].starts_with("/audio/beep") && names[1].starts_with("/clips/film"), "{names:?}");
    assert!(names[2..].iter().all(|name| name.starts_with("/still_")), "{names:?}");
}

#[tokio::test]
async fn files_are_delivered_where_a_sink_is_set() {
    let stage = Stage::new().await;
    let sink = stage.dir.path().join("sink");
    let _worker = stage.worker_with(&["--output-dir", sink.to_str().unwrap()], &[]).await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(2, 50).to_string()));
    let result = output(&ended(&run).await);
    let path = result["outputs"][0].as_str().unwrap();
    assert!(path.starts_with(sink.to_str().unwrap()), "{path}");
    assert!(std::fs::read(path).unwrap().starts_with(b"\x89PNG"));
}

#[tokio::test]
async fn what_comfyui_refuses_is_an_exception_with_its_node_errors() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let mut wrong = graph(1, 50);
    wrong["1"]["inputs"]["steps"] = json!(-5);
    let run = stage.double.schedule(NewRun::json("order-1", wrong.to_string()).attempts(3));
    let task = ended(&run).await;
    assert_eq!(task.attempts.len(), 1, "the same again would be refused again");
    let (name, message, content) = exception(&task);
    assert_eq!(name, "comfyui-prompt-rejected");
    assert!(message.contains("refused"), "{message}");
    assert_eq!(content["node_errors"]["1"]["errors"][0]["type"], "value_smaller_than_min", "{content}");
    assert!(log(last(&task)).contains("value_smaller_than_min"));
}

#[tokio::test]
async fn a_node_that_is_not_there_is_an_exception_too() {
    let stage = Stage::new().await;
    let mut worker = stage.worker_with(&[], &[("LOG_LEVEL", "warn")]).await;
    let wrong = json!({"1": {"class_type": "NobodyHasThis", "inputs": {}}});
    let run = stage.double.schedule(NewRun::json("order-1", wrong.to_string()).attempts(3));
    let task = ended(&run).await;
    let (name, message, _) = exception(&task);
    assert_eq!(name, "comfyui-prompt-rejected");
    assert!(message.contains("NobodyHasThis"), "{message}");
    assert!(!log(last(&task)).contains("submitted"), "nothing was sent: {:?}", last(&task));
    let failed = worker.program.wait_line("a task failed", PATIENCE).await.unwrap();
    assert!(failed.contains("comfyui-prompt-rejected") && failed.contains("NobodyHasThis"), "{failed}");
}

#[tokio::test]
async fn a_node_that_raises_is_an_exception() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let wrong = json!({
        "1": {"class_type": "RigRaise", "inputs": {"kind": "ValueError", "message": "no such colour", "seed": 1}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "a"}},
    });
    let run = stage.double.schedule(NewRun::json("order-1", wrong.to_string()).attempts(3));
    let task = ended(&run).await;
    assert_eq!(task.attempts.len(), 1);
    let (name, message, content) = exception(&task);
    assert_eq!(name, "comfyui-execution-failed");
    assert!(message.contains("no such colour"), "{message}");
    assert_eq!((&content["node_id"], &content["node_type"]), (&json!("1"), &json!("RigRaise")), "{content}");
    assert_eq!(content["exception_type"], "ValueError", "{content}");
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn without_memory_it_is_tried_again() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let fault = json!({"kind": "out_of_memory", "times": 1});
    let (code, added) = post(&format!("{}/sim/faults", stage.sim.url()), None, fault.to_string()).await;
    assert_eq!(code, 200, "{added}");
    let run = stage.double.schedule(NewRun::json("order-1", graph(3, 50).to_string()).attempts(2));
    let task = ended(&run).await;
    assert_eq!(task.attempts.len(), 2, "{task:?}");
    assert_eq!(task.attempts[0].status(), TaskStatus::TaskFailed);
    assert!(error(&task.attempts[0]).contains("OutOfMemory"), "{:?}", task.attempts[0]);
    // The second try is a prompt of its own: the first one ended badly.
    let second = output(&task);
    let history = get(&format!("{}/history", stage.sim.url()), None).await;
    assert_eq!(history.as_object().unwrap().len(), 2, "{history}");
    assert_eq!(history[second["prompt_id"].as_str().unwrap()]["status"]["status_str"], "success");
}

#[tokio::test]
async fn a_workflow_without_outputs_fails() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let nothing = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
        "2": {"class_type": "RigSink", "inputs": {"image": ["1", 0]}},
    });
    let run = stage.double.schedule(NewRun::json("order-1", nothing.to_string()).attempts(3));
    let (name, message, content) = exception(&ended(&run).await);
    assert_eq!(name, "comfyui-no-outputs");
    assert!(message.contains("no outputs"), "{message}");
    assert!(content["prompt_id"].is_string(), "{content}");
}

#[tokio::test]
async fn a_seed_that_the_server_damaged_is_named_and_nothing_is_rendered() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    // As LittleHorse writes 18446744073709551615 anew.
    let text = graph(77, 50).to_string().replace("\"seed\":77", "\"seed\":1.8446744073709552E19");
    let run = stage.double.schedule(NewRun::json("order-1", text).attempts(3));
    let (name, message, content) = exception(&ended(&run).await);
    assert_eq!(name, "comfyui-damaged-number");
    assert!(message.contains("STR"), "{message}");
    assert_eq!((&content["node_id"], &content["input"]), (&json!("1"), &json!("seed")), "{content}");
    assert_eq!(stage.sim.executions().await, 0);
}

#[tokio::test]
async fn text_arrives_byte_for_byte() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let text = graph(77, 50).to_string().replace("\"seed\":77", "\"seed\": 18446744073709551615");
    let run = stage.double.schedule(text_run("order-1", &text));
    let result = output(&ended(&run).await);
    let id = result["prompt_id"].as_str().unwrap();
    let entry =
        reqwest::get(format!("{}/history/{id}", stage.sim.url())).await.unwrap().text().await.unwrap();
    assert!(entry.contains("18446744073709551615"), "{entry}");
}

#[tokio::test]
async fn what_is_no_workflow_is_a_bad_input_and_the_worker_goes_on() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    for (id, run) in [
        ("a", NewRun::json("a", "{\"3\": ")),
        ("b", NewRun::json("b", "{}")),
        ("c", text_run("c", "not JSON")),
        ("d", NewRun::new("d", vec![])),
    ] {
        let run = stage.double.schedule(run.attempts(3));
        let task = ended(&run).await;
        assert_eq!(task.status(), TaskStatus::TaskInputVarSubError, "{id}: {task:?}");
        assert_eq!(task.attempts.len(), 1, "{id}");
        assert!(!error(last(&task)).is_empty(), "{id}");
    }
    let run = stage.double.schedule(NewRun::json("order-1", graph(4, 50).to_string()));
    output(&ended(&run).await);
}

#[tokio::test]
async fn progress_is_told_in_few_lines() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    // At most ten steps, however long it takes, and what is said besides.
    let run = stage.double.schedule(NewRun::json("order-1", graph(5, 5000).to_string()));
    let task = ended(&run).await;
    let log = log(last(&task));
    let lines: Vec<&str> = log.lines().collect();
    assert!((4..=16).contains(&lines.len()), "{log}");
    assert!(lines.iter().any(|line| line.contains(" % (") && line.contains("node 1 at ")), "{log}");
    assert!(lines.iter().all(|line| line.starts_with("[20")), "{log}");
}

#[tokio::test]
async fn a_place_in_the_queue_is_told() {
    let stage = Stage::new().await;
    let _worker = stage.worker_with(&[], &[("COMFYUI_POLL_INTERVAL_SEC", "0.2")]).await;
    // Somebody else's prompt is before it.
    stage.sim.hold().await;
    let foreign = json!({"prompt": graph(6, 3000)});
    let (code, sent) = post(&format!("{}/prompt", stage.sim.url()), None, foreign.to_string()).await;
    assert_eq!(code, 200, "{sent}");
    let run = stage.double.schedule(NewRun::json("order-1", graph(7, 50).to_string()));
    until("it to wait there", async || {
        let queue = stage.sim.get("/queue").await;
        queue["queue_pending"].as_array().is_some_and(|list| !list.is_empty())
    })
    .await;
    // The foreign one has yet to render: time enough to look at the queue.
    stage.sim.release().await;
    let task = tokio::time::timeout(PATIENCE, run.ended()).await.unwrap();
    let log = log(last(&task));
    assert!(log.contains("queued at ComfyUI, 1 before it"), "{log}");
}
