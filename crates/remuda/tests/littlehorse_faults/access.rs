//! Who may come in, and where: tenants, tokens, names, data directories.

use std::time::Duration;

use littlehorse_double::{NewRun, OAuth, Options, json_task};

use crate::rig::{all_heard, begin, begin_with, env, gives_up};
use crate::stage::{Stage, ended, graph, output};
use crate::support::{PATIENCE, text};

#[tokio::test]
async fn a_tenant_that_is_not_there_is_told_and_the_worker_stops() {
    let stage = Stage::new().await;
    let mut env = env(&stage);
    env.push(("LHC_TENANT_ID".to_owned(), "nobody".to_owned()));
    let failed = gives_up(stage.dir.path(), env).await;
    assert_eq!(failed.status.code(), Some(2), "{failed:?}");
    let said = text(&failed.stderr);
    assert!(said.contains("Tenant not allowed"), "{said}");
}

#[tokio::test]
async fn tokens_that_run_out_or_are_revoked_are_renewed() {
    let lifetime = Duration::from_secs(2);
    let oauth = OAuth { client_id: "worker".into(), client_secret: "secret".into(), lifetime };
    let stage = Stage::with(Options { oauth: Some(oauth), ..Options::default() }).await;
    let tokens = stage.double.tokens().unwrap();
    let url = tokens.url();
    let credentials = [
        ("LHC_OAUTH_CLIENT_ID", "worker"),
        ("LHC_OAUTH_CLIENT_SECRET", "secret"),
        ("LHC_OAUTH_ACCESS_TOKEN_URL", url.as_str()),
    ];
    let _worker = stage.worker_with(&[], &credentials).await;
    // It runs out in mid-render.
    let run = stage.double.schedule(NewRun::json("order-1", graph(1, 4000).to_string()));
    output(&ended(&run).await);
    // It is taken away in mid-render, and the token service stumbles when a new one is wanted.
    stage.sim.hold().await;
    let run = stage.double.schedule(NewRun::json("order-2", graph(2, 500).to_string()));
    stage.rendering().await;
    tokens.fail(2);
    tokens.revoke();
    stage.sim.release().await;
    let task = ended(&run).await;
    output(&task);
    assert_eq!(task.attempts.len(), 1, "{task:?}");
    assert_eq!(stage.sim.executions().await, 2);
    all_heard(stage.dir.path()).await;
    assert!(tokens.requests().len() >= 3, "{:?}", tokens.requests().len());
}

#[tokio::test]
async fn a_wrong_secret_is_told_and_the_worker_stops() {
    let lifetime = Duration::from_secs(60);
    let oauth = OAuth { client_id: "worker".into(), client_secret: "secret".into(), lifetime };
    let stage = Stage::with(Options { oauth: Some(oauth), ..Options::default() }).await;
    let mut env = env(&stage);
    let url = stage.double.tokens().unwrap().url();
    for (name, value) in [
        ("LHC_OAUTH_CLIENT_ID", "worker"),
        ("LHC_OAUTH_CLIENT_SECRET", "guessed"),
        ("LHC_OAUTH_ACCESS_TOKEN_URL", url.as_str()),
    ] {
        env.push((name.to_owned(), value.to_owned()));
    }
    let failed = gives_up(stage.dir.path(), env).await;
    assert_eq!(failed.status.code(), Some(2), "{failed:?}");
    let said = text(&failed.stderr);
    assert!(said.contains("no access token from") && !said.contains("guessed"), "{said}");
}

/// Other clients of LittleHorse do the same, without a word.
#[tokio::test]
async fn a_secret_that_goes_over_the_network_in_clear_is_told() {
    let stage = Stage::new().await;
    let url = |url: &str| {
        [
            ("LHC_OAUTH_CLIENT_ID".to_owned(), "worker".to_owned()),
            ("LHC_OAUTH_CLIENT_SECRET".to_owned(), "secret".to_owned()),
            ("LHC_OAUTH_ACCESS_TOKEN_URL".to_owned(), url.to_owned()),
        ]
    };
    let mut worker = begin_with(&stage, url("http://id.invalid/token"));
    let line = worker.wait_line("the client secret goes over the network in clear", PATIENCE).await.unwrap();
    assert!(line.contains("id.invalid") && line.contains("WARN"), "{line}");
    drop(worker);
    let mut worker = begin_with(&stage, url("http://127.0.0.1:9/token"));
    worker.wait_line("cannot be reached yet", PATIENCE).await.unwrap();
    assert!(
        !worker.output().join("\n").contains("client secret"),
        "within the machine: {:?}",
        worker.output()
    );
}

#[tokio::test]
async fn a_second_process_on_the_same_data_is_refused() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let failed = gives_up(stage.dir.path(), env(&stage)).await;
    assert!(!failed.status.success(), "{failed:?}");
    let said = text(&failed.stderr);
    assert!(said.contains("another Remuda uses the data directory"), "{said}");
    let run = stage.double.schedule(NewRun::json("order-1", graph(3, 50).to_string()));
    output(&ended(&run).await);
}

#[tokio::test]
async fn a_name_that_nobody_knows_is_one_clear_line() {
    let options = Options { advertised: "lh-0.invalid".to_owned(), ..Options::default() };
    let stage = Stage::with(options).await;
    let mut worker = stage.worker().await;
    let line = worker.program.wait_line("the server advertises the name", PATIENCE).await.unwrap();
    assert!(line.contains("lh-0.invalid") && line.contains("LHS_ADVERTISED_LISTENERS"), "{line}");
}

/// Another definition under the name: both are shown. What differs only in words is served.
#[tokio::test]
async fn a_definition_that_differs_is_shown_beside_ours() {
    let stage = Stage::new().await;
    let mut other = json_task("execute-comfyui-workflow");
    other.description = Some("somebody else's".to_owned());
    stage.double.put_task_def("default", other).unwrap();
    let worker = begin(&stage);
    let run = stage.double.schedule(NewRun::json("order-1", graph(4, 50).to_string()));
    output(&ended(&run).await);
    drop(worker);

    let stage = Stage::new().await;
    let mut other = json_task("execute-comfyui-workflow");
    other.input_vars.clear();
    stage.double.put_task_def("default", other).unwrap();
    let failed = gives_up(stage.dir.path(), env(&stage)).await;
    assert_eq!(failed.status.code(), Some(2), "{failed:?}");
    let said = text(&failed.stderr);
    assert!(said.contains("registered: ") && said.contains("wanted: "), "{said}");
    assert!(said.contains("workflow: JSON_OBJ"), "{said}");
}
