//! Graphs that cost their reader more than they cost their writer.

use crate::raw::Client;
use crate::stage::Stage;
use anyhow::Result;
use futures_util::future::join_all;
use std::fmt::Write;
use std::time::Instant;

const TASKS: &str = "/api/v1/tasks";
const PROMPT: &str = "/prompt";

/// Sends each body to its route, all at once. Answers do not matter: what others feel does. A refusal with the name of
/// a limit is as good as a task that is taken and costs nothing.
async fn send_all(stage: Stage, bodies: Vec<(&'static str, String)>) -> Result<Vec<String>> {
    let client = Client::new(&stage)?;
    let sent = bodies.into_iter().map(|(path, body)| {
        let (client, key) = (client.clone(), stage.keys.mallory.clone());
        async move {
            let began = Instant::now();
            let answer = client.post(path, &key, body).await;
            (path, began.elapsed(), answer)
        }
    });
    let mut wrong = Vec::new();
    for (path, _, answer) in join_all(sent).await {
        match answer {
            Ok(answer) if answer.status >= 500 && answer.status != 503 => {
                wrong.push(format!("{path} answers {} {}", answer.status, answer.text()));
            }
            Ok(_) => {}
            Err(_) => wrong.push(format!("{path} does not answer within 30 s")),
        }
    }
    wrong.dedup();
    Ok(wrong)
}

/// Both ways in.
fn both(graph: &str) -> Vec<(&'static str, String)> {
    vec![(TASKS, format!("{{\"payload\":{graph}}}")), (PROMPT, format!("{{\"prompt\":{graph}}}"))]
}

const SOURCE: &str = r#""s":{"class_type":"RigProgress","inputs":{"steps":1,"step_ms":1,"preview":"none","preview_size":16,"seed":1}}"#;

fn savers_graph(count: usize) -> String {
    let mut text = format!("{{{SOURCE}");
    for n in 0..count {
        let _ = write!(
            text,
            r#","{n}":{{"class_type":"SaveImage","inputs":{{"images":["s",0],"filename_prefix":"a{n}"}}}}"#
        );
    }
    text + "}"
}

pub(crate) async fn savers(stage: Stage) -> Result<Vec<String>> {
    let graph = savers_graph(12_000);
    let bodies = [both(&graph), both(&graph)].concat();
    send_all(stage, bodies).await
}

pub(crate) async fn dots(stage: Stage) -> Result<Vec<String>> {
    // One that is there: what is refused for another reason is not worth the attack.
    let client = Client::new(&stage)?;
    let request = client.request(reqwest::Method::POST, "/api/v1/assets?filename=a.png", &stage.keys.mallory);
    let made =
        client.send(request.header("content-type", "application/octet-stream").body("asset")).await?.json();
    let asset = format!("asset:{}", made["sha256"].as_str().unwrap_or_default());
    let graph = savers_graph(1_000);
    let body = |name: String| (TASKS, format!(r#"{{"payload":{graph},"inputs":{{"{name}":"{asset}"}}}}"#));
    let bodies = vec![
        body(".".repeat(50_000)),
        body(".".repeat(50_000)),
        body("0.".repeat(25_000)),
        body(format!("0{}", ".images".repeat(20_000))),
    ];
    send_all(stage, bodies).await
}

pub(crate) async fn infinities(stage: Stage) -> Result<Vec<String>> {
    let mut inputs = String::new();
    for n in 0..15_000 {
        let _ = write!(inputs, r#""i{n}":1e999,"#);
    }
    let graph = format!(
        r#"{{{SOURCE},"1":{{"class_type":"SaveImage","inputs":{{{inputs}"images":["s",0],"filename_prefix":"a"}}}}}}"#
    );
    let bodies = [both(&graph), both(&graph)].concat();
    send_all(stage, bodies).await
}

pub(crate) async fn doubled(stage: Stage) -> Result<Vec<String>> {
    let mut text = format!("{{{SOURCE}");
    for n in 0..40_000 {
        let _ = write!(
            text,
            r#","{}":{{"class_type":"SaveImage","inputs":{{"images":["s",0],"filename_prefix":"a"}}}}"#,
            n % 2
        );
    }
    text.push('}');
    // And the same for the names of inputs within one node.
    let inputs = r#""images":["s",0],"#.repeat(150_000);
    let node = format!(
        r#"{{{SOURCE},"1":{{"class_type":"SaveImage","inputs":{{{inputs}"filename_prefix":"a"}}}}}}"#
    );
    send_all(stage, [both(&text), both(&node)].concat()).await
}

pub(crate) async fn targets(stage: Stage) -> Result<Vec<String>> {
    let graph = savers_graph(150_000);
    let targets: Vec<String> = (0..10_000).map(|n| format!("\"{}\"", n * 7)).collect();
    let body = format!(r#"{{"prompt":{graph},"partial_execution_targets":[{}]}}"#, targets.join(","));
    let sync = format!(r#"{{"payload":{graph}}}"#);
    send_all(stage, vec![(PROMPT, body.clone()), (PROMPT, body), (TASKS, sync)]).await
}

pub(crate) async fn deep(stage: Stage) -> Result<Vec<String>> {
    let depth = 100_000;
    let lists = format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
    let objects = format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
    let graph = |value: &str| {
        format!(
            r#"{{{SOURCE},"1":{{"class_type":"SaveImage","inputs":{{"images":{value},"filename_prefix":"a"}}}}}}"#
        )
    };
    let mut bodies = [both(&graph(&lists)), both(&graph(&objects)), both(&lists), both(&objects)].concat();
    bodies.push((TASKS, format!(r#"{{"payload":{},"metadata":{objects}}}"#, savers_graph(1))));
    bodies.push((PROMPT, format!(r#"{{"prompt":{},"extra_data":{objects}}}"#, savers_graph(1))));
    send_all(stage, bodies).await
}

pub(crate) async fn chain(stage: Stage) -> Result<Vec<String>> {
    let mut text = format!("{{{SOURCE}");
    let mut before = "s".to_owned();
    for n in 0..19_900 {
        let _ = write!(text, r#","{n}":{{"class_type":"ImageInvert","inputs":{{"image":["{before}",0]}}}}"#);
        before = n.to_string();
    }
    let _ = write!(
        text,
        r#","end":{{"class_type":"SaveImage","inputs":{{"images":["{before}",0],"filename_prefix":"a"}}}}}}"#
    );
    send_all(stage, both(&text)).await
}

pub(crate) async fn diamonds(stage: Stage) -> Result<Vec<String>> {
    let mut text = format!("{{{SOURCE}");
    let mut before = "s".to_owned();
    for n in 0..500 {
        let _ = write!(
            text,
            r#","{n}":{{"class_type":"ImageBatch","inputs":{{"image1":["{before}",0],"image2":["{before}",0]}}}}"#
        );
        before = n.to_string();
    }
    let _ = write!(
        text,
        r#","end":{{"class_type":"SaveImage","inputs":{{"images":["{before}",0],"filename_prefix":"a"}}}}}}"#
    );
    // Never to be run: the pictures would double 500 times, which is the ComfyUI's matter and not ours.
    let waiting = (TASKS, format!(r#"{{"payload":{text},"not_before":"2999-01-01T00:00:00Z"}}"#));
    let cycle = r#"{"1":{"class_type":"ImageInvert","inputs":{"image":["2",0]}},"2":{"class_type":"ImageInvert","inputs":{"image":["1",0]}},"3":{"class_type":"SaveImage","inputs":{"images":["1",0],"filename_prefix":"a"}}}"#;
    send_all(stage, [vec![waiting.clone(), waiting], both(cycle)].concat()).await
}

pub(crate) async fn fan(stage: Stage) -> Result<Vec<String>> {
    let mut inputs = String::new();
    for n in 0..100_000 {
        let _ = write!(inputs, r#""i{n}":["s",0],"#);
    }
    let graph = format!(
        r#"{{{SOURCE},"1":{{"class_type":"SaveImage","inputs":{{{inputs}"images":["s",0],"filename_prefix":"a"}}}}}}"#
    );
    send_all(stage, [both(&graph), both(&graph)].concat()).await
}

pub(crate) async fn classes(stage: Stage) -> Result<Vec<String>> {
    let mut text = format!("{{{SOURCE}");
    for n in 0..20_000 {
        let _ = write!(
            text,
            r#","{n}":{{"class_type":"Unknown{n}","inputs":{{"model_name":"m{n}.safetensors"}}}}"#
        );
    }
    text.push('}');
    send_all(stage, [both(&text), both(&text)].concat()).await
}

pub(crate) async fn long_names(stage: Stage) -> Result<Vec<String>> {
    let long = "n".repeat(1 << 20);
    let graph = format!(
        r#"{{"{long}":{{"class_type":"{long}","inputs":{{"{long}":["{long}",0]}},"_meta":{{"title":"{long}"}}}}}}"#
    );
    let mut bodies = both(&graph);
    let plain = savers_graph(1);
    bodies.push((TASKS, format!(r#"{{"payload":{plain},"workflow_id":"{long}"}}"#)));
    bodies.push((TASKS, format!(r#"{{"payload":{plain},"labels":["{long}"]}}"#)));
    bodies.push((PROMPT, format!(r#"{{"prompt":{plain},"client_id":"{long}"}}"#)));
    send_all(stage, bodies).await
}

pub(crate) async fn placements(stage: Stage) -> Result<Vec<String>> {
    let asset = format!("asset:{}", "a".repeat(64));
    let mut text = format!("{{{SOURCE}");
    let mut inputs = String::new();
    for n in 0..20_000 {
        let _ = write!(text, r#","{n}":{{"class_type":"LoadImage","inputs":{{"image":"{asset}"}}}}"#);
        let comma = if n == 0 { "" } else { "," };
        let _ = write!(inputs, r#"{comma}"{n}.image":"{asset}""#);
    }
    text.push('}');
    let named = format!(r#"{{"payload":{text},"inputs":{{{inputs}}}}}"#);
    send_all(stage, [both(&text), vec![(TASKS, named)]].concat()).await
}

pub(crate) async fn crowd(stage: Stage) -> Result<Vec<String>> {
    let graph = savers_graph(19_000);
    let deadline = Instant::now() + stage.while_it_lasts();
    while Instant::now() < deadline {
        let bodies = (0..32).flat_map(|_| both(&graph)).collect();
        // To be turned away is fine, and so is to wait: the others must not.
        send_all(stage.clone(), bodies).await?;
    }
    Ok(Vec::new())
}
