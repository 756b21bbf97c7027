//! How it is set up, and what it says when that is wrong.

use std::process::{Command, Output};

use littlehorse_double::proto::VariableValue;
use littlehorse_double::proto::variable_value::Value as Kind;
use littlehorse_double::{Method, NewRun, Options, json_task};
use remuda_testbed::process::Program;

use crate::stage::{Stage, ended, graph, last, output, start};
use crate::support::{PATIENCE, Running, text};

/// Runs a worker that is expected to give up.
fn fails(args: &[&str], env: &[(&str, &str)]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    Command::new(env!("CARGO_BIN_EXE_remuda"))
        .args(["worker", "--source", "littlehorse", "--data", dir.path().to_str().unwrap()])
        .args(args)
        .envs(env.iter().copied())
        .output()
        .unwrap()
}

#[tokio::test]
async fn lh_host_names_the_server() {
    let stage = Stage::new().await;
    let host = format!("127.0.0.1:{}", stage.double.port(0));
    let output_dir = stage.output();
    let env = [
        ("LH_HOST", host.as_str()),
        ("COMFYUI_BASE_URL", stage.sim.url()),
        ("COMFYUI_OUTPUT_DIR", output_dir.as_str()),
    ];
    let worker = start(stage.dir.path(), &[], &env).await;
    assert_eq!(worker.first["source"], format!("littlehorse {host}"));
    let run = stage.double.schedule(NewRun::json("order-1", graph(1, 50).to_string()));
    output(&ended(&run).await);
}

#[tokio::test]
async fn a_properties_file_is_read_below_the_variables() {
    let stage = Stage::with(Options::default().tenant("acme")).await;
    let file = stage.dir.path().join("worker.properties");
    let text = "# ours\nLHC_TENANT_ID = acme\nLHW_TASK_NAME=render\nLHW_TASK_WORKER_ID: from-the-file\n\
                LHW_TASK_WORKER_VERSION=7\nLHC_API_PORT=1\n";
    std::fs::write(&file, text).unwrap();
    let worker = stage.worker_with(&["--littlehorse-config", file.to_str().unwrap()], &[]).await;
    assert_eq!(
        (&worker.first["task"], &worker.first["worker_id"]),
        (&"render".into(), &"from-the-file".into())
    );
    let new = NewRun::json("order-1", graph(2, 50).to_string()).tenant("acme").task("render");
    let run = stage.double.schedule(new);
    let task = ended(&run).await;
    output(&task);
    assert_eq!(last(&task).task_worker_id, "from-the-file");
    assert_eq!(last(&task).task_worker_version.as_deref(), Some("7"));
}

#[tokio::test]
async fn the_task_is_registered_byte_for_byte_as_it_always_was() {
    let stage = Stage::new().await;
    let _worker = stage.worker().await;
    let put = stage.double.journal().events().into_iter().find_map(|event| match event.what {
        littlehorse_double::What::Call { message, .. } if event.method == Method::PutTaskDef => {
            Some(message.encode())
        }
        _ => None,
    });
    // From a recording of the worker that came before.
    let recorded =
        "0a18657865637574652d636f6d667975692d776f726b666c6f77120e1208776f726b666c6f772a0208001a040a020800";
    let hex: String = put.expect("a TaskDef").iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(hex, recorded);
}

