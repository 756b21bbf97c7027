//! The second task, whose options have a time limit, files and a folder.

use std::path::PathBuf;
use std::time::Duration;

use littlehorse_double::proto::variable_value::Value as Kind;
use littlehorse_double::proto::{TaskStatus, VarNameAndVal, VariableValue};
use littlehorse_double::{Method, NewRun, What, json_task};
use serde_json::{Value, json};

use crate::stage::{Stage, ended, endless, error, exception, graph, last, output, until};
use crate::support::{get, post};

const TASK: &str = "render-with-options";

/// A red pixel.
const PIXEL: &str =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC";

async fn worker(stage: &Stage) -> crate::support::Running {
    stage.worker_with(&[], &[("LHW_OPTIONS_TASK_NAME", TASK)]).await
}

fn input(name: &str, value: Option<Kind>) -> VarNameAndVal {
    VarNameAndVal { var_name: name.to_owned(), value: Some(VariableValue { value }), masked: false }
}

/// A task with options, as it comes out of the server.
fn new(id: &str, graph: &Value, options: Option<&Value>) -> NewRun {
    let json = |value: &Value| Kind::JsonObj(value.to_string());
    let inputs = vec![input("workflow", Some(json(graph))), input("options", options.map(json))];
    NewRun::new(id, inputs).task(TASK).rewritten()
}

