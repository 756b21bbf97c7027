//! Names that lead elsewhere.

use super::pictures;
use crate::raw::Client;
use crate::stage::Stage;
use anyhow::Result;
use reqwest::Method;
use serde_json::{Value, json};

/// Paths of the host, and of folders that tenants share.
const PATHS: [&str; 12] = [
    "/etc/passwd",
    "../../../etc/passwd",
    "..\\..\\secret.png",
    "C:\\Windows\\win.ini",
    "a/../../x.png",
    "x.png [output]",
    "x.png [temp]",
    "remuda/x.png [output]",
    "../x.png [input]",
    "/proc/self/environ",
    "sub/..",
    "remuda/x.png",
];

fn loading(class: &str, input: &str, value: &Value) -> Value {
    json!({
        "1": {"class_type": class, "inputs": {input: value}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    })
}

pub(crate) async fn loaders(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    client.upload("/upload/image", &stage.keys.bob, &[], "bob.png", pictures::plain()?).await?;
    client.upload("/upload/image", &stage.keys.mallory, &[], "own.png", pictures::plain()?).await?;
    let known = client.get("/object_info", &stage.keys.mallory).await?.json();
    let candidates = [
        ("LoadImage", "image"),
        ("LoadImageMask", "image"),
        ("LoadImageOutput", "image"),
        ("LoadVideo", "file"),
        ("LoadAudio", "audio"),
        ("LoadLatent", "latent"),
        ("VHS_LoadVideoPath", "video"),
        ("VHS_LoadImagesPath", "directory"),
    ];
    let mut wrong = Vec::new();
    for (class, input) in candidates.into_iter().filter(|(class, _)| known.get(class).is_some()) {
        for path in PATHS {
            let graph = loading(class, input, &json!(path));
            let ways = [
                ("/api/v1/tasks", json!({"payload": graph})),
                ("/prompt", json!({"prompt": graph})),
                ("/prompt_sync", json!({"prompt": graph})),
            ];
            for (route, body) in ways {
                let asked = client.post(route, &stage.keys.mallory, body.to_string());
                let answer = tokio::time::timeout(std::time::Duration::from_secs(10), asked).await;
                let Ok(answer) = answer else {
                    wrong.push(format!("{route} takes {class} with {path:?}"));
                    continue;
                };
                let answer = answer?;
                if answer.is_success() {
                    wrong.push(format!("{route} takes {class} with {path:?}"));
                } else if answer.status >= 500 {
                    wrong.push(format!(
                        "{route} with {class} and {path:?}: {} {}",
                        answer.status,
                        answer.text()
                    ));
                }
            }
        }
    }
    // The second tenant's upload has a name of its own at the worker. Under the name that it was uploaded with, nobody else
    // finds it there: not even after its owner had it rendered.
    let picture = json!({"prompt": loading("LoadImage", "image", &json!("bob.png"))}).to_string();
    let answer = client.post("/prompt_sync", &stage.keys.bob, picture.clone()).await?;
    if !answer.is_success() {
        wrong.push(format!("bob's own upload is not rendered: {} {}", answer.status, answer.text()));
    }
    let answer = client.post("/prompt_sync", &stage.keys.mallory, picture).await?;
    if answer.is_success() {
        wrong.push("another tenant's upload is rendered under the name that it was uploaded with".to_owned());
    }
    // What is one's own stays usable.
    let own = json!({"payload": loading("LoadImage", "image", &json!("own.png"))});
    let answer = client.post("/api/v1/tasks", &stage.keys.mallory, own.to_string()).await?;
    if !answer.is_success() {
        wrong.push(format!("one's own upload is refused: {} {}", answer.status, answer.text()));
    }
    let count = wrong.len();
    if count > 6 {
        wrong.truncate(6);
        wrong.push(format!("and {} more", count - 6));
    }
    Ok(wrong)
}

/// What files of the second tenant are called at the worker, after it had one rendered.
async fn names_at_worker(client: &Client, stage: &Stage) -> Result<Vec<String>> {
    client.upload("/upload/image", &stage.keys.bob, &[], "linked.png", pictures::plain()?).await?;
    let picture = json!({"prompt": loading("LoadImage", "image", &json!("linked.png"))}).to_string();
    let answer = client.post("/prompt_sync", &stage.keys.bob, picture).await?;
    anyhow::ensure!(answer.is_success(), "bob's own upload is not rendered: {}", answer.text());
    let folder = stage.data.with_file_name("comfyui").join("input");
    let mut names = Vec::new();
    let mut folders = vec![folder.clone()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next)?.flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if let Ok(name) = path.strip_prefix(&folder)
                && name.components().count() > 1
            {
                names.push(name.to_string_lossy().into_owned());
            }
        }
    }
    Ok(names)
}

