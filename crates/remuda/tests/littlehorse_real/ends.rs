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
