//! What goes wrong at the server and on the way to it: each with the right end, and one execution.

use std::time::Duration;

use littlehorse_double::proto::TaskStatus;
use littlehorse_double::{Fault, Method, NewRun, OAuth, Options, quota};
use remuda_testbed::process::Program;
use serde_json::{Value, json};

use crate::stage::{Stage, ended, error, graph, last, output, until};
use crate::support::PATIENCE;

#[tokio::test]
async fn a_cut_connection_and_a_goaway_lose_nothing() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    tokio::time::timeout(PATIENCE, stage.double.until_parked(0, 1)).await.unwrap();
    stage.double.cut(0);
    until("it to ask again", async || stage.double.journal().asked() >= 2).await;
    stage.sim.hold().await;
    let first = stage.double.schedule(NewRun::json("order-1", graph(1, 100).to_string()));
    stage.rendering().await;
    stage.double.goaway(0);
    stage.sim.release().await;
    output(&ended(&first).await);
    stage.sim.hold().await;
    let second = stage.double.schedule(NewRun::json("order-2", graph(2, 100).to_string()));
    stage.rendering().await;
    stage.double.reset_streams(0);
    stage.sim.release().await;
    output(&ended(&second).await);
    assert_eq!(stage.sim.executions().await, 2);
}

#[tokio::test]
async fn what_is_delivered_twice_is_rendered_once() {
    let stage = Stage::new().await;
    let _worker = stage.worker_with(&["--slots", "2"], &[]).await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(3, 100).to_string()));
    stage.rendering().await;
    tokio::time::timeout(PATIENCE, stage.double.until_parked(0, 1)).await.unwrap();
    until("it to be delivered again", async || run.deliver_again()).await;
    stage.sim.release().await;
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn hosts_come_and_go() {
    let stage = Stage::with(Options::default().hosts(2)).await;
    let _worker = stage.worker().await;
    for (n, host) in [0, 1, 0, 1].into_iter().enumerate() {
        let new = NewRun::json(format!("order-{n}"), graph(10 + n as u64, 100).to_string()).at(host);
        output(&ended(&stage.double.schedule(new)).await);
    }
    assert_eq!(stage.sim.executions().await, 4);
}

#[tokio::test]
async fn a_report_that_is_refused_for_a_while_is_heard_at_last() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    stage.double.inject(Method::ReportTask, Fault::Refuse(quota(Duration::from_millis(100))), 3);
    let run = stage.double.schedule(NewRun::json("order-1", graph(20, 50).to_string()));
    output(&ended(&run).await);
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn where_a_prompt_is_can_be_seen_at_the_server() {
    let stage = Stage::new().await;
    let worker = stage.worker().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(21, 3000).to_string()));
    let result = output(&ended(&run).await);
    let kept = run.checkpoints();
    assert_eq!(kept.len(), 1, "{kept:?}");
    let Some(littlehorse_double::proto::variable_value::Value::JsonObj(text)) =
        kept[0].value.as_ref().and_then(|value| value.value.clone())
    else {
        panic!("{kept:?}")
    };
    let kept: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(kept, json!({"prompt_id": result["prompt_id"], "instance": worker.first["workers"][0]}));
    assert_eq!(run.reports()[0].report.total_checkpoints, 1);
}

#[tokio::test]
async fn a_task_that_another_worker_has_by_now_is_let_go_of() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(22, 4000).to_string()).attempts(3));
    stage.rendering().await;
    run.taken_by("somebody-else");
    // The slot is free for others long before the render is over, and the render is left alone.
    let next = stage.double.schedule(NewRun::json("order-2", graph(23, 50).to_string()));
    output(&ended(&next).await);
    until("both to be rendered", async || stage.sim.executions().await == 2).await;
    assert_eq!(run.task_run().unwrap().attempts[1].status(), TaskStatus::TaskRunning);
    assert!(run.reports().iter().all(|seen| !seen.heard), "{:?}", run.reports());
}

#[tokio::test]
async fn a_result_that_is_too_large_for_the_server_says_so() {
    let stage = Stage::new().await;
    // Paths as long as they may be.
    let folder = format!("/{}", "x".repeat(4000));
    let _worker = stage.worker_with(&[], &[("COMFYUI_OUTPUT_DIR", &folder)]).await;
    let many = json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 300, "color": 0}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "many"}},
    });
    let run = stage.double.schedule(NewRun::json("order-1", many.to_string()).attempts(3));
    let task = ended(&run).await;
    assert_eq!(task.status(), TaskStatus::TaskOutputSerdeError, "{task:?}");
    assert!(error(last(&task)).contains("300 outputs"), "{task:?}");
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn a_wrong_tenant_is_told() {
    let stage = Stage::new().await;
    let port = stage.double.port(0).to_string();
    let data = stage.dir.path().to_str().unwrap();
    let env = [
        ("LHC_API_HOST", "127.0.0.1"),
        ("LHC_API_PORT", port.as_str()),
        ("LHC_TENANT_ID", "nobody"),
        ("COMFYUI_BASE_URL", stage.sim.url()),
        ("COMFYUI_OUTPUT_DIR", "/out"),
    ];
    let args = ["worker", "--source", "littlehorse", "--data", data];
    let mut worker = Program::start(env!("CARGO_BIN_EXE_remuda"), args, env).unwrap();
    let exit = worker.wait_exit(PATIENCE).await.unwrap();
    assert_eq!(exit.code(), Some(2), "{:?}", worker.output());
    worker.wait_line("Tenant not allowed", PATIENCE).await.unwrap();
}

#[tokio::test]
async fn a_token_that_is_not_good_any_more_is_renewed() {
    let oauth = OAuth {
        client_id: "worker".into(),
        client_secret: "hunter2".into(),
        lifetime: Duration::from_secs(600),
    };
    let stage = Stage::with(Options { oauth: Some(oauth.clone()), ..Options::default() }).await;
    let url = stage.double.tokens().unwrap().url();
    let env = [
        ("LHC_OAUTH_CLIENT_ID", oauth.client_id.as_str()),
        ("LHC_OAUTH_CLIENT_SECRET", oauth.client_secret.as_str()),
        ("LHC_OAUTH_ACCESS_TOKEN_URL", url.as_str()),
    ];
    let _worker = stage.worker_with(&[], &env).await;
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(30, 100).to_string()));
    stage.rendering().await;
    stage.double.tokens().unwrap().revoke();
    stage.sim.release().await;
    output(&ended(&run).await);
    assert!(stage.double.tokens().unwrap().requests().len() >= 2);
}