/// Ways from a node that holds a text to the node `from`, which hands it to a loader.
fn ways_of(path: &str) -> [(&'static str, Value); 4] {
    let holder = |value: Value| json!({"class_type": "PrimitiveString", "inputs": {"value": value}});
    let chain: serde_json::Map<String, Value> = (0..40)
        .map(|n| {
            let next = if n == 39 { json!(path) } else { json!([format!("hop{}", n + 1), 0]) };
            (if n == 0 { "from".to_owned() } else { format!("hop{n}") }, holder(next))
        })
        .collect();
    let multiline = json!({"class_type": "PrimitiveStringMultiline", "inputs": {"value": path}});
    let beside = json!({"class_type": "PrimitiveString", "inputs": {"value": path, "control": "fixed"}});
    [
        ("a text", json!({"from": holder(json!(path))})),
        ("a text of several lines", json!({"from": multiline})),
        ("a text beside another", json!({"from": beside})),
        ("a text 40 links away", Value::Object(chain)),
    ]
}

/// A name that a loader gets from a node which only holds it.
pub(crate) async fn linked(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let theirs = names_at_worker(&client, &stage).await?;
    anyhow::ensure!(!theirs.is_empty(), "the worker keeps no file of the second tenant");
    let paths = ["../../x", "/etc/passwd", "x.png [output]", "remuda/x.png"].map(str::to_owned);
    let graph_of = |nodes: &Value| {
        let mut graph = loading("LoadImage", "image", &json!(["from", 0]));
        for (id, node) in nodes.as_object().into_iter().flatten() {
            graph[id] = node.clone();
        }
        graph
    };
    let mut wrong = Vec::new();
    // A plain name is taken: whatever is refused below is refused for what it names.
    for (how, nodes) in ways_of("example.png") {
        let body = json!({"payload": graph_of(&nodes), "not_before": "2999-01-01T00:00:00Z"}).to_string();
        let answer = client.post("/api/v1/tasks", &stage.keys.mallory, body).await?;
        if !answer.is_success() {
            wrong.push(format!("a plain name from {how} is refused: {}", answer.text()));
        }
    }
    for path in paths.into_iter().chain(theirs.into_iter().take(4)) {
        for (how, nodes) in ways_of(&path) {
            let graph = graph_of(&nodes);
            let ways = [("/api/v1/tasks", json!({"payload": graph})), ("/prompt", json!({"prompt": graph}))];
            for (route, body) in ways {
                let answer = client.post(route, &stage.keys.mallory, body.to_string()).await?;
                if answer.is_success() || answer.status >= 500 {
                    wrong.push(format!("{route} takes {path:?} from {how}: {}", answer.status));
                }
            }
        }
    }
    wrong.truncate(6);
    Ok(wrong)
}

pub(crate) async fn long(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let long = "n".repeat(5_000);
    let paths = [
        format!("/extensions/{long}/x.js"),
        format!("/extensions/x/{long}"),
        format!("/templates/{long}"),
        format!("/workflow_templates/{long}/{long}"),
        format!("/view?filename={long}"),
        format!("/view?filename=a.png&subfolder={long}"),
        format!("/userdata/{long}"),
        format!("/settings/{long}"),
        format!("/models/{long}"),
        format!("/object_info/{long}"),
        format!("/view_metadata/{long}?filename={long}"),
        format!("/experiment/models/preview/{long}/0/{long}"),
        format!("/global_subgraphs/{long}"),
        format!("/history/{long}"),
        format!("/api/jobs/{long}"),
        format!("/api/v1/tasks/{long}"),
        format!("/api/v1/tasks?before={long}"),
        format!("/api/v1/assets/{long}"),
        format!("/api/v1/workers/{long}"),
        format!("/{long}"),
    ];
    let mut wrong = Vec::new();
    for path in &paths {
        let shown: String = path.chars().take(40).collect();
        match client.get(path, &stage.keys.mallory).await {
            Ok(answer) if answer.status >= 500 => {
                wrong.push(format!("{shown}…: {} {}", answer.status, answer.text()))
            }
            Ok(_) => {}
            Err(error) => wrong.push(format!("{shown}…: {error}")),
        }
    }
    for (route, body) in [("/userdata/", "x"), ("/settings/", "1"), ("/api/v1/assets?filename=", "x")] {
        let answer = client.post(&format!("{route}{long}"), &stage.keys.mallory, body).await?;
        if answer.status >= 500 {
            wrong.push(format!("POST {route}…: {} {}", answer.status, answer.text()));
        }
    }
    let (fields, name) = ([("subfolder", long.as_str())], format!("{long}.png"));
    let answer =
        client.upload("/upload/image", &stage.keys.mallory, &fields, &name, pictures::plain()?).await?;
    if answer.status >= 500 {
        wrong.push(format!("POST /upload/image: {} {}", answer.status, answer.text()));
    }
    Ok(wrong)
}

pub(crate) async fn links(stage: Stage) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let key = &stage.keys.mallory;
    let mut wrong = Vec::new();
    for path in ["/link.txt", "/.env", "/%2eenv", "/./.env", "/sub/../.env"] {
        let answer = client.get(path, key).await?;
        if answer.text().contains("SECRET") {
            wrong.push(format!("{path} of the page was served"));
        } else if answer.status >= 500 {
            wrong.push(format!("{path}: {}", answer.status));
        }
    }
    if client.get("/app.js", key).await?.status != 200 {
        wrong.push("the page's own files are not served".to_owned());
    }
    // An asset that somebody replaced by a link: it must not be read through it.
    let content = b"an asset of the attacker".to_vec();
    let request = client.request(Method::POST, "/api/v1/assets?filename=a.txt", key).body(content);
    let sha = client.send(request.header("content-type", "application/octet-stream")).await?.json();
    let sha = sha["sha256"].as_str().unwrap_or_default().to_owned();
    let file = find(&stage.data.join("files"), &sha);
    if let Some(file) = file {
        let secret = stage.data.join("remuda.db");
        std::fs::remove_file(&file)?;
        std::os::unix::fs::symlink(&secret, &file)?;
        let answer = client.get(&format!("/api/v1/assets/{sha}"), key).await;
        match answer {
            Ok(answer) if answer.is_success() && answer.body.starts_with(b"SQLite") => {
                wrong.push("an asset that is a link was followed out of the folder".to_owned());
            }
            Ok(answer) if answer.status >= 500 => {
                wrong.push(format!("an asset that is a link: {}", answer.status))
            }
            _ => {}
        }
        std::fs::remove_file(&file)?;
    } else {
        wrong.push("the uploaded asset is not in the folder for files".to_owned());
    }
    Ok(wrong)
}

