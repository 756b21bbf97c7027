//! What `POST /prompt` takes, and how it refuses.

use remuda_core::Scope;
use serde_json::{Value, json};

use crate::support::{Gateway, Ground, JsonText as _, Worker, json};

/// A few nodes as a ComfyUI describes them.
const NODES: &str = r#"{
    "EmptyImage": {"input": {"required": {"width": ["INT", {"default": 512, "min": 1, "max": 16384, "step": 1}],
        "height": ["INT", {"default": 512, "min": 1, "max": 16384, "step": 1}],
        "batch_size": ["INT", {"default": 1, "min": 1, "max": 4096}], "color": ["INT", {"default": 0}]}},
        "output": ["IMAGE"], "python_module": "nodes"},
    "ImageScale": {"input": {"required": {"image": ["IMAGE"],
        "upscale_method": [["nearest-exact", "bilinear", "area", "bicubic", "lanczos"]],
        "width": ["INT", {"min": 0}], "height": ["INT", {"min": 0}], "crop": [["disabled", "center"]]}},
        "output": ["IMAGE"], "python_module": "nodes"},
    "ImageInvert": {"input": {"required": {"image": ["IMAGE"]}}, "output": ["IMAGE"], "python_module": "nodes"},
    "CLIPLoader": {"input": {"required": {}}, "output": ["CLIP"], "python_module": "nodes"},
    "CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": [["sdxl.safetensors"]]}},
        "output": ["MODEL"], "python_module": "nodes"},
    "SaveModel": {"input": {"required": {"model": ["MODEL"]}}, "output_node": true, "python_module": "comfy_extras.x"},
    "SaveImage": {"input": {"required": {"images": ["IMAGE"], "filename_prefix": ["STRING", {}]}},
        "output_node": true, "python_module": "nodes"}}"#;

/// The usual chain of four nodes.
fn chain() -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 1}},
        "2": {"class_type": "ImageScale", "inputs": {"image": ["1", 0], "upscale_method": "nearest-exact", "width": 32, "height": 32, "crop": "disabled"}},
        "3": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
        "4": {"class_type": "SaveImage", "inputs": {"images": ["3", 0], "filename_prefix": "x"}},
    })
}

fn with(pointer: &str, value: Value) -> Value {
    let mut graph = chain();
    *graph.pointer_mut(pointer).unwrap_or_else(|| panic!("{pointer}")) = value;
    graph
}

async fn post(gateway: &Gateway, body: &Value, status: u16) -> Value {
    json(gateway.post("/prompt").json_text(&body.to_string()).send().await.unwrap(), status).await
}

