//! What the workflow gets, and what it sees of failures.

use crate::shared;
use crate::stage::{Stage, failure, graph, output, output_folder};
use crate::support::{PATIENCE, post};
use remuda_testbed::littlehorse::{Input, RunStatus, TaskStatus, Workflow};
use remuda_testbed::process::Program;
use serde_json::json;

#[tokio::test]
async fn results_and_failures_reach_the_workflow() {
    let mut stage = Stage::new(shared().await, "ends").await;
    stage.workflow = stage.workflow.retries(2);
    let _worker = stage.worker().await;

    stage.run("fine", graph(1, 100)).await;
    let fine = stage.ended("fine").await;
    let result = output(&fine);
    assert_eq!(result["outputs"], json!([format!("{}/fox/a_00001_.png", output_folder(&stage.sim))]));
    assert!(std::fs::read(result["outputs"][0].as_str().unwrap()).unwrap().starts_with(b"\x89PNG"));
    let id = result["prompt_id"].as_str().unwrap();
    let history = stage.sim.get(&format!("/history/{id}")).await;
    assert_eq!(history[id]["status"]["status_str"], "success", "{history}");
    assert!(fine.attempts[0].log.contains(id), "the log of the task tells of the prompt: {fine:?}");

    // What ComfyUI refuses is not tried again, and can be handled by its name.
    let mut wrong = graph(2, 100);
    wrong["1"]["inputs"]["steps"] = json!(-5);
    stage.run("refused", wrong).await;
    let refused = stage.ended("refused").await;
    assert_eq!((refused.status, refused.attempts.len()), (RunStatus::Exception, 1), "{refused:?}");
    let (name, content) = failure(&refused);
    assert_eq!(name, "comfyui-prompt-rejected");
    let kind = &content["node_errors"]["1"]["errors"][0]["type"];
    assert_eq!(kind, "value_smaller_than_min", "{content}");

    // What may go well the next time is tried again, as a prompt of its own.
    let fault = json!({"kind": "out_of_memory", "times": 1});
    let (code, added) = post(&format!("{}/sim/faults", stage.sim.url()), None, fault.to_string()).await;
    assert_eq!(code, 200, "{added}");
    stage.run("second-try", graph(3, 100)).await;
    let second = stage.ended("second-try").await;
    output(&second);
    let statuses: Vec<_> = second.attempts.iter().map(|attempt| attempt.status).collect();
    assert_eq!(statuses, [TaskStatus::TaskFailed, TaskStatus::TaskSuccess], "{second:?}");
    assert!(second.attempts[0].error.as_ref().unwrap().contains("OutOfMemory"), "{second:?}");
    assert_eq!(stage.sim.executions().await, 3);
}

/// Seeds go up to 2^64 - 1, and the server reads JSON with 63 bits.
#[tokio::test]
async fn large_seeds_pass_as_text_and_are_refused_as_json() {
    let server = shared().await;
    let largest = graph(77, 100).to_string().replace("\"seed\":77", "\"seed\": 18446744073709551615");

    let stage = Stage::new(server, "seed-json").await;
    let _worker = stage.worker().await;
    stage.run("damaged", &largest).await;
    let damaged = stage.ended("damaged").await;
    let (name, content) = failure(&damaged);
    assert_eq!(name, "comfyui-damaged-number", "{damaged:?}");
    assert_eq!((&content["node_id"], &content["input"]), (&json!("1"), &json!("seed")), "{content}");
    assert_eq!(stage.sim.executions().await, 0, "another picture is worse than none");

    // The task has another input; the worker takes it as it is.
    let mut stage = Stage::new(server, "seed-text").await;
    stage.workflow = Workflow::of("seed-text", Input::Text);
    stage.workflows.put_task("seed-text", Input::Text).await.unwrap();
    let _worker = stage.worker().await;
    stage.run("exact", &largest).await;
    let exact = stage.ended("exact").await;
    let id = output(&exact)["prompt_id"].as_str().unwrap().to_owned();
    let entry =
        reqwest::get(format!("{}/history/{id}", stage.sim.url())).await.unwrap().text().await.unwrap();
    assert!(entry.contains("18446744073709551615"), "{entry}");
}

#[tokio::test]
async fn a_wrong_tenant_is_said_in_one_line() {
    let stage = Stage::new(shared().await, "tenant").await;
    let output = output_folder(&stage.sim);
    let mut variables = stage.variables(&stage.sim, &output);
    variables.push(("LHC_TENANT_ID", "nobody"));
    let data = stage.dir.path().to_str().unwrap();
    let args = ["worker", "--source", "littlehorse", "--data", data];
    let mut worker = Program::start(env!("CARGO_BIN_EXE_remuda"), args, variables).unwrap();
    let status = worker.wait_exit(PATIENCE).await.unwrap();
    assert!(!status.success(), "{status}");
    let said = worker.output();
    let last = said.last().unwrap();
    assert!(last.ends_with("Tenant not allowed (as tenant nobody)"), "{said:?}");
}

/// A red pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

/// The second task: its options go through the server, which writes them anew.
#[tokio::test]
async fn options_reach_the_render_and_may_be_left_out() {
    let mut stage = Stage::new(shared().await, "no-options").await;
    let more = [("LHW_OPTIONS_TASK_NAME", "with-options")];
    let _worker = stage.worker_with(stage.dir.path(), &stage.sim, &more).await;
    stage.workflow = Workflow::of("with-options", Input::Json).with_options();
    stage.workflows.put(&stage.workflow).await.unwrap();
    let run = async |id: &str, graph: serde_json::Value, options: serde_json::Value| {
        let (graph, options) = (graph.to_string(), options.to_string());
        stage.workflows.run_with(&stage.workflow, id, &graph, Some(&options)).await.unwrap();
        stage.ended(id).await
    };

    stage.run("options-left-out", graph(1, 100)).await;
    output(&stage.ended("options-left-out").await);

    let mut picture = graph(2, 100);
    picture["3"] = json!({"class_type": "LoadImage", "inputs": {"image": "x.png"}});
    picture["4"] =
        json!({"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "copy"}});
    let file = json!({"node_id": "3", "input": "image", "filename": "cat.png", "base64": PIXEL});
    let placed = run("options-files", picture, json!({"timeout_s": 60, "files": [file]})).await;
    let result = output(&placed);
    let paths = result["outputs"].as_array().unwrap().iter().filter_map(|path| path.as_str());
    let copy = std::fs::read(paths.clone().find(|path| path.contains("/copy_")).expect("a copy")).unwrap();
    assert_eq!(&copy[16..24], [0, 0, 0, 1, 0, 0, 0, 1], "one pixel");

    let late = run("options-late", graph(3, 600_000), json!({"timeout_s": 1})).await;
    assert_eq!((late.status, late.task), (RunStatus::Error, TaskStatus::TaskFailed), "{late:?}");
    stage.is_idle().await;

    let unknown = run("options-unknown", graph(4, 100), json!({"timeout": 1})).await;
    assert_eq!(unknown.task, TaskStatus::TaskInputVarSubError, "{unknown:?}");
    assert!(unknown.attempts[0].error.as_ref().unwrap().contains("`timeout` is not known"), "{unknown:?}");

    let folder = run("options-folder", graph(5, 100), json!({"folder": "a"})).await;
    assert_eq!(failure(&folder).0, "comfyui-folder-refused", "{folder:?}");
    assert_eq!(stage.sim.executions().await, 3);
}
