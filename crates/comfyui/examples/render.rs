//! Renders one workflow file on a ComfyUI and saves what comes out.
//!
//! `cargo run -p comfyui --example render -- http://127.0.0.1:8188 workflow.json out/`

#![allow(clippy::print_stdout, reason = "a command-line example")]

use std::path::PathBuf;

use comfyui::{Client, Event, FileRef, PromptRequest, Session, SessionOptions, Workflow};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(url), Some(file)) = (arguments.next(), arguments.next()) else {
        return Err("usage: render URL WORKFLOW.json [FOLDER]".into());
    };
    let folder = PathBuf::from(arguments.next().unwrap_or_else(|| ".".into()));
    let workflow = Workflow::parse(tokio::fs::read(&file).await?)?;

    let session = Session::open(Client::new(&url)?, SessionOptions::default()).await?;
    let mut watch = session.submit(PromptRequest::new(workflow)).await?;
    while let Some(event) = watch.next().await {
        match event {
            Event::Queued { ahead: Some(ahead) } => println!("queued, {ahead} before it"),
            Event::Queued { ahead: None } => println!("queued"),
            Event::Started => println!("started"),
            Event::Node { node, .. } => println!("node {node}"),
            Event::Progress { value, max, .. } => println!("  {value} of {max}"),
            Event::Preview(preview) => println!("  preview of {} bytes", preview.image.len()),
            Event::Finished(outcome) => {
                let success = outcome.into_result(watch.prompt_id())?;
                tokio::fs::create_dir_all(&folder).await?;
                for output in success.outputs.files() {
                    let path = folder.join(&output.filename);
                    let mut to = tokio::fs::File::create(&path).await?;
                    let bytes =
                        session.client().view(&FileRef::from(output)).await?.write_to(&mut to).await?;
                    println!("{} ({bytes} bytes)", path.display());
                }
            }
            _ => {}
        }
    }
    session.close().await;
    Ok(())
}
