//! What a key of the scope worker says of the nodes that its workers have.

use super::pictures;
use super::workers::{SOMEBODY, Thief, sha256};
use crate::raw::{Answer, Client};
use crate::stage::Stage;
use crate::world::{OBJECT_INFOS, OBJECT_INFOS_MIB};
use anyhow::{Context, Result};
use reqwest::Method;
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// Registers a worker that says it has these nodes; the answer to the description.
async fn describe(thief: &Thief, stage: &Stage, worker: &str, info: String) -> Result<Answer> {
    let spec = json!({"id": worker, "endpoint": "http://127.0.0.1:9", "name": null, "labels": ["nobody"]});
    let acquired = thief.ask(SOMEBODY, Method::POST, "acquire", Some(json!({"spec": spec}))).await?;
    let Some(fence) = acquired.json()["worker"]["fence"].as_i64() else { return Ok(acquired) };
    let sha = sha256(info.as_bytes());
    let path = format!("/api/v1/worker/object-info/{sha}");
    let request = thief.client.request(Method::PUT, &path, &stage.keys.worker);
    let request = request.header("remuda-owner", SOMEBODY).header("content-type", "application/json");
    let put = thief.client.send(request.body(info)).await?;
    if put.is_success() {
        let report = json!({"health": "healthy", "reason": null, "current_task": null, "comfyui_version": "99.0.0",
            "device": null, "vram": null, "object_info": sha, "identity": null});
        let worker = json!({"id": worker, "fence": fence, "report": report});
        let answer = thief.ask(SOMEBODY, Method::POST, "beat", Some(json!({"workers": [worker]}))).await?;
        anyhow::ensure!(answer.is_success(), "a beat is answered {} {}", answer.status, answer.text());
    }
    Ok(put)
}

/// Whether the second tenant's plain graph is taken by every way in.
async fn taken_by_others(client: &Client, stage: &Stage, wrong: &mut Vec<String>) -> Result<()> {
    let graph = crate::probe::graph(9);
    let later = json!({"payload": graph, "not_before": "2999-01-01T00:00:00Z"});
    for (path, body) in [("/api/v1/tasks", later), ("/prompt", json!({"prompt": graph}))] {
        let answer = client.post(path, &stage.keys.bob, body.to_string()).await?;
        if !answer.is_success() {
            wrong.push(format!("the second tenant's {path} is answered {} {}", answer.status, answer.text()));
        }
    }
    Ok(())
}

