//! A thousand prompts watched at once over one socket.

use std::time::{Duration, Instant};

use comfyui::{Client, PromptRequest, Session, SessionOptions, Workflow};
use serde_json::json;

use crate::Failure;
use crate::table::Row;

pub(crate) async fn measure(url: &str, prompts: usize) -> Result<Vec<Row>, Failure> {
    let session = Session::open(Client::new(url)?, SessionOptions::default()).await?;
    let client = session.client();
    // Holds the worker, so that all the others wait and are watched at the same time.
    hold(url).await?;
    let gate = json!({"1": {"class_type": "RigText", "inputs": {"text": "gate"}}});
    let gate = client.submit(&PromptRequest::new(Workflow::parse(gate.to_string())?)).await?;
    let mut watches = Vec::with_capacity(prompts);
    let begun = Instant::now();
    for number in 0..prompts {
        let graph =
            json!({"1": {"class_type": "RigText", "inputs": {"text": format!("one of many {number}")}}});
        watches.push(session.submit(PromptRequest::new(Workflow::parse(graph.to_string())?)).await?);
    }
    let submitted = begun.elapsed();
    let waiting = client.queue_remaining().await?;
    if waiting < prompts as u64 {
        return Err(format!("only {waiting} are waiting at once").into());
    }
    let begun = Instant::now();
    release(url).await?;
    let mut good = 0;
    for watch in watches {
        tokio::time::timeout(Duration::from_secs(120), watch.finish()).await??;
        good += 1;
    }
    let drained = begun.elapsed();
    session.watch(&gate.prompt_id).await.outcome().await;
    session.close().await;
    Ok(vec![
        Row::goal(
            "watches at once on one socket, all ended well",
            good as f64,
            "",
            "all of them",
            good == prompts,
        ),
        Row::fact("submissions per second while they wait", prompts as f64 / submitted.as_secs_f64(), "/s"),
        Row::fact("ends per second once the worker is free", prompts as f64 / drained.as_secs_f64(), "/s"),
    ])
}

/// The next prompt gets stuck in its node …
async fn hold(url: &str) -> Result<(), Failure> {
    let fault = json!([{"kind": "stuck_node", "times": 1}]).to_string();
    let answer = reqwest::Client::new().post(format!("{url}/sim/faults")).body(fault).send().await?;
    answer.error_for_status()?;
    Ok(())
}

/// … until this.
async fn release(url: &str) -> Result<(), Failure> {
    reqwest::Client::new().delete(format!("{url}/sim/faults")).send().await?.error_for_status()?;
    Ok(())
}