#[tokio::test]
async fn refusals_are_those_that_were_recorded() {
    let gateway = Gateway::start().await;
    Worker::join(&gateway.ground, "one", Some(NODES)).await;
    let refused = async |graph: Value| post(&gateway, &json!({"prompt": graph, "client_id": "x"}), 400).await;
    let of_node = |answer: &Value, node: &str| -> Value {
        assert_eq!(answer["error"]["type"], "prompt_outputs_failed_validation", "{answer}");
        assert_eq!(answer["error"]["message"], "Prompt outputs failed validation");
        assert_eq!(answer["node_errors"][node]["dependent_outputs"], json!(["4"]), "{answer}");
        answer["node_errors"][node]["errors"][0].clone()
    };

    let answer = refused(with("/3/class_type", "NoSuchNode".into())).await;
    let error = &answer["error"];
    assert_eq!(
        (&error["type"], &error["message"], &error["details"]),
        (
            &json!("invalid_prompt"),
            &json!("Cannot execute because node NoSuchNode does not exist."),
            &json!("Node ID '#3'")
        )
    );
    assert_eq!(answer["node_errors"], json!({}));
    assert_eq!(
        error["extra_info"],
        json!({"node_id": "3", "class_type": "NoSuchNode", "node_title": "NoSuchNode"})
    );
    let answer = refused(with("/3", json!({"inputs": {"image": ["2", 0]}}))).await;
    assert_eq!(
        answer["error"]["message"],
        "Cannot execute because a node is missing the class_type property."
    );

    let mut graph = chain();
    graph["2"]["inputs"].as_object_mut().unwrap().shift_remove("width");
    let answer = refused(graph).await;
    assert_eq!(
        answer["node_errors"],
        json!({"2": {"errors": [{"type": "required_input_missing", "message": "Required input is missing", "details": "width",
            "extra_info": {"input_name": "width"}}], "dependent_outputs": ["4"], "class_type": "ImageScale"}})
    );

    let width = json!(["INT", {"default": 512, "min": 1, "max": 16384, "step": 1}]);
    let error = of_node(&refused(with("/1/inputs/width", "wide".into())).await, "1");
    let exception = "invalid literal for int() with base 10: 'wide'";
    assert_eq!(
        error,
        json!({"type": "invalid_input_type", "message": "Failed to convert an input value to a INT value",
            "details": format!("width, wide, {exception}"), "extra_info": {"input_name": "width", "input_config": width,
            "received_value": "wide", "exception_message": exception}})
    );
    let error = of_node(&refused(with("/1/inputs/width", 0.into())).await, "1");
    assert_eq!(
        error,
        json!({"type": "value_smaller_than_min", "message": "Value 0 smaller than min of 1", "details": "width",
            "extra_info": {"input_name": "width", "input_config": width, "received_value": 0}})
    );
    let error = of_node(&refused(with("/1/inputs/batch_size", 5000.into())).await, "1");
    assert_eq!(
        (&error["type"], &error["message"]),
        (&json!("value_bigger_than_max"), &json!("Value 5000 bigger than max of 4096"))
    );
    let error = of_node(&refused(with("/2/inputs/upscale_method", "magic".into())).await, "2");
    assert_eq!(
        error,
        json!({"type": "value_not_in_list", "message": "Value not in list",
            "details": "upscale_method: 'magic' not in ['nearest-exact', 'bilinear', 'area', 'bicubic', 'lanczos']",
            "extra_info": {"input_name": "upscale_method", "input_config": [["nearest-exact", "bilinear", "area", "bicubic", "lanczos"], {}],
            "received_value": "magic"}})
    );
    let error = of_node(&refused(with("/3/inputs/image", json!(["2", 0, 0]))).await, "3");
    assert_eq!(
        error,
        json!({"type": "bad_linked_input", "message": "Bad linked input, must be a length-2 list of [node_id, slot_index]",
            "details": "image", "extra_info": {"input_name": "image", "input_config": ["IMAGE", {}], "received_value": ["2", 0, 0]}})
    );
    let error = of_node(&refused(with("/3/inputs/image", json!(["99", 0]))).await, "3");
    assert_eq!(
        (&error["type"], &error["details"], &error["extra_info"]["exception_type"]),
        (&json!("exception_during_inner_validation"), &json!("'99'"), &json!("KeyError"))
    );
    let error = of_node(&refused(with("/3/inputs/image", json!(["2", 7]))).await, "3");
    assert_eq!(error["extra_info"]["exception_type"], "IndexError");
    let mut graph = with("/3/inputs/image", json!(["5", 0]));
    graph["5"] = json!({"class_type": "CLIPLoader", "inputs": {}});
    let error = of_node(&refused(graph).await, "3");
    assert_eq!(
        (&error["type"], &error["details"]),
        (&json!("return_type_mismatch"), &json!("image, received_type(CLIP) mismatch input_type(IMAGE)"))
    );
    let error = of_node(&refused(with("/3", json!({"class_type": "ImageInvert"}))).await, "3");
    assert_eq!(error["details"], "'inputs'");

    let no_outputs = json!({"type": "prompt_no_outputs", "message": "Prompt has no outputs", "details": "", "extra_info": {}});
    let mut graph = chain();
    graph.as_object_mut().unwrap().shift_remove("4");
    for graph in [graph, json!({}), json!([])] {
        assert_eq!(refused(graph).await, json!({"error": no_outputs, "node_errors": {}}));
    }
    let targets = json!({"prompt": chain(), "partial_execution_targets": ["3"]});
    assert_eq!(post(&gateway, &targets, 400).await["error"], no_outputs);

    let cycle = json!({"1": {"class_type": "ImageInvert", "inputs": {"image": ["2", 0]}},
        "2": {"class_type": "ImageInvert", "inputs": {"image": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["2", 0], "filename_prefix": "x"}}});
    let answer = refused(cycle).await;
    assert_eq!(answer["error"]["type"], "prompt_outputs_failed_validation");
    assert!(
        answer["node_errors"]["1"]["errors"][0]["details"].as_str().unwrap().contains("1 -> 2 -> 1"),
        "{answer}"
    );

    let model = json!({"1": {"class_type": "CheckpointLoaderSimple", "inputs": {"ckpt_name": "wan.safetensors"}},
        "2": {"class_type": "SaveModel", "inputs": {"model": ["1", 0]}}});
    let answer = refused(model).await;
    let error = &answer["node_errors"]["1"]["errors"][0];
    assert_eq!(
        (&error["type"], &error["details"]),
        (&json!("value_not_in_list"), &json!("ckpt_name: 'wan.safetensors' not in ['sdxl.safetensors']"))
    );
    assert!(
        answer["error"]["details"].as_str().unwrap().contains("one lacks model wan.safetensors"),
        "{answer}"
    );

    // Nothing of all this is queued.
    let answer = json(gateway.get("/prompt").send().await.unwrap(), 200).await;
    assert_eq!(answer["exec_info"]["queue_remaining"], 0);
}

