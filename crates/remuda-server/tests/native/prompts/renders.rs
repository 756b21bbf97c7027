//! Prompts that really run, on simulated ComfyUIs.

use comfyui::Client;
use comfyui_sim::faults::Fault;
use remuda_testbed::wait;
use serde_json::{Value, json};

use crate::rig::{BOUND, Ranch, long, picture};
use crate::support::{JsonText as _, json};

/// Names of the fields of an object, in order.
fn fields(value: &Value) -> Vec<&str> {
    value.as_object().unwrap_or_else(|| panic!("{value}")).keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_picture_leaves_an_entry_as_recorded() {
    let ranch = Ranch::start(1).await;
    let graph = picture();
    let body = json!({"prompt": graph, "client_id": "tester", "extra_data": {
        "extra_pnginfo": {"workflow": {"id": "wf-1", "nodes": []}}, "my_own_key": {"kept": true},
        "api_key_comfy_org": "SECRET-KEY", "auth_token_comfy_org": "SECRET-TOKEN"}});
    let answer = ranch.prompt_with(body).await;
    assert_eq!(fields(&answer), ["prompt_id", "number", "node_errors"]);
    assert_eq!((&answer["number"], &answer["node_errors"]), (&json!(0), &json!({})));
    let id = answer["prompt_id"].as_str().unwrap();

    let entry = ranch.entry(id).await;
    assert_eq!(fields(&entry), ["prompt", "outputs", "status", "meta"]);
    let item = entry["prompt"].as_array().unwrap();
    assert_eq!((item.len(), &item[0], &item[1], &item[2]), (5, &json!(0), &json!(id), &graph));
    assert_eq!(fields(&item[3]), ["extra_pnginfo", "my_own_key", "client_id", "create_time"]);
    assert_eq!(item[3]["client_id"], "tester");
    assert_eq!(item[4], json!(["3"]));
    let file = &entry["outputs"]["3"]["images"][0];
    assert_eq!(file["subfolder"], json!(format!("remuda/{id}/pictures")));
    assert_eq!((&file["type"], &file["filename"]), (&json!("output"), &json!("one_00001_.png")));
    let status = &entry["status"];
    assert_eq!((&status["status_str"], &status["completed"]), (&json!("success"), &json!(true)));
    let kinds: Vec<&Value> = status["messages"].as_array().unwrap().iter().map(|pair| &pair[0]).collect();
    assert_eq!(kinds, ["execution_start", "execution_cached", "execution_success"]);
    let times: Vec<i64> = status["messages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| pair[1]["timestamp"].as_i64().unwrap())
        .collect();
    assert!(item[3]["create_time"].as_i64().unwrap() <= times[0] && times[0] <= times[2], "{entry}");
    let about = json!({"node_id": "3", "display_node": "3", "parent_node": null, "real_node_id": "3"});
    assert_eq!(entry["meta"], json!({"3": about}));

    // The same prompt as a job.
    let job = ranch.get(&format!("/api/jobs/{id}")).await;
    assert_eq!((&job["status"], &job["workflow_id"]), (&json!("completed"), &json!("wf-1")));
    assert_eq!(job["outputs"], entry["outputs"]);
    assert_eq!(job["execution_status"], entry["status"]);
    assert_eq!(job["workflow"], json!({"prompt": graph, "extra_data": item[3]}));
    assert_eq!((&job["outputs_count"], &job["previewable_outputs_count"]), (&json!(1), &json!(1)));
    let mut shown = file.clone();
    shown["nodeId"] = "3".into();
    shown["mediaType"] = "images".into();
    assert_eq!(job["preview_output"], shown);
    assert_eq!(
        (&job["execution_start_time"], &job["execution_end_time"]),
        (&json!(times[0]), &json!(times[2]))
    );

    assert_eq!(ranch.get("/queue").await, json!({"queue_running": [], "queue_pending": []}));
    assert_eq!(ranch.get("/api/prompt").await, json!({"exec_info": {"queue_remaining": 0}}));
    for path in ["/history", "/api/history?max_items=64", "/api/jobs"] {
        let text = ranch.gateway.get(path).send().await.unwrap().text().await.unwrap();
        assert!(text.contains(id) && !text.contains("SECRET"), "{path}: {text}");
    }
    ranch.stop().await;
}

#[tokio::test]
async fn a_node_that_raises_is_an_error_with_its_own_words() {
    let ranch = Ranch::start_with(1, |options| options.defaults.max_retries = 0).await;
    let graph = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 1}},
        "2": {"class_type": "RigRaise", "inputs": {"kind": "ValueError", "message": "broken", "seed": 1, "image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}},
    });
    let id = ranch.prompt(&graph).await;
    let entry = ranch.entry(&id).await;
    let status = &entry["status"];
    assert_eq!((&status["status_str"], &status["completed"]), (&json!("error"), &json!(false)));
    let last = status["messages"].as_array().unwrap().last().unwrap();
    assert_eq!(last[0], "execution_error");
    let error = &last[1];
    assert_eq!(
        fields(error),
        [
            "prompt_id",
            "node_id",
            "node_type",
            "executed",
            "exception_message",
            "exception_type",
            "traceback",
            "current_inputs",
            "current_outputs",
            "timestamp"
        ]
    );
    assert_eq!(
        (&error["prompt_id"], &error["node_id"], &error["node_type"]),
        (&json!(id), &json!("2"), &json!("RigRaise"))
    );
    assert_eq!(
        (&error["exception_type"], &error["exception_message"]),
        (&json!("ValueError"), &json!("broken"))
    );
    assert!(!error["traceback"].as_array().unwrap().is_empty());
    let job = ranch.get(&format!("/api/jobs/{id}")).await;
    assert_eq!((&job["status"], &job["execution_error"]), (&json!("failed"), error));
    ranch.stop().await;
}

