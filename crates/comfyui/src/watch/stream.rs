//! The reader's side of a watch.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::Stream;

use crate::error::Result;
use crate::ids::PromptId;
use crate::prompt::Accepted;
use crate::watch::mailbox::Mailbox;
use crate::watch::{Event, GaveUp, Outcome, Success};

/// A prompt being followed: a stream of [`Event`]s that ends with [`Event::Finished`].
///
/// Dropping it stops following and touches nothing at the server.
#[derive(Debug)]
pub struct Watch {
    pub(crate) prompt_id: PromptId,
    pub(crate) accepted: Option<Accepted>,
    pub(crate) mailbox: Arc<Mailbox>,
}

impl Watch {
    /// The prompt.
    #[must_use]
    pub fn prompt_id(&self) -> &PromptId {
        &self.prompt_id
    }

    /// The server's answer, when this watch began with a submission.
    #[must_use]
    pub fn accepted(&self) -> Option<&Accepted> {
        self.accepted.as_ref()
    }

    /// The next event; `None` after the end.
    pub async fn next(&mut self) -> Option<Event> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.mailbox.poll(context).map(|event| match (event, &self.accepted) {
            // A quick prompt can end before its submission is answered, so these two meet only here.
            (Some(Event::Finished(Outcome::Succeeded(mut success))), Some(accepted)) => {
                success.node_errors = accepted.node_errors.clone();
                Some(Event::Finished(Outcome::Succeeded(success)))
            }
            (event, _) => event,
        })
    }

    /// Waits for the end.
    pub async fn outcome(mut self) -> Outcome {
        while let Some(event) = self.next().await {
            if let Event::Finished(outcome) = event {
                return outcome;
            }
        }
        Outcome::GaveUp(GaveUp::SessionClosed)
    }

    /// Waits for a good end.
    ///
    /// # Errors
    /// The way it failed, see [`Outcome::into_result`].
    pub async fn finish(self) -> Result<Success> {
        let prompt_id = self.prompt_id.clone();
        self.outcome().await.into_result(&prompt_id)
    }
}

impl Stream for Watch {
    type Item = Event;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        self.poll(context)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.mailbox.abandon();
    }
}