fn find(folder: &std::path::Path, name: &str) -> Option<std::path::PathBuf> {
    for entry in std::fs::read_dir(folder).ok()?.flatten() {
        let path = entry.path();
        if path.is_dir() {
            if let Some(found) = find(&path, name) {
                return Some(found);
            }
        } else if !name.is_empty() && path.to_string_lossy().contains(name) {
            return Some(path);
        }
    }
    None
}

pub(crate) async fn traversal(stage: Stage) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let ups = [
        "..",
        "%2e%2e",
        "%2E%2e",
        "..%2f..",
        "..%5c..",
        "%252e%252e",
        "....//",
        "..;",
        "%c0%ae%c0%ae",
        ".%00.",
    ];
    let routes = [
        "/",
        "/extensions/",
        "/templates/",
        "/userdata/",
        "/view?filename=",
        "/view?filename=a&subfolder=",
        "/models/",
        "/experiment/models/preview/x/0/",
        "/workflow_templates/x/",
        "/api/v1/assets/",
        "/docs/",
        "/internal/files/",
    ];
    for route in routes {
        for up in ups {
            for target in ["outside.txt", "server/owner", "etc/passwd"] {
                let path = format!("{route}{}/{target}", [up; 4].join("/"));
                let head = crate::raw::head(
                    "GET",
                    &path,
                    &stage.server,
                    &stage.keys.mallory,
                    &[("Connection", "close")],
                );
                let mut stream = crate::raw::connect(&stage.server).await?;
                let answer =
                    crate::raw::answer_to(&mut stream, head.as_bytes(), std::time::Duration::from_secs(10))
                        .await;
                match answer {
                    Ok((status, text)) if text.contains("SECRET") || text.contains("root:") => {
                        wrong.push(format!("{path} was served ({status})"));
                    }
                    Ok((status, _)) if status >= 500 && status != 503 => {
                        wrong.push(format!("{path}: {status}"))
                    }
                    Ok(_) => {}
                    Err(error) => wrong.push(format!("{path}: {error}")),
                }
            }
        }
    }
    wrong.truncate(6);
    Ok(wrong)
}