#[tokio::test]
async fn what_makes_a_comfyui_stumble_is_a_clear_refusal() {
    let gateway = Gateway::start().await;
    let no_prompt = json!({"error": {"type": "no_prompt", "message": "No prompt provided", "details": "No prompt provided",
        "extra_info": {}}, "node_errors": {}});
    for body in ["{}", "[]", "\"text\"", "{\"client_id\": \"x\"}"] {
        let answer = gateway.post("/prompt").json_text(body).send().await.unwrap();
        assert_eq!(json(answer, 400).await, no_prompt, "{body}");
    }
    let graph = chain().to_string();
    let bodies = [
        ("", "invalid_request"),
        ("null", "invalid_request"),
        ("{not json", "invalid_request"),
        ("{\"prompt\": null}", "invalid_prompt"),
        ("{\"prompt\": \"abc\"}", "invalid_prompt"),
        ("{\"prompt\": [1]}", "invalid_prompt"),
        ("{\"prompt\": {\"1\": \"abc\"}}", "invalid_prompt"),
        ("{\"prompt\": {\"last_node_id\": 4, \"nodes\": [], \"links\": []}}", "invalid_prompt"),
        ("{\"prompt\": {\"1\": {\"class_type\": \"A\", \"inputs\": {\"x\": NaN}}}}", "invalid_request"),
        ("{\"prompt\": GRAPH, \"client_id\": {}}", "invalid_client_id"),
        ("{\"prompt\": GRAPH, \"client_id\": [1]}", "invalid_client_id"),
        ("{\"prompt\": GRAPH, \"extra_data\": {\"client_id\": []}}", "invalid_client_id"),
        ("{\"prompt\": GRAPH, \"client_id\": \"a\\nb\"}", "invalid_client_id"),
        ("{\"prompt\": GRAPH, \"number\": null}", "invalid_number"),
        ("{\"prompt\": GRAPH, \"number\": \"soon\"}", "invalid_number"),
        ("{\"prompt\": GRAPH, \"number\": \"nan\"}", "invalid_number"),
        ("{\"prompt\": GRAPH, \"extra_data\": null}", "invalid_extra_data"),
        ("{\"prompt\": GRAPH, \"extra_data\": []}", "invalid_extra_data"),
        ("{\"prompt\": GRAPH, \"extra_data\": {\"extra_pnginfo\": \"text\"}}", "invalid_extra_data"),
        ("{\"prompt\": GRAPH, \"extra_data\": {\"extra_pnginfo\": {\"workflow\": 1}}}", "invalid_extra_data"),
        ("{\"prompt\": GRAPH, \"prompt_id\": \"\"}", "invalid_prompt_id"),
        ("{\"prompt\": GRAPH, \"prompt_id\": [1]}", "invalid_prompt_id"),
        ("{\"prompt\": GRAPH, \"partial_execution_targets\": 7}", "invalid_targets"),
    ];
    for (body, kind) in bodies {
        let body = body.replace("GRAPH", &graph);
        let answer = json(gateway.post("/prompt").body(body.clone()).send().await.unwrap(), 400).await;
        assert_eq!(answer["error"]["type"], kind, "{body}: {answer}");
        assert_eq!((&answer["node_errors"], &answer["error"]["extra_info"].is_object()), (&json!({}), &true));
    }
    let answer = gateway.post("/prompt").body(vec![b'{', 0xff, 0xfe]).send().await.unwrap();
    assert_eq!(json(answer, 400).await["error"]["type"], "invalid_request");
    let answer = json(gateway.get("/prompt").send().await.unwrap(), 200).await;
    assert_eq!(answer["exec_info"]["queue_remaining"], 0);
}

