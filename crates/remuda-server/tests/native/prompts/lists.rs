//! `/queue`, `/history` and `/api/jobs` over tasks in every state. The runner is played by hand.

use std::collections::BTreeSet;

use remuda_core::transition::Ending;
use remuda_core::{FailureClass, Scope, TaskResult, WorkerId, WorkerSpec};
use remuda_store::Acquired;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::{Gateway, Ground, JsonText as _, Worker, json};

fn graph(n: u32) -> Value {
    json!({"1": {"class_type": "RigText", "inputs": {"text": n.to_string()}}})
}

async fn get(gateway: &Gateway, path: &str) -> Value {
    json(gateway.get(path).send().await.unwrap(), 200).await
}

/// Sends JSON; the answer must be 200 and empty.
async fn tell(gateway: &Gateway, path: &str, body: Value) {
    let answer = gateway.post(path).json_text(&body.to_string()).send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.text().await.unwrap()),
        (200, String::new()),
        "{path} {body}"
    );
}

async fn prompt(gateway: &Gateway, n: u32) -> String {
    prompt_with(gateway, json!({"prompt": graph(n), "client_id": "me"})).await
}

async fn prompt_with(gateway: &Gateway, body: Value) -> String {
    let answer = gateway.post("/prompt").json_text(&body.to_string()).send().await.unwrap();
    json(answer, 200).await["prompt_id"].as_str().unwrap().to_owned()
}

/// Runs the next task to a good end.
async fn complete(worker: &Worker) {
    let claim = worker.claim().await;
    let result = TaskResult {
        outputs: json!({"1": {"text": ["x"]}}).into(),
        execution_ms: Some(3),
        ..TaskResult::default()
    };
    worker.end(&claim, Ending::Completed { result, gpu_ms: Some(3) }).await;
}

fn ids(list: &Value, at: usize) -> Vec<&str> {
    list.as_array().unwrap().iter().map(|item| item[at].as_str().unwrap()).collect()
}

fn keys(object: &Value) -> Vec<&str> {
    object.as_object().unwrap().keys().map(String::as_str).collect()
}

#[tokio::test]
async fn the_queue_shows_what_runs_and_what_waits_and_gives_up_what_waits() {
    let gateway = Gateway::start().await;
    let secret = json!({"prompt": graph(0), "client_id": "me", "extra_data": {"api_key_comfy_org": "SECRET",
        "seed": 18446744073709551615_u64}});
    let mut prompts = vec![prompt_with(&gateway, secret).await];
    for n in 1..6 {
        prompts.push(prompt(&gateway, n).await);
    }
    // A task of another door is not shown.
    gateway.submit().await;
    let worker = gateway.worker().await;
    let claim = worker.claim().await;
    worker.render(&claim, 0.1).await;
    assert_eq!(claim.task.id.to_string(), prompts[0]);

    let text = gateway.get("/queue").send().await.unwrap().text().await.unwrap();
    assert!(!text.contains("SECRET") && text.contains("18446744073709551615"), "{text}");
    let queue: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(keys(&queue), ["queue_running", "queue_pending"]);
    assert_eq!(ids(&queue["queue_running"], 1), [&prompts[0]]);
    assert_eq!(ids(&queue["queue_pending"], 1), prompts[1..].iter().collect::<Vec<_>>());
    let item = &queue["queue_pending"][2];
    assert_eq!((&item[0], &item[2]), (&json!(3), &graph(3)));
    assert_eq!(keys(&item[3]), ["client_id", "create_time"]);
    assert_eq!(get(&gateway, "/prompt").await, json!({"exec_info": {"queue_remaining": 6}}));

    tell(&gateway, "/queue", json!({"delete": [prompts[2], "unknown"]})).await;
    assert_eq!(get(&gateway, &format!("/history/{}", prompts[2])).await, json!({}));
    let answer = gateway.get(&format!("/api/jobs/{}", prompts[2])).send().await.unwrap();
    assert_eq!(json(answer, 404).await, json!({"error": "Job not found"}));
    // What runs stays, whatever is said.
    tell(&gateway, "/queue", json!({"delete": [prompts[0]]})).await;
    for nothing in [json!({}), json!({"clear": false}), json!({"delete": "abc"})] {
        tell(&gateway, "/queue", nothing).await;
    }
    let queue = get(&gateway, "/api/queue").await;
    assert_eq!(ids(&queue["queue_pending"], 1), [&prompts[1], &prompts[3], &prompts[4], &prompts[5]]);
    tell(&gateway, "/queue", json!({"clear": true})).await;
    let queue = get(&gateway, "/queue").await;
    assert_eq!(
        (ids(&queue["queue_running"], 1), &queue["queue_pending"]),
        (vec![prompts[0].as_str()], &json!([]))
    );
    assert_eq!(get(&gateway, "/history").await, json!({}));
    assert_eq!(get(&gateway, "/prompt").await["exec_info"]["queue_remaining"], 1);
    // The task of the other door still waits, and the records of the others stay.
    assert_eq!(get(&gateway, "/api/v1/tasks?status=pending").await["tasks"].as_array().unwrap().len(), 1);
    assert_eq!(gateway.task(&prompts[3]).await["status"], "cancelled");

    let broken = gateway.post("/queue").json_text("{broken").send().await.unwrap();
    assert_eq!(json(broken, 400).await["error"]["type"], "invalid_request");
}

