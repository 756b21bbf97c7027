//! Good ends: everything as JSON, with links or with the files in it, and one file alone.

use serde_json::{Value, json};

use crate::pen::{assert_shape, decoded};
use crate::rig::{Ranch, picture};
use crate::support::json as answer;

/// Pictures, a film, a sound, a preview and a text.
fn everything() -> Value {
    json!({
        "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 48, "batch_size": 2, "color": 77}},
        "2": {"class_type": "PreviewImage", "inputs": {"images": ["1", 0]}},
        "3": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "a \"b\" & ü/x"}},
        "4": {"class_type": "CreateVideo", "inputs": {"images": ["1", 0], "fps": 8.0}},
        "5": {"class_type": "SaveVideo", "inputs": {"video": ["4", 0], "filename_prefix": "film", "format": "auto", "codec": "auto"}},
        "6": {"class_type": "EmptyAudio", "inputs": {"duration": 0.1, "sample_rate": 8000, "channels": 1}},
        "7": {"class_type": "SaveAudio", "inputs": {"audio": ["6", 0], "filename_prefix": "sound"}},
        "8": {"class_type": "RigText", "inputs": {"text": "a \"word\"\nor two"}},
    })
}

#[tokio::test]
async fn one_request_gives_everything_a_prompt_left_with_links_or_with_the_files() {
    let ranch = Ranch::start(1).await;
    let gateway = &ranch.gateway;
    let body = json!({"prompt": everything(), "client_id": "me"});
    let response = gateway.sync("?timeout=100", &body).send().await.unwrap();
    let length: u64 = response.headers()["content-length"].to_str().unwrap().parse().unwrap();
    let header = response.headers()["x-prompt-id"].to_str().unwrap().to_owned();
    let text = response.text().await.unwrap();
    assert_eq!(text.len() as u64, length, "{text}");
    let links: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&links["status"], &links["node_errors"]), (&"success".into(), &json!({})), "{links}");
    assert_eq!(links["prompt_id"], header.as_str());
    assert!(links["execution_time"].as_f64().unwrap() > 0.0, "{links}");
    assert_eq!(links["outputs"]["8"]["text"], json!(["a \"word\"\nor two"]), "{links}");
    let counts = |answer: &Value| {
        let images = answer["images"].as_object().unwrap().clone();
        images.into_iter().map(|(node, files)| (node, files.as_array().unwrap().len())).collect::<Vec<_>>()
    };
    let mut found = counts(&links);
    found.sort();
    assert_eq!(found, [("2".to_owned(), 2), ("3".to_owned(), 2), ("5".to_owned(), 1), ("7".to_owned(), 1)]);
    let folder = format!("remuda/{header}");
    for (node, files) in links["images"].as_object().unwrap() {
        for (n, file) in files.as_array().unwrap().iter().enumerate() {
            assert!(file["subfolder"].as_str().unwrap().starts_with(&folder), "{file}");
            assert!(file["url"].as_str().unwrap().starts_with("/view?filename="), "{file}");
            assert!(file.get("data").is_none(), "{file}");
            let there = gateway.get(file["url"].as_str().unwrap()).send().await.unwrap();
            assert_eq!(there.status(), 200, "{file}");
            assert_eq!(there.bytes().await.unwrap().len() as u64, file["size"].as_u64().unwrap());
            let key = if node == "7" { "audio" } else { "images" };
            let told = &links["outputs"][node][key][n];
            assert_eq!((&told["filename"], &told["subfolder"]), (&file["filename"], &file["subfolder"]));
        }
    }
    let mime = |node: &str| links["images"][node][0]["mime"].as_str().unwrap().to_owned();
    assert_eq!(
        (mime("3"), mime("5"), mime("7")),
        ("image/png".into(), "video/mp4".into(), "audio/flac".into())
    );
    assert_eq!(links["images"]["2"][0]["type"], "temp");

    let body = json!({"prompt": everything(), "return_image_base64": true});
    let response = gateway.sync("", &body).send().await.unwrap();
    let length: u64 = response.headers()["content-length"].to_str().unwrap().parse().unwrap();
    let text = response.text().await.unwrap();
    assert_eq!(text.len() as u64, length);
    let whole: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(counts(&whole), counts(&links));
    let id = whole["prompt_id"].as_str().unwrap();
    let stored = gateway.task(id).await;
    for files in whole["images"].as_object().unwrap().values() {
        for file in files.as_array().unwrap() {
            let known = stored["result"]["files"]
                .as_array()
                .unwrap()
                .iter()
                .find(|known| known["filename"] == file["filename"] && known["type"] == file["type"]);
            let path = known.expect("the file in the record")["url"].as_str().unwrap();
            let bytes = gateway.get(path).send().await.unwrap().bytes().await.unwrap();
            assert_eq!(decoded(&file["data"]), bytes, "{}", file["filename"]);
            assert_eq!(file["size"].as_u64().unwrap(), bytes.len() as u64);
        }
    }
    ranch.stop().await;
}

