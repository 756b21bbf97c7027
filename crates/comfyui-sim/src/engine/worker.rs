//! The one worker: takes prompts one after the other until it dies or is stopped.

use super::cache::Cache;
use super::client::Client;
use super::execute::{Kept, execute};
use super::queue::{Finished, Item, Taken};
use super::run::Run;
use super::submit::SECRETS;
use super::{Ending, Engine};
use crate::config::Profile;
use crate::hub::Outgoing;
use crate::json::{Json, dict};
use crate::nodes::Memory;
use crate::stats::Span;
use std::sync::Arc;

/// Works until something kills the worker; then it ends and the queue stands still.
pub(super) async fn work(engine: Arc<Engine>) {
    let mut kept =
        Kept { cache: Cache::default(), memory: Memory::new(engine.config.seed), success: true, runs: 0 };
    loop {
        match engine.queue.take().await {
            Taken::Broken => break,
            Taken::Woken => {}
            Taken::Prompt(number, item) => {
                if !serve(&engine, &mut kept, number, item).await {
                    break;
                }
            }
        }
        let flags = engine.queue.take_flags();
        if flags.unload_models || flags.free_memory {
            kept.memory.unload();
        }
        if flags.free_memory {
            kept.cache = Cache::default();
            kept.success = true;
        }
    }
    tracing::warn!("the simulated worker thread ended, nothing is executed any more");
}

/// Executes one prompt and puts it into the history; false if the worker did not survive it.
async fn serve(engine: &Arc<Engine>, kept: &mut Kept, number: u64, item: Arc<Item>) -> bool {
    engine.executions.count(&item.id, &item.digest);
    let began_us = engine.executions.now_us();
    let faults = engine.faults.for_prompt(&item.id);
    if faults.worker_dies {
        return false;
    }
    let client = Client::of(&item.extra_data);
    let previews = previews(engine, &item);
    let run = Run::new(item.id.clone(), client.clone(), faults, previews, engine);
    let outcome = match execute(engine, kept, &item, &run).await {
        Ending::Finished(outcome) => outcome,
        Ending::WorkerDied => return false,
        Ending::ProcessEnded => {
            engine.process_end.cancel();
            return false;
        }
    };
    let ended_us = engine.executions.now_us();
    // The last message is out, the history entry is not there yet: clients must live with it.
    if engine.config.history_gap.is_zero() {
        tokio::task::yield_now().await;
    } else {
        tokio::time::sleep(engine.config.history_gap).await;
    }
    let received_us = item.received_us;
    let finished = Finished {
        item: without_secrets(engine.config.profile, item),
        outputs: outcome.outputs,
        meta: outcome.meta,
        status: outcome.status,
        serializable: outcome.serializable,
    };
    engine.queue.done(number, finished);
    let told_us = engine.executions.now_us();
    let prompt_id = run.prompt_id.clone();
    engine.executions.spend(Span { prompt_id, received_us, began_us, ended_us, told_us });
    let data = dict([("node", Json::Null), ("prompt_id", run.prompt_id.as_str().into())]);
    client.tell(&*engine.hub, Outgoing::Text { event: "executing", data });
    true
}

/// 0.3.64 keeps secrets in the queue and hides them in the history only; 0.3.30 never hides them.
fn without_secrets(profile: Profile, item: Arc<Item>) -> Arc<Item> {
    if profile != Profile::V0_3_64 || !SECRETS.iter().any(|secret| item.extra_data.contains_key(*secret)) {
        return item;
    }
    let mut item = (*item).clone();
    for secret in SECRETS {
        item.extra_data.shift_remove(secret);
    }
    Arc::new(item)
}

/// A prompt may ask for previews or against them (0.5.0 and later).
fn previews(engine: &Engine, item: &Item) -> bool {
    let wish = item.extra_data.get("preview_method").and_then(Json::as_str);
    match wish.filter(|_| engine.config.profile >= Profile::V0_7_0) {
        Some("none") => false,
        Some("auto" | "latent2rgb" | "taesd") => true,
        _ => engine.config.previews,
    }
}