#[tokio::test]
async fn the_history_is_in_the_order_of_the_ends_and_can_be_paged() {
    let gateway = Gateway::start().await;
    let worker = gateway.worker().await;
    let mut prompts = Vec::new();
    for n in 0..5 {
        prompts.push(prompt(&gateway, n).await);
        assert_eq!(get(&gateway, &format!("/history/{}", prompts.last().unwrap())).await, json!({}));
        complete(&worker).await;
    }
    let all: Vec<&str> = prompts.iter().map(String::as_str).collect();
    let cases: [(&str, &[&str]); 12] = [
        ("", &all),
        ("?max_items=2", &all[3..]),
        ("?max_items=2&offset=0", &all[..2]),
        ("?max_items=2&offset=3", &all[3..]),
        ("?offset=3", &all[3..]),
        ("?max_items=0", &[]),
        ("?max_items=100", &all),
        ("?max_items=100000", &all),
        ("?max_items=-1", &[]),
        ("?offset=-3", &all),
        ("?offset=100", &[]),
        ("?max_items=2&offset=-1", &all[3..]),
    ];
    for (query, wanted) in cases {
        assert_eq!(keys(&get(&gateway, &format!("/history{query}")).await), wanted, "{query}");
    }
    let answer = gateway.get("/history?max_items=abc").send().await.unwrap();
    assert_eq!(json(answer, 400).await["error"]["type"], "invalid_request");
    let entry = &get(&gateway, &format!("/history/{}", all[1])).await[all[1]];
    assert_eq!(entry["outputs"], json!({"1": {"text": ["x"]}}));
    // Nobody knew the outputs when it came in.
    assert_eq!(entry["prompt"][4], json!(["1"]));

    tell(&gateway, "/history", json!({"delete": [all[0], "unknown"]})).await;
    tell(&gateway, "/history", json!({"clear": false})).await;
    assert_eq!(keys(&get(&gateway, "/history").await), all[1..]);
    assert_eq!(get(&gateway, &format!("/history/{}", all[0])).await, json!({}));
    assert_eq!(get(&gateway, "/api/jobs").await["pagination"]["total"], 4);
    tell(&gateway, "/history", json!({"clear": true})).await;
    assert_eq!(get(&gateway, "/history").await, json!({}));
    assert_eq!(gateway.task(all[4]).await["status"], "completed", "the record stays");
    let broken = gateway.post("/history").json_text("{broken").send().await.unwrap();
    json(broken, 400).await;
}

