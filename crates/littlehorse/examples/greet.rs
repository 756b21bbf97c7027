//! A worker for the task `greet`.
//!
//! ```console
//! $ LHC_API_HOST=localhost LHC_API_PORT=2023 cargo run -p littlehorse --example greet
//! ```
//!
//! It registers the TaskDef if it is not there, and serves it until Ctrl-C. All settings come from the environment, or from a
//! properties file that is named as its only argument.

use std::path::Path;

use littlehorse::{Client, Config, NewTaskDef, TaskContext, TaskError, Type, Value, Worker};
use serde::{Deserialize, Serialize};

/// The first input, a JSON object.
#[derive(Deserialize)]
struct Guest {
    name: String,
    /// May be left out.
    #[serde(default)]
    title: Option<String>,
}

/// The output, a JSON object.
#[derive(Serialize)]
struct Greeting {
    text: String,
    number: u64,
}

/// The task. Its inputs come by their place: here a JSON_OBJ and a BOOL.
async fn greet(context: TaskContext, guest: Guest, aloud: bool) -> Result<Greeting, TaskError> {
    if guest.name.is_empty() {
        // A business exception: the workflow can handle it by its name, and the server does not try again.
        return Err(TaskError::exception("no-name", "whom shall I greet?").with_content(Value::Bool(aloud)));
    }
    // What must not be done twice is done in a checkpoint: a later attempt gets the number of the first.
    let number = context.checkpoint(async |_log| draw_a_number().await).await?;
    // People see this beside the task in the dashboard.
    context.log(format!("guest {number} is greeted in attempt {}", context.attempt()));

    let title = guest.title.map(|title| format!("{title} ")).unwrap_or_default();
    let text = format!("Hello, {title}{}!", guest.name);
    Ok(Greeting { text: if aloud { text.to_uppercase() } else { text }, number })
}

/// Every error of Rust becomes a failure by `?`: the server tries again, if the workflow allows.
async fn draw_a_number() -> Result<u64, TaskError> {
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    Ok(seconds % 1000)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt().init();
    let config = match std::env::args_os().nth(1) {
        Some(file) => Config::from_file(Path::new(&file))?,
        None => Config::from_env()?,
    };
    let task = NewTaskDef::new("greet")
        .input("guest", Type::JsonObj)
        .input("aloud", Type::Bool)
        .returns(Type::JsonObj);
    Worker::new(Client::new(config)?, task, greet)
        .register()
        .run_until(async {
            // Without signals there is no way to be asked to stop.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending().await
            }
        })
        .await?;
    Ok(())
}