#[tokio::test]
async fn what_only_the_worker_can_refuse_ends_as_an_error() {
    let ranch = Ranch::start(1).await;
    let graph = json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": "not_there.png"}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    });
    let id = ranch.prompt(&graph).await;
    let entry = ranch.entry(&id).await;
    let last = entry["status"]["messages"].as_array().unwrap().last().unwrap();
    let error = &last[1];
    assert_eq!(
        (&last[0], &error["exception_type"]),
        (&json!("execution_error"), &json!("remuda.validation"))
    );
    assert_eq!((&error["node_id"], &error["node_type"]), (&json!("1"), &json!("LoadImage")));
    assert!(error["exception_message"].as_str().unwrap().contains("not_there.png"), "{error}");
    assert_eq!(error["node_errors"]["1"]["errors"][0]["type"], "custom_validation_failed");
    ranch.stop().await;
}

#[tokio::test]
async fn an_interrupt_hits_the_prompt_it_names_and_a_bare_one_the_oldest() {
    let ranch = Ranch::start(2).await;
    let first = ranch.prompt(&long(600.0)).await;
    running(&ranch, &[&first]).await;
    let second = ranch.prompt(&long(600.0)).await;
    running(&ranch, &[&first, &second]).await;
    let interrupt = |body: Value| ranch.gateway.post("/interrupt").json_text(&body.to_string()).send();

    let unknown = json!({"prompt_id": "00000000-0000-0000-0000-000000000000"});
    assert_eq!(interrupt(unknown).await.unwrap().status(), 200);
    running(&ranch, &[&first, &second]).await;

    let answer = interrupt(json!({"prompt_id": second})).await.unwrap();
    assert_eq!((answer.status(), answer.text().await.unwrap()), (reqwest::StatusCode::OK, String::new()));
    let entry = ranch.entry(&second).await;
    assert_eq!(entry["status"]["messages"][2][0], "execution_interrupted");
    assert_eq!(
        (&entry["status"]["status_str"], &entry["status"]["completed"]),
        (&json!("error"), &json!(false))
    );
    assert_eq!(ranch.get(&format!("/api/jobs/{second}")).await["status"], "cancelled");
    running(&ranch, &[&first]).await;

    let third = ranch.prompt(&long(600.0)).await;
    running(&ranch, &[&first, &third]).await;
    assert_eq!(ranch.gateway.post("/api/interrupt").send().await.unwrap().status(), 200);
    ranch.entry(&first).await;
    running(&ranch, &[&third]).await;

    let answer = ranch.gateway.post(&format!("/api/jobs/{third}/cancel")).send().await.unwrap();
    assert_eq!(json(answer, 200).await, json!({"cancelled": true}));
    ranch.entry(&third).await;
    let answer = ranch.gateway.post(&format!("/api/jobs/{third}/cancel")).send().await.unwrap();
    assert_eq!(json(answer, 200).await, json!({"cancelled": false}));
    ranch.stop().await;
}

/// A prompt that waits behind another at its worker has not begun: for its client it waits like the rest.
#[tokio::test]
async fn what_waits_at_a_worker_can_be_taken_out() {
    let ranch = Ranch::start(1).await;
    let stuck = ranch.sims[0].faults().add(Fault::stuck_node());
    let first = ranch.prompt(&picture()).await;
    running(&ranch, &[&first]).await;
    let mut others = Vec::new();
    for _ in 0..3 {
        others.push(ranch.prompt(&picture()).await);
    }
    wait::until("one to be sent ahead", BOUND, async || {
        let task = ranch.task(&others[0]).await;
        (task.status == remuda_core::Status::Running).then_some(()).ok_or(format!("{task:?}"))
    })
    .await
    .unwrap();
    let queue = ranch.get("/queue").await;
    let ids = |list: &str| -> Vec<String> {
        let items = queue[list].as_array().unwrap().iter();
        items.map(|item| item[1].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!((ids("queue_running"), ids("queue_pending")), (vec![first.clone()], others.clone()));
    let post = async |body: Value| {
        let answer = ranch.gateway.post("/queue").body(body.to_string()).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    };
    post(json!({"delete": [others[0]]})).await;
    assert_eq!(ranch.task(&others[0]).await.status, remuda_core::Status::Cancelled);
    post(json!({"clear": true})).await;
    assert_eq!(ranch.get("/prompt").await["exec_info"]["queue_remaining"], 1, "what runs stays");
    let there = Client::new(&ranch.sims[0].url()).unwrap();
    wait::until("the others to be gone from there", BOUND, async || {
        let queue = there.queue().await.map_err(|error| error.to_string())?;
        if queue.pending.is_empty() { Ok(()) } else { Err(format!("{queue:?}")) }
    })
    .await
    .unwrap();
    ranch.sims[0].faults().remove(stuck);
    assert_eq!(ranch.entry(&first).await["status"]["status_str"], "success");
    let history = ranch.get("/history").await;
    assert_eq!(history.as_object().unwrap().keys().collect::<Vec<_>>(), [&first], "the others left no trace");
    assert_eq!(ranch.sims[0].stats().executions_total, 1);
    ranch.stop().await;
}

/// Waits until exactly these run.
async fn running(ranch: &Ranch, ids: &[&str]) {
    let waited = wait::until(format!("{ids:?} to run"), BOUND, async || {
        let queue = ranch.get("/queue").await;
        let found: Vec<&str> =
            queue["queue_running"].as_array().unwrap().iter().map(|item| item[1].as_str().unwrap()).collect();
        if found == ids { Ok(()) } else { Err(queue.to_string()) }
    });
    waited.await.expect("in time");
}
