//! ComfyUIs that answer with more than anybody can take.

use crate::hostile::{Hostile, Lie, Lies};
use crate::probe::graph;
use crate::raw::Client;
use crate::stage::Stage;
use anyhow::Result;
use serde_json::json;
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;

/// How long the server may take to find the liar.
const FOUND: Duration = Duration::from_secs(60);

/// How long a lie is told at least: a liar with the lowest priority needs time to say much.
const LASTS: Duration = Duration::from_secs(10);

/// Plays a ComfyUI that lies, gives it tasks, and asks the gateway for what only it has.
async fn lie(stage: Stage, lies: Lies) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let hostile = Hostile::start(stage.port, &stage.behind, lies).await?;
    let key = &stage.keys.mallory;
    let found = Instant::now();
    let mut asked = 0;
    // Until the first lie was told, and from then on as long as the load is to last.
    let mut until = found + FOUND;
    let mut begun = false;
    while Instant::now() < until {
        if !begun && hostile.told.load(Ordering::Relaxed) > 0 {
            begun = true;
            until = Instant::now() + stage.while_it_lasts().max(LASTS);
        }
        asked += 1;
        let body = json!({"payload": graph(asked), "labels": ["hostile"], "max_retries": 0}).to_string();
        let ask = async {
            let _ = client.post("/api/v1/tasks", key, body).await;
            for path in ["/extensions/x/lie.js", "/models/checkpoints", "/api/jobs", "/internal/logs"] {
                let _ = tokio::time::timeout(Duration::from_millis(500), client.get(path, key)).await;
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(5), ask).await;
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    match begun {
        true => Ok(Vec::new()),
        false => anyhow::bail!("the server never asked for what the ComfyUI lies about"),
    }
}

/// All routes that a server asks, with the same lie for each.
fn everywhere(lie: &Lie) -> Lies {
    let routes =
        ["/object_info", "/queue", "/history", "/system_stats", "/extensions", "/models", "/prompt", "/api"];
    routes.into_iter().map(|route| (route, lie.clone())).collect()
}

pub(crate) async fn endless_ok(stage: Stage) -> Result<Vec<String>> {
    lie(stage, everywhere(&Lie::Endless(200))).await
}

pub(crate) async fn endless_error(stage: Stage) -> Result<Vec<String>> {
    lie(stage, everywhere(&Lie::Endless(500))).await
}

pub(crate) async fn gzip(stage: Stage) -> Result<Vec<String>> {
    lie(stage, everywhere(&Lie::Gzip)).await
}

pub(crate) async fn object_info(stage: Stage) -> Result<Vec<String>> {
    let mut text = String::from("{");
    for n in 0..200_000 {
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(
            text,
            r#"{comma}"Node{n}":{{"input":{{"required":{{"a":["INT",{{"default":0,"min":0,"max":9}}],"b":[["x{n}","y{n}"]]}}}},"output":["IMAGE"],"output_is_list":[false],"output_name":["IMAGE"],"name":"Node{n}","display_name":"Node {n}","description":"","category":"c","output_node":false}}"#
        );
    }
    text.push('}');
    lie(stage, vec![("/object_info", Lie::Body(Arc::new(text.into_bytes())))]).await
}

pub(crate) async fn history(stage: Stage) -> Result<Vec<String>> {
    let before = r#"{"x":{"prompt":[0,"x",{},{},[]],"outputs":{},"status":{"status_str":"success","completed":true,"messages":[["a",""#;
    let long = Lie::Filled(before, 300 << 20, r#""]]}}}"#);
    lie(stage, vec![("/history", long)]).await
}

pub(crate) async fn queue(stage: Stage) -> Result<Vec<String>> {
    lie(stage, vec![("/queue", Lie::Endless(200)), ("/prompt", Lie::Endless(400))]).await
}

pub(crate) async fn socket_flood(stage: Stage) -> Result<Vec<String>> {
    lie(stage, vec![("/ws", Lie::Flood)]).await
}

pub(crate) async fn socket_frame(stage: Stage) -> Result<Vec<String>> {
    lie(stage, vec![("/ws", Lie::LongFrame)]).await
}

pub(crate) async fn output(stage: Stage) -> Result<Vec<String>> {
    lie(stage, vec![("/view", Lie::Endless(200)), ("/api/view", Lie::Endless(200))]).await
}

pub(crate) async fn trickle(stage: Stage) -> Result<Vec<String>> {
    lie(stage, everywhere(&Lie::Trickle)).await
}

/// A worker that is a machine of somebody else's must not be able to point the gateway into its own network.
pub(crate) async fn redirect(stage: Stage) -> Result<Vec<String>> {
    let canary = TcpListener::bind("127.0.0.1:0").await?;
    let to = format!("http://{}/secret", canary.local_addr()?);
    let client = Client::new(&stage)?;
    let routes = ["/extensions", "/view", "/models", "/object_info", "/internal", "/history", "/experiment"];
    let lies = routes.into_iter().map(|route| (route, Lie::Redirect(to.clone()))).collect();
    let hostile = Hostile::start(stage.port, &stage.behind, lies).await?;
    let deadline = Instant::now() + FOUND;
    let ask = async {
        while Instant::now() < deadline {
            for path in ["/extensions/x/y.js", "/models/none", "/experiment/models/none"] {
                let _ = client.get(path, &stage.keys.mallory).await;
            }
            if hostile.told.load(Ordering::Relaxed) > 3 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                return;
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        accepted = canary.accept() => {
            accepted?;
            Ok(vec!["the gateway followed a worker's redirect to another address".to_owned()])
        }
        () = ask => Ok(Vec::new()),
    }
}