/// Small descriptions whose hashes come first: whatever is read in that order has no place left for the true ones.
pub(crate) async fn many(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let mut wrong = Vec::new();
    let low = (0_u64..)
        .map(|n| format!(r#"{{"Evil":{{"input":{{"required":{{}}}},"output":[],"description":"{n}"}}}}"#));
    let low = low.filter(|info| sha256(info.as_bytes()).starts_with('0'));
    for (n, info) in low.take(130).enumerate() {
        let answer = describe(&thief, &stage, &format!("evil-{n}"), info).await?;
        if n < 64 && !answer.is_success() {
            anyhow::bail!("a description is refused: {} {}", answer.status, answer.text());
        }
        if n % 16 == 0 || n > 120 {
            taken_by_others(&thief.client, &stage, &mut wrong).await?;
        }
    }
    let known = thief.client.get("/object_info", &stage.keys.bob).await?.json();
    if ["RigProgress", "SaveImage"].iter().any(|class| known.get(class).is_none()) {
        wrong.push("/object_info has lost the nodes of the installation's own worker".to_owned());
    }
    wrong.dedup();
    Ok(wrong)
}

/// A description of this many bytes and, if they have room, this many objects with a number each.
fn large(n: usize, bytes: usize, objects: usize) -> String {
    // An object, its name and its number take seven bytes without the name.
    let each = (bytes / objects).saturating_sub(7);
    let one = format!(r#"{{"{}":0}},"#, "v".repeat(each));
    let list = one.repeat(bytes / one.len());
    format!(
        r#"{{"Evil{n}":{{"input":{{"required":{{"a":["X",{{"x":[{list}0]}}]}}}},"output":[],"output_node":false}}}}"#
    )
}

pub(crate) async fn huge(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let mut wrong = Vec::new();
    let deadline = Instant::now() + stage.while_it_lasts();
    let mut n = 0;
    while n < 24 || Instant::now() < deadline {
        // More values than may be, and as many as may be.
        let objects = if n % 2 == 0 { 1_200_000 } else { 240_000 };
        let worker = format!("large-{}", n % 24);
        let answer = describe(&thief, &stage, &worker, large(n, 8 << 20, objects)).await?;
        if answer.status >= 500 && answer.status != 503 {
            wrong.push(format!("object-info is answered {} {}", answer.status, answer.text()));
        }
        // Each makes what was merged before worthless.
        for path in ["/object_info", "/object_info/SaveImage", "/models/checkpoints"] {
            let answer = thief.client.get(path, &stage.keys.mallory).await?;
            if answer.status >= 500 && answer.status != 503 {
                wrong.push(format!("{path} is answered {} {}", answer.status, answer.text()));
            }
        }
        let began = Instant::now();
        taken_by_others(&thief.client, &stage, &mut wrong).await?;
        let allowed = Duration::from_secs(if stage.quick { 10 } else { 2 });
        if began.elapsed() > allowed {
            wrong.push(format!("the second tenant's tasks took {:?}", began.elapsed()));
        }
        n += 1;
        if wrong.len() > 3 {
            break;
        }
    }
    wrong.dedup();
    Ok(wrong)
}

/// Descriptions that are all in use: large ones until there is no room for their bytes, then small ones until there are
/// as many as there may be.
pub(super) async fn hoard(thief: &Thief, stage: &Stage) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let (mut taken, mut n) = (0, 0);
    for (what, length, most) in [("MiB", 1 << 20, OBJECT_INFOS_MIB), ("descriptions", 1, OBJECT_INFOS)] {
        let refused = loop {
            if taken > most {
                break None;
            }
            let text = format!(r#"{{"Hoard{n}":{{"description":"{}"}}}}"#, "d".repeat(length));
            n += 1;
            let answer = describe(thief, stage, &format!("hoard-{n}"), text).await?;
            if !answer.is_success() {
                break Some(answer);
            }
            taken += 1;
        };
        match refused {
            None => wrong.push(format!("{taken} {what} of object_info of one key, {most} are allowed")),
            Some(answer) if answer.status == 429 && answer.json()["limit"].is_string() => {
                // The last large one does not quite fit beside the names of the others.
                if taken + 1 < most {
                    wrong.push(format!("only {taken} {what} of object_info are taken, {most} are allowed"));
                }
            }
            Some(answer) => wrong.push(format!("object_info: {} {}", answer.status, answer.text())),
        }
    }
    taken_by_others(&thief.client, stage, &mut wrong).await?;
    Ok(wrong)
}

/// Classes that the installation's own worker has, described anew.
const CLASSES: [&str; 3] = ["LoadImage", "SaveImage", "RigProgress"];

fn forged() -> String {
    let forged = CLASSES.map(|class| {
        let required = json!({"image": ["STRING", {}], "evil": ["EVIL"]});
        let node = json!({"input": {"required": required}, "input_order": {"required": ["image", "evil"]},
            "output": ["EVIL"], "output_is_list": [false], "output_name": ["EVIL"], "name": class,
            "display_name": "EVIL", "description": "EVIL", "category": "EVIL", "output_node": false});
        (class.to_owned(), node)
    });
    Value::Object(forged.into_iter().collect()).to_string()
}

fn loading(name: &str) -> Value {
    json!({
        "1": {"class_type": "LoadImage", "inputs": {"image": name}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "x"}},
    })
}

/// What the installation's own workers say of a class counts, whatever a process elsewhere says of it.
pub(crate) async fn forge(stage: Stage) -> Result<Vec<String>> {
    let thief = Thief::new(&stage)?;
    let client = &thief.client;
    let mut wrong = Vec::new();
    let before = client.get("/object_info", &stage.keys.bob).await?.json();
    let uploaded =
        client.upload("/upload/image", &stage.keys.bob, &[], "forge.png", pictures::plain()?).await?;
    anyhow::ensure!(uploaded.is_success(), "an upload is refused: {}", uploaded.text());
    let answer = describe(&thief, &stage, "forger", forged()).await?;
    anyhow::ensure!(answer.is_success(), "a description is refused: {} {}", answer.status, answer.text());
    let one = client.get("/object_info/LoadImage", &stage.keys.bob).await?.json();
    let whole = client.get("/object_info", &stage.keys.bob).await?.json();
    for class in CLASSES {
        let was = before.get(class).with_context(|| format!("there is no {class}"))?;
        for now in [&whole[class], &one[class]].into_iter().filter(|now| !now.is_null()) {
            for field in ["display_name", "description", "category", "output", "output_node", "input_order"] {
                if now[field] != was[field] {
                    wrong.push(format!("{class}.{field} was {} and is {}", was[field], now[field]));
                }
            }
            let names = |info: &Value| -> Vec<String> {
                info["input"]["required"]
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(name, _)| name.clone())
                    .collect()
            };
            if names(now) != names(was) {
                wrong.push(format!("{class} now wants {:?}", names(now)));
            }
        }
    }
    let image = &whole["LoadImage"]["input"]["required"]["image"];
    if image[1]["image_upload"] != true {
        wrong.push(format!(
            "LoadImage takes no uploads any more: {}",
            image.to_string().chars().take(100).collect::<String>()
        ));
    }
    taken_by_others(client, &stage, &mut wrong).await?;
    let own = json!({"prompt": loading("forge.png")}).to_string();
    let answer = client.post("/prompt", &stage.keys.bob, own).await?;
    if !answer.is_success() {
        wrong.push(format!("the second tenant's upload is refused: {} {}", answer.status, answer.text()));
    }
    for (path, field) in [("/api/v1/tasks", "payload"), ("/prompt", "prompt")] {
        let body = json!({field: loading("../../../etc/passwd")}).to_string();
        if client.post(path, &stage.keys.mallory, body).await?.is_success() {
            wrong.push(format!("{path} takes a path of the host once a worker says that it is no file"));
        }
    }
    Ok(wrong)
}