#[tokio::test]
async fn a_failure_that_no_node_raised_is_told_as_one_of_ours() {
    let gateway = Gateway::start().await;
    let worker = gateway.worker().await;
    let id = prompt(&gateway, 1).await;
    let claim = worker.claim().await;
    worker.fail(&claim, FailureClass::Timeout, "it rendered for longer than 1800 s").await;
    let entry = &get(&gateway, &format!("/history/{id}")).await[&id];
    let last = entry["status"]["messages"].as_array().unwrap().last().unwrap();
    assert_eq!((&last[0], &last[1]["exception_type"]), (&json!("execution_error"), &json!("remuda.timeout")));
    assert_eq!(last[1]["exception_message"], "it rendered for longer than 1800 s");
    assert_eq!((&entry["outputs"], &entry["meta"]), (&json!({}), &json!({})));
    assert_eq!(get(&gateway, &format!("/api/jobs/{id}")).await["status"], "failed");
}

#[tokio::test]
async fn jobs_of_every_state_are_listed_sorted_and_paged() {
    let gateway = Gateway::start().await;
    let worker = gateway.worker().await;
    let with_workflow = |n| json!({"prompt": graph(n), "client_id": "me", "number": -7.5, "extra_data": {"extra_pnginfo": {"workflow": {"id": "wf-1"}}}});
    let done = prompt_with(&gateway, with_workflow(0)).await;
    complete(&worker).await;
    let failed = prompt(&gateway, 1).await;
    let claim = worker.claim().await;
    worker.fail(&claim, FailureClass::Timeout, "late").await;
    let cancelled = prompt(&gateway, 2).await;
    let claim = worker.claim().await;
    let answer =
        gateway.post("/api/jobs/cancel").json_text(&json!({"job_ids": [cancelled, "unknown"]}).to_string());
    assert_eq!(json(answer.send().await.unwrap(), 200).await, json!({"cancelled": true}));
    worker.end(&claim, Ending::Cancelled).await;
    let running = prompt(&gateway, 3).await;
    worker.claim().await;
    let waiting = prompt(&gateway, 4).await;
    let all = [&waiting, &running, &cancelled, &failed, &done].map(String::as_str);
    let states = ["pending", "in_progress", "cancelled", "failed", "completed"];

    let listed = get(&gateway, "/api/jobs").await;
    assert_eq!(listed["pagination"], json!({"offset": 0, "limit": null, "total": 5, "has_more": false}));
    let jobs = listed["jobs"].as_array().unwrap();
    assert_eq!(jobs.iter().map(|job| job["id"].as_str().unwrap()).collect::<Vec<_>>(), all);
    assert_eq!(jobs.iter().map(|job| job["status"].as_str().unwrap()).collect::<Vec<_>>(), states);
    assert_eq!(
        keys(&jobs[0]),
        ["id", "status", "priority", "create_time", "outputs_count", "previewable_outputs_count"]
    );
    assert_eq!((&jobs[4]["priority"], &jobs[4]["workflow_id"]), (&json!(-7.5), &json!("wf-1")));
    assert_eq!(jobs[4]["preview_output"], json!({"content": "x", "nodeId": "1", "mediaType": "text"}));
    assert_eq!(jobs[3]["execution_error"]["exception_type"], "remuda.timeout");

    let cases: [(&str, &[&str]); 10] = [
        ("status=pending,in_progress", &all[..2]),
        ("status=completed,failed,cancelled&limit=64", &all[2..]),
        ("sort_order=asc&limit=2", &[all[4], all[3]]),
        ("limit=2&offset=1", &all[1..3]),
        ("offset=-5&limit=1", &all[..1]),
        ("workflow_id=wf-1", &all[4..]),
        ("workflow_id=none", &[]),
        ("sort_by=execution_duration&status=completed", &all[4..]),
        ("status=Completed", &all[4..]),
        ("offset=9", &[]),
    ];
    for (query, wanted) in cases {
        let listed = get(&gateway, &format!("/api/jobs?{query}")).await;
        let jobs = listed["jobs"].as_array().unwrap();
        assert_eq!(jobs.iter().map(|job| job["id"].as_str().unwrap()).collect::<Vec<_>>(), wanted, "{query}");
    }
    let page = get(&gateway, "/api/jobs?limit=2&offset=1").await["pagination"].clone();
    assert_eq!(page, json!({"offset": 1, "limit": 2, "total": 5, "has_more": true}));
    let listed = get(&gateway, &format!("/api/jobs?ids={done},{failed},unknown,{done}&sort_order=asc")).await;
    assert_eq!((&listed["jobs"][0]["id"], &listed["jobs"][1]["id"]), (&json!(done), &json!(failed)));
    assert_eq!(listed["pagination"]["total"], 2);

    let wrong = [
        (
            "status=nonsense",
            "Invalid status value(s): nonsense. Valid values: pending, in_progress, completed, failed, cancelled",
        ),
        ("sort_by=x", "sort_by must be 'created_at' or 'execution_duration'"),
        ("sort_order=x", "sort_order must be 'asc' or 'desc'"),
        ("limit=0", "limit must be a positive integer"),
        ("limit=x", "limit must be an integer"),
        ("offset=x", "offset must be an integer"),
    ];
    for (query, error) in wrong {
        let answer = gateway.get(&format!("/api/jobs?{query}")).send().await.unwrap();
        assert_eq!(json(answer, 400).await, json!({"error": error}), "{query}");
    }
    let answer = gateway.post("/api/jobs/cancel").json_text("{\"job_ids\": 7}").send().await.unwrap();
    json(answer, 400).await;
    let answer = gateway.post(&format!("/api/jobs/{waiting}/cancel")).send().await.unwrap();
    assert_eq!(json(answer, 200).await, json!({"cancelled": true}));
    assert_eq!(get(&gateway, "/api/jobs?status=pending").await["jobs"], json!([]));
}