#[tokio::test]
async fn a_graph_of_which_some_outputs_can_run_is_taken_with_the_errors_of_the_others() {
    let gateway = Gateway::start().await;
    Worker::join(&gateway.ground, "one", Some(NODES)).await;
    let mut graph = chain();
    graph["5"] = json!({"class_type": "ImageScale", "inputs": {"image": ["1", 0], "upscale_method": "magic", "width": 8, "height": 8, "crop": "disabled"}});
    graph["6"] = json!({"class_type": "SaveImage", "inputs": {"images": ["5", 0], "filename_prefix": "bad"}});
    let answer = post(&gateway, &json!({"prompt": graph, "client_id": "x"}), 200).await;
    let error = &answer["node_errors"]["5"];
    assert_eq!((&error["dependent_outputs"], &error["class_type"]), (&json!(["6"]), &json!("ImageScale")));
    assert_eq!(error["errors"][0]["type"], "value_not_in_list");
    let queue = json(gateway.get("/queue").send().await.unwrap(), 200).await;
    assert_eq!(queue["queue_pending"][0][4], json!(["4"]));
    let targets = json!({"prompt": graph, "partial_execution_targets": ["6"]});
    assert_eq!(post(&gateway, &targets, 400).await["error"]["type"], "prompt_outputs_failed_validation");
}

#[tokio::test]
async fn a_chosen_id_is_one_prompt_however_often_it_is_sent() {
    let gateway = Gateway::start().await;
    let body = json!({"prompt": chain(), "prompt_id": "my own id", "client_id": "x"});
    let first = post(&gateway, &body, 200).await;
    assert_eq!(first, json!({"prompt_id": "my own id", "number": 0, "node_errors": {}}));
    assert_eq!(post(&gateway, &body, 200).await, first);
    let answer = json(gateway.get("/prompt").send().await.unwrap(), 200).await;
    assert_eq!(answer["exec_info"]["queue_remaining"], 1);
    let other = json!({"prompt": with("/1/inputs/color", 2.into()), "prompt_id": "my own id"});
    assert_eq!(post(&gateway, &other, 400).await["error"]["type"], "invalid_prompt_id");
    let job = json(gateway.get("/api/jobs/my%20own%20id").send().await.unwrap(), 200).await;
    assert_eq!((&job["id"], &job["status"]), (&json!("my own id"), &json!("pending")));
    // A number stands for its text, and null for our choice.
    let answer = post(&gateway, &json!({"prompt": chain(), "prompt_id": 12345}), 200).await;
    assert_eq!(answer["prompt_id"], "12345");
    let answer = post(&gateway, &json!({"prompt": chain(), "prompt_id": null}), 200).await;
    assert!(answer["prompt_id"].as_str().unwrap().parse::<remuda_core::TaskId>().is_ok(), "{answer}");
}

