//! Events on their way to one reader.
//!
//! The session must never wait for a reader, or it would stop reading the socket and stall everybody on that server.
//! So a mailbox is bounded and forgetful: newer news replace older of their kind, and when it is full the oldest go.
//! Only the end is never lost.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::watch::{Event, Outcome};

/// Images and raw frames that wait for a slow reader may take this many bytes.
const LARGEST: usize = 64 << 20;

#[derive(Debug)]
pub(crate) struct Mailbox {
    state: Mutex<State>,
    capacity: usize,
    raw: bool,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<Event>,
    /// Of images and raw frames in `events`.
    bytes: usize,
    skipped: u64,
    end: Option<Outcome>,
    /// No more events will come.
    closed: bool,
    /// The reader is gone.
    abandoned: bool,
    waker: Option<Waker>,
}

impl Mailbox {
    pub(crate) fn new(capacity: usize) -> Self {
        Mailbox { state: Mutex::default(), capacity: capacity.max(1), raw: false }
    }

    /// For a reader who wants frames as they come, too.
    pub(crate) fn with_raw(capacity: usize, raw: bool) -> Self {
        let capacity = if raw { capacity.saturating_mul(4) } else { capacity };
        Mailbox { raw, ..Mailbox::new(capacity) }
    }

    pub(crate) fn wants_raw(&self) -> bool {
        self.raw
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing in here can panic half-way, so a poisoned state is still whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn push(&self, event: Event) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        if state.events.back().is_some_and(|last| last.is_replaced_by(&event)) {
            let replaced = state.events.pop_back().map_or(0, |last| last.size());
            state.bytes -= replaced;
        }
        state.bytes += event.size();
        while state.events.len() >= self.capacity || state.bytes > LARGEST {
            let Some(oldest) = state.events.pop_front() else {
                break;
            };
            state.bytes -= oldest.size();
            state.skipped += 1;
        }
        state.events.push_back(event);
        wake(state);
    }

    /// The last word. Later calls change nothing.
    pub(crate) fn finish(&self, outcome: Outcome) {
        let mut state = self.state();
        if !state.closed {
            state.closed = true;
            state.end = Some(outcome);
            wake(state);
        }
    }

    pub(crate) fn abandon(&self) {
        self.state().abandoned = true;
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.state().abandoned
    }

    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = self.state();
        if state.skipped > 0 {
            return Poll::Ready(Some(Event::Skipped(std::mem::take(&mut state.skipped))));
        }
        if let Some(event) = state.events.pop_front() {
            state.bytes -= event.size();
            return Poll::Ready(Some(event));
        }
        if let Some(outcome) = state.end.take() {
            return Poll::Ready(Some(Event::Finished(outcome)));
        }
        if state.closed {
            return Poll::Ready(None);
        }
        state.waker = Some(context.waker().clone());
        Poll::Pending
    }
}

/// Wakes the reader after the lock is given back.
fn wake(mut state: MutexGuard<'_, State>) {
    let waker = state.waker.take();
    drop(state);
    if let Some(waker) = waker {
        waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::watch::GaveUp;
    use crate::ws::{ImageFormat, Preview};

    fn drain(mailbox: &Mailbox) -> Vec<Event> {
        let mut context = Context::from_waker(Waker::noop());
        let mut events = Vec::new();
        while let Poll::Ready(Some(event)) = mailbox.poll(&mut context) {
            events.push(event);
        }
        events
    }

    #[test]
    fn newer_progress_replaces_older_of_the_same_node() {
        let mailbox = Mailbox::new(8);
        for value in 0..100 {
            mailbox.push(Event::Progress { node: Some("3".into()), value: value.into(), max: 100.0 });
        }
        mailbox.push(Event::Progress { node: Some("4".into()), value: 1.0, max: 2.0 });
        let events = drain(&mailbox);
        assert!(matches!(
            events[..],
            [Event::Progress { value: 99.0, .. }, Event::Progress { value: 1.0, .. }]
        ));
    }

    fn image(format: ImageFormat, bytes: usize) -> Event {
        Event::Preview(Preview { format, image: vec![0; bytes].into(), source: None })
    }

    #[test]
    fn pictures_that_are_results_are_kept_and_previews_replaced() {
        let mailbox = Mailbox::new(8);
        for _ in 0..3 {
            mailbox.push(image(ImageFormat::Jpeg, 10));
        }
        for _ in 0..3 {
            mailbox.push(image(ImageFormat::Png, 10));
        }
        assert_eq!(drain(&mailbox).len(), 3);
    }

    #[test]
    fn a_slow_reader_of_large_pictures_costs_bounded_memory() {
        let mailbox = Mailbox::new(1024);
        for _ in 0..20 {
            mailbox.push(image(ImageFormat::Png, 10 << 20));
        }
        let events = drain(&mailbox);
        assert!(matches!(events[0], Event::Skipped(14)), "{}", events.len());
        assert_eq!(events.len(), 1 + 6);
        assert_eq!(mailbox.state().bytes, 0);
    }

    #[test]
    fn a_full_mailbox_forgets_the_oldest_and_says_so_but_never_the_end() {
        let mailbox = Mailbox::new(3);
        for node in 0..10 {
            mailbox.push(Event::Text { node: node.to_string(), text: String::new() });
        }
        mailbox.finish(Outcome::GaveUp(GaveUp::SessionClosed));
        mailbox.push(Event::Started);
        let events = drain(&mailbox);
        assert!(matches!(events[0], Event::Skipped(7)));
        assert_eq!(events.len(), 5);
        assert!(matches!(events[4], Event::Finished(_)));
    }
}