#[tokio::test]
async fn another_tenant_sees_and_touches_nothing() {
    let ground = Ground::new().await;
    let mine = ground.key("default", &[Scope::Read, Scope::Submit]).await;
    // An admin's key, too, speaks for its own tenant here.
    let key = ground.key("other", &[Scope::Admin]).await;
    let gateway = Gateway::on(ground, |_| {}).await;
    let prompt = async |body: Value| {
        let request = gateway.post("/prompt").bearer_auth(&mine).json_text(&body.to_string());
        json(request.send().await.unwrap(), 200).await["prompt_id"].as_str().unwrap().to_owned()
    };
    let worker = gateway.worker().await;
    let done = prompt(json!({"prompt": graph(1), "prompt_id": "mine"})).await;
    complete(&worker).await;
    let running = prompt(json!({"prompt": graph(2)})).await;
    let claim = worker.claim().await;
    worker.render(&claim, 0.1).await;
    let waiting = prompt(json!({"prompt": graph(3)})).await;
    let as_other = |path: &str| gateway.get(path).bearer_auth(&key).send();
    let tell_as_other =
        |path: &str, body: Value| gateway.post(path).bearer_auth(&key).json_text(&body.to_string()).send();

    let empty = json!({"queue_running": [], "queue_pending": []});
    assert_eq!(json(as_other("/queue").await.unwrap(), 200).await, empty);
    assert_eq!(json(as_other("/history").await.unwrap(), 200).await, json!({}));
    assert_eq!(json(as_other("/prompt").await.unwrap(), 200).await["exec_info"]["queue_remaining"], 0);
    assert_eq!(json(as_other("/api/jobs").await.unwrap(), 200).await["pagination"]["total"], 0);
    for id in [&done, &running, &waiting] {
        assert_eq!(json(as_other(&format!("/history/{id}")).await.unwrap(), 200).await, json!({}));
        json(as_other(&format!("/api/jobs/{id}")).await.unwrap(), 404).await;
        let answer = tell_as_other(&format!("/api/jobs/{id}/cancel"), json!({})).await.unwrap();
        assert_eq!(json(answer, 200).await, json!({"cancelled": false}));
    }
    for (path, body) in [
        ("/queue", json!({"clear": true, "delete": [waiting]})),
        ("/interrupt", json!({})),
        ("/interrupt", json!({"prompt_id": running})),
        ("/history", json!({"clear": true, "delete": [done]})),
    ] {
        assert_eq!(tell_as_other(path, body).await.unwrap().status(), 200);
    }
    // The same id is theirs to choose.
    let body = json!({"prompt": graph(9), "prompt_id": "mine"});
    assert_eq!(json(tell_as_other("/prompt", body).await.unwrap(), 200).await["prompt_id"], "mine");

    let look = async |path: &str| json(gateway.get(path).bearer_auth(&mine).send().await.unwrap(), 200).await;
    let queue = look("/queue").await;
    assert_eq!(
        (ids(&queue["queue_running"], 1), ids(&queue["queue_pending"], 1)),
        (vec![running.as_str()], vec![waiting.as_str()])
    );
    assert_eq!(keys(&look("/history").await), ["mine"]);
    let task = gateway.store().task(running.parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(task.cancel_at, None);

    let free =
        |key: &str| gateway.post("/free").bearer_auth(key).json_text("{\"unload_models\": true}").send();
    assert_eq!(free(&mine).await.unwrap().status(), 403);
    assert_eq!(free(&key).await.unwrap().status(), 200);
}

#[tokio::test]
async fn long_lists_are_cut_and_counted() {
    let gateway = Gateway::start().await;
    let many = 1_100;
    let submit = |n| prompt(&gateway, n);
    let mut sent = futures_util::StreamExt::buffered(futures_util::stream::iter((0..many).map(submit)), 32);
    while futures_util::StreamExt::next(&mut sent).await.is_some() {}
    drop(sent);
    let queue = get(&gateway, "/queue").await;
    assert_eq!(queue["queue_pending"].as_array().unwrap().len(), 1000);
    assert_eq!(get(&gateway, "/prompt").await["exec_info"]["queue_remaining"], many);
    let listed = get(&gateway, "/api/jobs?limit=200&offset=1000").await;
    assert_eq!(listed["jobs"].as_array().unwrap().len(), 100);
    assert_eq!(listed["pagination"], json!({"offset": 1000, "limit": 200, "total": many, "has_more": false}));
    let worker = gateway.worker().await;
    for _ in 0..300 {
        complete(&worker).await;
    }
    // More than one page of the store.
    assert_eq!(keys(&get(&gateway, "/history?max_items=290").await).len(), 290);
    let oldest = get(&gateway, "/history?offset=0").await;
    assert_eq!(keys(&oldest).len(), 300);
    let newest = get(&gateway, "/history?max_items=64").await;
    assert_eq!(keys(&newest), keys(&oldest)[236..]);
    tell(&gateway, "/queue", json!({"clear": true})).await;
    assert_eq!(get(&gateway, "/prompt").await["exec_info"]["queue_remaining"], 0);
    assert_eq!(keys(&get(&gateway, "/history").await).len(), 300);
}

#[tokio::test]
async fn free_reaches_the_workers_of_this_process() {
    let ground = Ground::new().await;
    let owner = ground.owner;
    let gateway = Gateway::on(ground, |options| options.owner = Some(owner)).await;
    let comfyui = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let spec = WorkerSpec {
        id: WorkerId::new("gpu-1").unwrap(),
        endpoint: format!("http://{}", comfyui.local_addr().unwrap()),
        name: None,
        labels: BTreeSet::new(),
    };
    gateway.ground.addresses.add(spec.id.clone(), spec.endpoint.clone());
    let Acquired::Yes(_) = gateway.store().acquire_worker(spec, owner).await.unwrap() else { panic!() };
    let answer = gateway.post("/free").json_text("{\"unload_models\": true}").send();
    let told = async {
        let (mut connection, _) = comfyui.accept().await.unwrap();
        let mut request = Vec::new();
        while !request.ends_with(b"}") {
            assert!(connection.read_buf(&mut request).await.unwrap() > 0);
        }
        connection.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        String::from_utf8(request).unwrap()
    };
    let (answer, told) = tokio::join!(answer, told);
    assert_eq!(answer.unwrap().status(), 200);
    assert!(told.starts_with("POST /free HTTP/1.1"), "{told}");
    assert!(told.ends_with("{\"unload_models\":true,\"free_memory\":false}"), "{told}");
    let answer = gateway.post("/free").send().await.unwrap();
    json(answer, 400).await;
}