/// Loads a picture, renders for this long, and saves the picture.
fn picture(millis: u64) -> Value {
    let mut graph = graph(1, millis);
    graph["3"] = json!({"class_type": "LoadImage", "inputs": {"image": "somewhere/else.png"}});
    graph["4"] =
        json!({"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "copy"}});
    graph
}

fn pixel() -> Value {
    json!({"files": [{"node_id": "3", "input": "image", "filename": "my cat.png", "base64": PIXEL}]})
}

/// What was placed at ComfyUI.
fn placed(stage: &Stage) -> Vec<PathBuf> {
    let folder = format!("{}/input/remuda", stage.sim.first["dir"].as_str().unwrap());
    let entries = std::fs::read_dir(folder).into_iter().flatten();
    let paths = entries.map(|entry| entry.unwrap().path());
    // The worker's own mark is there as well.
    paths.filter(|path| path.to_str().unwrap().ends_with("-my_cat.png")).collect()
}

/// Width and height of a picture.
fn size(png: &[u8]) -> (u32, u32) {
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().unwrap());
    (number(16), number(20))
}

/// The saved copy of the picture that was loaded.
fn copy(result: &Value) -> Vec<u8> {
    let outputs = result["outputs"].as_array().unwrap();
    let copies: Vec<&str> =
        outputs.iter().filter_map(Value::as_str).filter(|path| path.contains("/copy_")).collect();
    assert_eq!(copies.len(), 1, "{result}");
    std::fs::read(copies[0]).unwrap()
}

#[tokio::test]
async fn both_tasks_are_served_in_turn_with_one_slot() {
    let stage = Stage::new().await;
    let worker = worker(&stage).await;
    assert_eq!(
        (&worker.first["task"], &worker.first["options_task"]),
        (&json!("execute-comfyui-workflow"), &json!(TASK))
    );
    let runs: Vec<_> = (0..4)
        .flat_map(|n| {
            let graph = |seed| graph(seed, 300);
            let plain = NewRun::json(format!("plain-{n}"), graph(n).to_string());
            let options = new(&format!("options-{n}"), &graph(10 + n), None);
            [stage.double.schedule(plain), stage.double.schedule(options)]
        })
        .collect();
    let mut begun = Vec::new();
    for run in &runs {
        let task = ended(run).await;
        output(&task);
        let start = last(&task).start_time.unwrap();
        begun.push(((start.seconds, start.nanos), task.task_def_id.unwrap().name));
    }
    assert_eq!(stage.sim.executions().await, 8);
    begun.sort();
    // No task waits until the other one has nothing to do any more.
    let names: Vec<&str> = begun.iter().map(|(_, name)| name.as_str()).collect();
    assert!(names[..4].contains(&TASK) && names[..4].iter().any(|name| *name != TASK), "{names:?}");
}

#[tokio::test]
async fn it_is_registered_and_one_with_texts_is_served() {
    let stage = Stage::new().await;
    let registered = async |stage: &Stage| {
        let events = stage.double.journal().events();
        events
            .into_iter()
            .filter_map(|event| match event.what {
                What::Call { message, .. } if event.method == Method::PutTaskDef => Some(message.encode()),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
    let first = worker(&stage).await;
    let defs = registered(&stage).await;
    assert_eq!(defs.len(), 2, "one for each task");
    let text = String::from_utf8_lossy(&defs[1]).into_owned();
    assert!(text.contains(TASK) && text.contains("workflow") && text.contains("options"), "{text}");
    drop(first);

    // As somebody else may have registered it, for seeds that must survive.
    let stage = Stage::new().await;
    let mut def = json_task(TASK);
    let mut text = def.input_vars.remove(0);
    let of = littlehorse_double::proto::type_definition::DefinedType::PrimitiveType(4);
    text.type_def.as_mut().unwrap().defined_type = Some(of);
    def.input_vars = vec![text.clone(), text];
    stage.double.put_task_def("default", def).unwrap();
    let _worker = worker(&stage).await;
    let seed = graph(77, 50).to_string().replace("\"seed\":77", "\"seed\":18446744073709551615");
    let inputs = vec![
        input("a", Some(Kind::Str(seed))),
        input("b", Some(Kind::Str(json!({"timeout_s": 60}).to_string()))),
    ];
    let run = stage.double.schedule(NewRun::new("order-1", inputs).task(TASK));
    let id = output(&ended(&run).await)["prompt_id"].as_str().unwrap().to_owned();
    let entry =
        reqwest::get(format!("{}/history/{id}", stage.sim.url())).await.unwrap().text().await.unwrap();
    assert!(entry.contains("18446744073709551615"), "{entry}");
}

#[tokio::test]
async fn a_time_limit_ends_the_render_and_a_retry_is_a_prompt_of_its_own() {
    let stage = Stage::new().await;
    let _worker = worker(&stage).await;
    let run = stage.double.schedule(new("order-1", &endless(1), Some(&json!({"timeout_s": 1}))).attempts(2));
    let task = ended(&run).await;
    assert_eq!((task.status(), task.attempts.len()), (TaskStatus::TaskFailed, 2), "{task:?}");
    for attempt in &task.attempts {
        assert!(error(attempt).contains("1 s"), "{}", error(attempt));
    }
    until("ComfyUI to be free", async || {
        let queue = get(&format!("{}/queue", stage.sim.url()), None).await;
        queue["queue_running"].as_array().unwrap().is_empty()
    })
    .await;
    assert_eq!(stage.sim.executions().await, 2);
}

#[tokio::test]
async fn a_file_reaches_the_graph() {
    let stage = Stage::new().await;
    let _worker = worker(&stage).await;
    let run = stage.double.schedule(new("order-1", &picture(50), Some(&pixel())));
    let result = output(&ended(&run).await);
    assert_eq!(size(&copy(&result)), (1, 1));
    let placed = placed(&stage);
    assert_eq!(placed.len(), 1, "{placed:?}");
    assert_eq!(size(&std::fs::read(&placed[0]).unwrap()), (1, 1));
}

#[tokio::test]
async fn killed_in_mid_render_it_finds_a_task_with_files_again() {
    let stage = Stage::new().await;
    let mut first = worker(&stage).await;
    stage.sim.hold().await;
    let run = stage.double.schedule(new("order-1", &picture(100), Some(&pixel())));
    stage.rendering().await;
    first.program.kill_9().unwrap();
    drop(first);
    let _worker = worker(&stage).await;
    stage.sim.release().await;
    let task = ended(&run).await;
    assert_eq!(size(&copy(&output(&task))), (1, 1));
    assert_eq!((task.attempts.len(), stage.sim.executions().await), (1, 1));
}

#[tokio::test]
async fn killed_before_its_files_were_placed_it_has_them_in_its_journal() {
    let stage = Stage::new().await;
    let mut first = worker(&stage).await;
    let plain = stage.double.schedule(NewRun::json("order-0", graph(1, 50).to_string()));
    output(&ended(&plain).await);
    let faults = format!("{}/sim/faults", stage.sim.url());
    let hang = json!({"kind": "hang", "on": "POST /upload/image"});
    let (code, added) = post(&faults, None, hang.to_string()).await;
    assert_eq!(code, 200, "{added}");
    let run = stage.double.schedule(new("order-1", &picture(50), Some(&pixel())));
    let journal = stage.dir.path().join("littlehorse/journal");
    until("the task to be in the journal", async || {
        std::fs::read_dir(&journal).is_ok_and(|mut entries| {
            entries.any(|entry| entry.unwrap().path().extension().is_some_and(|ending| ending == "json"))
        })
    })
    .await;
    first.program.kill_9().unwrap();
    drop(first);
    assert_eq!(placed(&stage).len(), 0);
    reqwest::Client::new().delete(&faults).send().await.unwrap().error_for_status().unwrap();
    let _worker = worker(&stage).await;
    let task = ended(&run).await;
    assert_eq!(size(&copy(&output(&task))), (1, 1));
    assert_eq!((task.attempts.len(), stage.sim.executions().await), (1, 2));
}

#[tokio::test]
async fn outputs_are_delivered_to_the_folder_below_the_sink() {
    let stage = Stage::new().await;
    let sink = stage.dir.path().join("sink");
    let args = ["--output-dir", sink.to_str().unwrap(), "--options-task", TASK];
    let _worker = stage.worker_with(&args, &[]).await;
    let options = json!({"folder": "customer-7/run-3"});
    let run = stage.double.schedule(new("order-1", &graph(2, 50), Some(&options)));
    let result = output(&ended(&run).await);
    let path = result["outputs"][0].as_str().unwrap();
    let id = result["prompt_id"].as_str().unwrap();
    assert_eq!(path, format!("{}/customer-7/run-3/{id}/0-a_00001_.png", sink.display()));
    assert!(std::fs::read(path).unwrap().starts_with(b"\x89PNG"));
    // Not beside the sink, and not where the worker keeps other things.
    for wrong in ["../beside", "/etc", "a/../../b", "tmp"] {
        let options = json!({ "folder": wrong });
        let run =
            stage.double.schedule(new(&format!("order-{}", wrong.len()), &graph(3, 50), Some(&options)));
        let (name, message, content) = exception(&ended(&run).await);
        assert_eq!(
            (name.as_str(), &content["folder"]),
            ("comfyui-folder-refused", &json!(wrong)),
            "{message}"
        );
    }
    assert_eq!(stage.sim.executions().await, 1);
}

#[tokio::test]
async fn a_folder_without_a_sink_is_refused() {
    let stage = Stage::new().await;
    let _worker = worker(&stage).await;
    let run = stage.double.schedule(new("order-1", &graph(2, 50), Some(&json!({"folder": "a"}))).attempts(3));
    let task = ended(&run).await;
    let (name, message, _) = exception(&task);
    assert_eq!((name.as_str(), task.attempts.len()), ("comfyui-folder-refused", 1));
    assert!(message.contains("--files"), "{message}");
    assert_eq!(stage.sim.executions().await, 0);
}

#[tokio::test]
async fn options_that_make_no_sense_are_named() {
    let stage = Stage::new().await;
    let _worker = worker(&stage).await;
    let mut nowhere = pixel();
    nowhere["files"][0]["node_id"] = json!("9");
    let cases = [
        (json!({"timeout": 5}), "`timeout` is not known"),
        (json!({"timeout_s": "soon"}), "timeout_s is no number"),
        (nowhere, "files[0]: node 9: not in the workflow"),
    ];
    for (n, (options, told)) in cases.into_iter().enumerate() {
        let run = stage.double.schedule(new(&format!("order-{n}"), &picture(50), Some(&options)).attempts(3));
        let task = ended(&run).await;
        assert_eq!((task.status(), task.attempts.len()), (TaskStatus::TaskInputVarSubError, 1), "{task:?}");
        let said = error(last(&task));
        assert!(said.starts_with("input `options`: ") && said.contains(told), "{said}");
    }
    assert_eq!(stage.sim.executions().await, 0);
}

#[tokio::test]
async fn other_files_are_other_work() {
    let stage = Stage::new().await;
    let _worker = worker(&stage).await;
    let first = stage.double.schedule(new("order-1", &picture(50), Some(&pixel())));
    let first_id = output(&ended(&first).await)["prompt_id"].clone();
    // The workflow run was deleted and begun again, with another name for the file.
    first.delete();
    let mut other = pixel();
    other["files"][0]["filename"] = json!("dog.png");
    let second =
        stage.double.schedule(new("order-1", &picture(50), Some(&other)).timeout(Duration::from_secs(300)));
    assert_ne!(output(&ended(&second).await)["prompt_id"], first_id);
    assert_eq!(stage.sim.executions().await, 2);
}