#[tokio::test]
async fn a_definition_with_a_text_is_served_and_another_one_is_not() {
    let stage = Stage::new().await;
    let text_task = |inputs: usize| {
        let mut def = json_task("execute-comfyui-workflow");
        let mut input = def.input_vars.remove(0);
        let of = littlehorse_double::proto::type_definition::DefinedType::PrimitiveType(4);
        input.type_def.as_mut().unwrap().defined_type = Some(of);
        def.input_vars = vec![input; inputs];
        def
    };
    stage.double.put_task_def("default", text_task(1)).unwrap();
    let _worker = stage.worker().await;
    let value = VariableValue { value: Some(Kind::Str(graph(3, 50).to_string())) };
    let input =
        littlehorse_double::proto::VarNameAndVal { var_name: "x".into(), value: Some(value), masked: false };
    let run = stage.double.schedule(NewRun::new("order-1", vec![input]));
    output(&ended(&run).await);

    let other = Stage::new().await;
    other.double.put_task_def("default", text_task(2)).unwrap();
    let port = other.double.port(0).to_string();
    let env = [
        ("LHC_API_PORT", port.as_str()),
        ("LHC_API_HOST", "127.0.0.1"),
        ("COMFYUI_BASE_URL", other.sim.url()),
        ("COMFYUI_OUTPUT_DIR", "/out"),
    ];
    let env: Vec<(String, String)> =
        env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let failed = tokio::task::spawn_blocking(move || {
        let env: Vec<(&str, &str)> =
            env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        fails(&[], &env)
    });
    let failed = failed.await.unwrap();
    assert_eq!(failed.status.code(), Some(2), "{failed:?}");
    let said = crate::support::text(&failed.stderr);
    assert!(said.contains("workflow: STR, workflow: STR") && said.contains("workflow: JSON_OBJ"), "{said}");
}

#[test]
fn the_output_folder_must_be_known() {
    let failed = fails(&["--comfyui", "http://127.0.0.1:1"], &[]);
    assert_eq!(failed.status.code(), Some(2), "{failed:?}");
    let said = text(&failed.stderr);
    assert!(said.contains("COMFYUI_OUTPUT_DIR is not set") && said.contains("--files"), "{said}");
}

#[test]
fn the_settings_are_shown_without_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let shown = Command::new(env!("CARGO_BIN_EXE_remuda"))
        .arg("config")
        .current_dir(dir.path())
        .envs([
            ("LHC_OAUTH_CLIENT_SECRET", "hunter2"),
            ("LH_HOST", "lh:2024"),
            ("COMFYUI_POLL_INTERVAL_SEC", "0.5"),
        ])
        .output()
        .unwrap();
    let shown = text(&shown.stdout);
    let row = |name: &str| {
        let row = shown.lines().find(|line| line.starts_with(name)).expect(name);
        row.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(row("littlehorse.host"), "littlehorse.host lh:2024 env LH_HOST");
    assert_eq!(
        row("littlehorse.oauth_client_secret"),
        "littlehorse.oauth_client_secret *** env LHC_OAUTH_CLIENT_SECRET"
    );
    assert_eq!(
        row("littlehorse.poll_interval"),
        "littlehorse.poll_interval 500ms env COMFYUI_POLL_INTERVAL_SEC"
    );
    assert_eq!(row("littlehorse.history_timeout"), "littlehorse.history_timeout 10m default");
    assert!(!shown.contains("hunter2"), "{shown}");
}

#[test]
fn settings_that_make_no_sense_are_told() {
    let env = [("COMFYUI_OUTPUT_DIR", "/out"), ("COMFYUI_BASE_URL", "http://127.0.0.1:1")];
    for (name, value, told) in [
        ("LHC_API_PROTOCOL", "PLAIN", "LHC_API_PROTOCOL=PLAIN"),
        ("LHC_API_PORT", "many", "LHC_API_PORT=many"),
        ("LHW_NUM_WORKER_THREADS", "0", "LHW_NUM_WORKER_THREADS=0"),
        ("LHC_OAUTH_CLIENT_ID", "me", "LHC_OAUTH_CLIENT_SECRET"),
        ("LHC_CLIENT_CERT", "a.pem", "LHC_CLIENT_KEY"),
        ("LHW_OPTIONS_TASK_NAME", "execute-comfyui-workflow", "is also LHW_TASK_NAME"),
        ("LH_HOST", "http://lh:2023", "LH_HOST: `http://lh:2023` is not a server"),
    ] {
        let env: Vec<(&str, &str)> = env.into_iter().chain([(name, value)]).collect();
        let failed = fails(&[], &env);
        assert_eq!(failed.status.code(), Some(2), "{name}: {failed:?}");
        assert!(text(&failed.stderr).contains(told), "{name}: {}", text(&failed.stderr));
    }
}

