//! Asking the queue for tasks: for as many as can be begun at once.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::shared::Shared;
use super::{Delivery, ForeignQueue};
use crate::herd::jitter;
use crate::source::Result;

/// How long a question that is not needed any more is kept: mostly it is needed again at once, because a claim ran
/// out and was renewed.
const LINGER: Duration = Duration::from_millis(100);

/// The pause after a queue that does not answer; it doubles.
const PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

type Ask = BoxFuture<'static, Result<Delivery>>;

/// Asks until it is stopped.
pub(super) async fn run(shared: Arc<Shared>) {
    let mut moves = shared.moves.subscribe();
    let mut asks: Vec<Ask> = Vec::new();
    let mut surplus: Option<Instant> = None;
    let (mut pause, mut rest) = (PAUSE, None::<Instant>);
    loop {
        moves.borrow_and_update();
        let now = Instant::now();
        rest = rest.filter(|until| *until > now);
        let wanted = if rest.is_some() { 0 } else { shared.deliveries().demand() };
        if asks.len() <= wanted {
            surplus = None;
            asks.resize_with(wanted, || ask(&shared.queue));
        } else if now >= *surplus.get_or_insert(now + LINGER) {
            surplus = None;
            asks.truncate(wanted);
        }
        let stranded = shared.strand();
        let wake = [surplus, rest, stranded].into_iter().flatten().min();
        tokio::select! {
            biased;
            () = shared.stop.cancelled() => return,
            delivery = next_of(&mut asks) => match delivery {
                Ok(delivery) => {
                    pause = PAUSE;
                    shared.receive(delivery);
                }
                Err(error) => {
                    tracing::warn!(%error, "no task can be claimed now");
                    rest = Some(Instant::now() + jitter(pause));
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            },
            changed = moves.changed() => if changed.is_err() { return },
            () = sleep_until(wake) => {}
        }
    }
}

fn ask(queue: &Arc<dyn ForeignQueue>) -> Ask {
    let queue = Arc::clone(queue);
    Box::pin(async move { queue.next().await })
}

/// The first answer. Those that are not answered stay.
async fn next_of(asks: &mut Vec<Ask>) -> Result<Delivery> {
    poll_fn(|context| {
        for n in 0..asks.len() {
            if let Poll::Ready(answer) = asks[n].as_mut().poll(context) {
                drop(asks.swap_remove(n));
                return Poll::Ready(answer);
            }
        }
        Poll::Pending
    })
    .await
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