#[tokio::test]
async fn numbers_are_echoed_and_ask_for_a_priority() {
    let gateway = Gateway::start().await;
    let cases = [
        (json!({}), json!(0), 5),
        (json!({"front": false}), json!(1), 5),
        (json!({"front": true}), json!(-2), 9),
        (json!({"number": -1000.5}), json!(-1000.5), 9),
        (json!({"number": 1}), json!(1), 5),
        (json!({"number": "2.5", "front": true}), json!(2.5), 5),
        (json!({"number": 100}), json!(100), 1),
        (json!({}), json!(3), 5),
    ];
    for (fields, number, priority) in cases {
        let mut body = json!({"prompt": chain()});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = post(&gateway, &body, 200).await;
        assert_eq!(answer["number"], number, "{fields}");
        let task = gateway.task(answer["prompt_id"].as_str().unwrap()).await;
        assert_eq!(task["priority"], priority, "{fields}");
    }
    // The counter goes on after a restart.
    let again = Gateway::on(gateway.ground.clone(), |_| {}).await;
    let answer = post(&again, &json!({"prompt": chain(), "number": 2}), 200).await;
    let task = again.task(answer["prompt_id"].as_str().unwrap()).await;
    assert_eq!(task["priority"], 5, "it was given before");
    assert_eq!(post(&again, &json!({"prompt": chain()}), 200).await["number"], 4);
}

#[tokio::test]
async fn the_client_is_found_wherever_it_is_named() {
    let gateway = Gateway::start().await;
    let submit = async |path: &str, body: Value| {
        json(gateway.post(path).json_text(&body.to_string()).send().await.unwrap(), 200).await;
    };
    submit("/prompt", json!({"prompt": chain(), "client_id": "a", "extra_data": {"client_id": "no"}})).await;
    submit("/prompt", json!({"prompt": chain(), "extra_data": {"client_id": "b"}})).await;
    submit("/api/prompt?clientId=c", json!({"prompt": chain()})).await;
    submit("/prompt", json!({"prompt": chain(), "client_id": 7})).await;
    submit("/prompt", json!({"prompt": chain(), "client_id": ""})).await;
    let queue = json(gateway.get("/queue").send().await.unwrap(), 200).await;
    let clients: Vec<&Value> =
        queue["queue_pending"].as_array().unwrap().iter().map(|item| &item[3]["client_id"]).collect();
    assert_eq!(clients, [&json!("a"), &json!("b"), &json!("c"), &json!("7"), &Value::Null]);
}

#[tokio::test]
async fn limits_and_scopes_hold_here_too() {
    let ground = Ground::new().await;
    let reader = ground.key("default", &[Scope::Read]).await;
    let writer = ground.key("default", &[Scope::Submit]).await;
    let gateway = Gateway::on(ground, |options| options.limits.body = 1000).await;
    let submit =
        |key: &str, body: Value| gateway.post("/prompt").bearer_auth(key).json_text(&body.to_string()).send();
    let body = json!({"prompt": chain()});
    assert_eq!(submit(&reader, body.clone()).await.unwrap().status(), 403);
    assert_eq!(submit("rmd_nonsense", body.clone()).await.unwrap().status(), 401);
    json(submit(&writer, body).await.unwrap(), 200).await;
    let body = json!({"prompt": chain(), "padding": "x".repeat(2000)});
    let answer = json(submit(&writer, body).await.unwrap(), 413).await;
    assert_eq!(answer["error"]["type"], "too_large");
}