#[test]
fn a_comfyui_that_never_comes_is_one_clear_line() {
    let env = [
        ("COMFYUI_OUTPUT_DIR", "/out"),
        ("COMFYUI_BASE_URL", "http://127.0.0.1:1"),
        ("COMFYUI_HEALTH_CHECK_TIMEOUT_SEC", "1"),
        ("COMFYUI_HEALTH_CHECK_INTERVAL_SEC", "0.1"),
        ("LOG_LEVEL", "off"),
    ];
    let failed = fails(&[], &env);
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    let said = text(&failed.stderr);
    assert!(said.contains("no ComfyUI answered at http://127.0.0.1:1 within 1 s"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[tokio::test]
async fn it_waits_for_comfyui_before_it_registers_and_for_a_server_for_ever() {
    let stage = Stage::new().await;
    stage.double.down(0).await.unwrap();
    let port = stage.double.port(0).to_string();
    let comfyui = format!("127.0.0.1:{}", remuda_testbed::net::free_port().unwrap());
    let url = format!("http://{comfyui}");
    let data = stage.dir.path().to_str().unwrap();
    let args = ["worker", "--source", "littlehorse", "--json", "--data", data];
    let env = [
        ("LHC_API_HOST", "127.0.0.1"),
        ("LHC_API_PORT", port.as_str()),
        ("COMFYUI_BASE_URL", url.as_str()),
        ("COMFYUI_OUTPUT_DIR", "/out"),
        ("COMFYUI_HEALTH_CHECK_INTERVAL_SEC", "0.1"),
    ];
    let mut worker = Program::start(env!("CARGO_BIN_EXE_remuda"), args, env).unwrap();
    worker.wait_line("ComfyUI does not answer yet", PATIENCE).await.unwrap();
    assert!(stage.double.journal().is_empty());
    let _sim = Running::start(&["sim", "--listen", &comfyui, "--json"]).await;
    worker.wait_line("cannot be reached yet", PATIENCE).await.unwrap();
    stage.double.up(0).unwrap();
    worker.wait_line("{\"", PATIENCE).await.unwrap();
    let run = stage.double.schedule(NewRun::json("order-1", graph(9, 50).to_string()));
    output(&ended(&run).await);
}

#[tokio::test]
async fn simulated_comfyuis_need_nothing_else() {
    let stage = Stage::new().await;
    let host = format!("127.0.0.1:{}", stage.double.port(0));
    let _worker = start(stage.dir.path(), &["--sim", "1", "--littlehorse", &host], &[]).await;
    let run = stage.double.schedule(NewRun::json("order-1", graph(4, 50).to_string()));
    let result = output(&ended(&run).await);
    assert!(std::fs::metadata(result["outputs"][0].as_str().unwrap()).is_ok(), "{result}");
}

#[tokio::test]
async fn there_is_a_slot_for_each_comfyui_unless_somebody_says_otherwise() {
    let stage = Stage::new().await;
    let port = stage.double.port(0).to_string();
    let env = [("LHC_API_HOST", "127.0.0.1"), ("LHC_API_PORT", port.as_str())];
    let two = start(&stage.dir.path().join("two"), &["--sim", "2"], &env).await;
    assert_eq!(two.first["slots"], 2, "{}", two.first);
    let mut one = start(&stage.dir.path().join("one"), &["--sim", "2", "--slots", "1"], &env).await;
    assert_eq!(one.first["slots"], 1, "{}", one.first);
    one.program.wait_line("fewer slots than ComfyUIs", PATIENCE).await.unwrap();
}