#[tokio::test]
async fn accept_asks_for_the_bytes_of_the_first_file_of_that_kind() {
    let ranch = Ranch::start(1).await;
    let gateway = &ranch.gateway;
    let body = json!({"prompt": everything()});
    for (accept, mime, first) in [
        ("image/png", "image/png", &b"\x89PNG"[..]),
        ("video/*", "video/mp4", b"\0\0\0"),
        ("audio/*;q=0.5, text/plain", "audio/flac", b"fLaC"),
    ] {
        let response = gateway.sync("", &body).header("accept", accept).send().await.unwrap();
        assert_eq!(response.status(), 200, "{accept}");
        assert_eq!(response.headers()["content-type"], mime);
        let id = response.headers()["x-prompt-id"].to_str().unwrap().to_owned();
        let length: usize = response.headers()["content-length"].to_str().unwrap().parse().unwrap();
        let bytes = response.bytes().await.unwrap();
        assert!(bytes.starts_with(first) && bytes.len() == length, "{accept}: {} bytes", bytes.len());
        // What the graph was made for, not the preview on the way.
        let task = gateway.task(&id).await;
        let files = task["result"]["files"].as_array().unwrap();
        let file = files.iter().find(|file| file["mime"] == mime && file["type"] == "output").unwrap();
        let kept = gateway.get(file["url"].as_str().unwrap()).send().await.unwrap().bytes().await.unwrap();
        assert_eq!(bytes, kept);
    }
    let response = gateway.sync("", &body).header("accept", "model/gltf-binary").send().await.unwrap();
    let error = answer(response, 406).await;
    assert_shape(&error);
    assert!(
        error["prompt_id"].is_string() && error["detail"].as_str().unwrap().contains("audio/flac"),
        "{error}"
    );
    let response = gateway.sync("", &body).header("accept", "model/*, */*;q=0.1").send().await.unwrap();
    assert_eq!(answer(response, 200).await["status"], "success");
    ranch.stop().await;
}

#[tokio::test]
async fn parts_that_comfyui_refuses_do_not_hide_those_that_it_ran() {
    let ranch = Ranch::start(1).await;
    let mut graph = picture();
    graph["9"] = json!({"class_type": "EmptyImage", "inputs": {"width": -5, "height": 8, "batch_size": 1, "color": 0}});
    graph["10"] =
        json!({"class_type": "SaveImage", "inputs": {"images": ["9", 0], "filename_prefix": "never"}});
    let response = ranch.gateway.sync("", &json!({ "prompt": graph })).send().await.unwrap();
    let found = answer(response, 200).await;
    assert_eq!(found["node_errors"]["9"]["errors"][0]["type"], "value_smaller_than_min", "{found}");
    assert_eq!(found["images"]["3"].as_array().unwrap().len(), 1);
    assert!(found["images"].get("10").is_none());
    ranch.stop().await;
}

#[tokio::test]
async fn a_prompt_without_files_is_a_success_too() {
    let ranch = Ranch::start(1).await;
    let body = json!({"prompt": {"1": {"class_type": "RigText", "inputs": {"text": "only this"}}}, "return_image_base64": true});
    // JSON whatever the content type says: curl's `-d` says that it is a form.
    let request =
        ranch.gateway.post("/prompt_sync").header("content-type", "application/x-www-form-urlencoded");
    let found = answer(request.body(body.to_string()).send().await.unwrap(), 200).await;
    assert_eq!(
        (&found["images"], &found["outputs"]["1"]["text"]),
        (&json!({}), &json!(["only this"])),
        "{found}"
    );
    ranch.stop().await;
}
