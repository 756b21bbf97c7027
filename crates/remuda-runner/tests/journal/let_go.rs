//! What happens to a render that was let go of.

use std::time::Duration;

use comfyui::{Outcome, Whereabouts};
use remuda_runner::source::foreign::Withdrawn;

use super::rig::*;

/// Another process has adopted the prompt at this same ComfyUI. A restart of this one must not stop it.
#[tokio::test]
async fn a_restart_does_not_stop_what_was_let_go_of() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let delivery = delivery("theirs", &long(6.0));
    rig.queue.give(&delivery);
    rendering(&sim, 1).await;
    rig.queue.say("theirs", Withdrawn::Elsewhere);
    until("it to be let go of", async || process.source.counts() == (0, 0) && rig.journal().is_empty()).await;
    process.stop().await;
    let process = rig.start(&[&sim]).await;
    let client = comfyui::Client::new(&sim.url()).unwrap();
    let mut end = None;
    until("the prompt to end", async || match client.find(&delivery.prompt_id.into()).await.unwrap() {
        Whereabouts::Ended(entry) => {
            end = Some(Outcome::judge(*entry));
            true
        }
        Whereabouts::Absent => panic!("it was stopped, and its history entry deleted"),
        _ => false,
    })
    .await;
    assert!(matches!(end, Some(Outcome::Succeeded(_))), "{end:?}");
    process.stop().await;
    sim.shutdown().await;
}

/// Two workers with ComfyUIs of their own, a timeout shorter than the render: every task is let go of in turn. Prompts that
/// nobody wants must not pile up before those that somebody does.
#[tokio::test]
async fn what_was_let_go_of_does_not_pile_up_at_comfyui() {
    let (rig, sim) = (Rig::new(), sim().await);
    let process = rig.start(&[&sim]).await;
    let client = comfyui::Client::new(&sim.url()).unwrap();
    for n in 0..6 {
        let name = format!("theirs-{n}");
        rig.queue.give(&delivery(&name, &endless()));
        let begun = async || rig.queue.begun().iter().any(|(key, _)| *key == name);
        if n == 0 {
            until("the first to be sent", begun).await;
        } else if tokio::time::timeout(Duration::from_secs(3), until("it to be sent", begun)).await.is_err() {
            break;
        }
        until("it to be there", async || client.queue_remaining().await.unwrap() > n).await;
        rig.queue.say(&name, Withdrawn::Elsewhere);
        until("it to be let go of", async || process.source.counts() == (0, 0)).await;
    }
    let queued = client.queue_remaining().await.unwrap();
    assert_eq!(queued, 1, "prompts at ComfyUI that nobody wants");
    // When the render has ended, the worker is free again.
    let running = client.queue().await.unwrap().running[0].prompt_id.clone();
    client.interrupt(&running).await.unwrap();
    until("the next to be sent", async || rig.queue.begun().len() == 2).await;
    process.kill();
    sim.shutdown().await;
}
