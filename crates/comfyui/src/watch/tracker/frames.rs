//! What comes over the socket.

use tokio::time::Instant;

use super::{AFTER_END, Ask, Link, Phase, Tracker, Watched};
use crate::ids::PromptId;
use crate::outputs::NodeOutput;
use crate::watch::{Event, NodeState, Raw};
use crate::ws::{Message, RawFrame};

impl Tracker {
    pub(crate) fn link_up(&mut self, now: Instant) {
        self.link = Link::Up;
        self.last_message = Some(now);
        self.last_heard = Some(now);
        self.tell_link(true);
        // Whatever was said meanwhile was said to nobody.
        self.survey_now(now);
    }

    pub(crate) fn link_down(&mut self, now: Instant) {
        if self.link == Link::Up {
            self.tell_link(false);
            self.survey_now(now);
        }
        self.link = Link::Down;
        // Whatever is heard from now on may come from another process.
        for watched in self.watches.values_mut().filter(|watched| watched.seen_on == Some(self.epoch)) {
            watched.clock_ms = watched.clock_ms.max(self.server_clock_ms);
        }
        self.epoch += 1;
    }

    fn tell_link(&self, up: bool) {
        for watched in self.watches.values() {
            watched.tell(&Event::Connection { up });
        }
    }

    /// The other side lives, although it has nothing to say.
    pub(crate) fn heard(&mut self, now: Instant) {
        self.last_heard = Some(now);
        for watched in self.watches.values_mut().filter(|watched| watched.absent_since.is_some()) {
            watched.look_at = Some(now);
        }
    }

    /// Takes a message, and the frame it was read from for those who want it.
    pub(crate) fn message(&mut self, now: Instant, message: Message, raw: Option<&RawFrame>) -> Vec<Ask> {
        self.last_message = Some(now);
        self.last_heard = Some(now);
        if let Some(timestamp) = message.timestamp() {
            self.server_clock_ms = self.server_clock_ms.max(timestamp);
        }
        let id = match message.prompt_id() {
            Some(id) => id.clone(),
            None => match (&message, &self.current) {
                (Message::Preview(_) | Message::Text(_) | Message::Progress(_), Some(current)) => {
                    current.clone()
                }
                (Message::Other { data, .. }, current) => {
                    let named = data.get("prompt_id").and_then(serde_json::Value::as_str).map(PromptId::from);
                    if let Some(watched) = named.or(current.clone()).and_then(|id| self.watches.get(&id)) {
                        watched.tell_raw(raw);
                    }
                    return Vec::new();
                }
                _ => return Vec::new(),
            },
        };
        let epoch = self.epoch;
        let Some(watched) = self.watches.get_mut(&id) else {
            return Vec::new();
        };
        self.idle_with_pending = None;
        self.head = Some((id.clone(), now));
        watched.seen(epoch, self.server_clock_ms);
        watched.client_id = Some(self.client_id.clone());
        watched.last_sign = now;
        watched.tell_raw(raw);
        let mut asks = Vec::new();
        let mut running = true;
        match message {
            Message::ExecutionStart(_) => watched.start(now),
            Message::ExecutionCached(cached) => watched.tell(&Event::Cached { nodes: cached.nodes }),
            Message::Executing(executing) => match executing.node {
                Some(node) => {
                    watched.start(now);
                    let display_node = executing.display_node.unwrap_or_else(|| node.clone());
                    watched.tell(&Event::Node { node, display_node });
                }
                None => {
                    running = false;
                    if !matches!(watched.phase, Phase::Ending(_)) {
                        watched.phase = Phase::Ending(now);
                    }
                    if watched.deciding.is_none() {
                        watched.asking = true;
                        watched.asked_on = epoch;
                        watched.look_at = None;
                        asks.push(Ask::History(id.clone()));
                    }
                }
            },
            Message::Progress(progress) => {
                watched.start(now);
                let (value, max) = (progress.value, progress.max);
                watched.tell(&Event::Progress { node: progress.node, value, max });
            }
            Message::ProgressState(state) => {
                watched.start(now);
                let nodes = state.nodes.into_iter().map(|(node, progress)| NodeState {
                    node,
                    value: progress.value,
                    max: progress.max,
                    finished: progress.state == "finished",
                });
                watched.tell(&Event::Nodes(nodes.collect()));
            }
            Message::Executed(executed) => {
                if let Ok(ui) = serde_json::value::to_raw_value(&executed.output)
                    && executed.output.is_object()
                {
                    watched.tell(&Event::Output(NodeOutput::from_ui(&executed.node, &ui)));
                }
            }
            Message::ExecutionError(error) if error.is_blocked_branch() => {
                watched.tell(&Event::BranchBlocked(error));
            }
            Message::ExecutionSuccess(_) | Message::ExecutionError(_) | Message::ExecutionInterrupted(_) => {
                watched.phase = Phase::Ending(now);
                watched.look_at = Some(now + AFTER_END);
            }
            Message::Preview(preview) => watched.tell(&Event::Preview(preview)),
            Message::Text(text) => {
                watched.tell(&Event::Text { node: text.node_id, text: text.text });
            }
            Message::Status(_) | Message::FeatureFlags(_) | Message::Other { .. } => running = false,
        }
        if running {
            self.current = Some(id);
        } else if self.current.as_ref() == Some(&id) {
            self.current = None;
        }
        asks
    }
}

impl Watched {
    /// Hands on a frame as it came. Costs nothing when nobody wants it.
    fn tell_raw(&self, raw: Option<&RawFrame>) {
        let wanted = self.listeners.iter().filter(|listener| listener.mailbox.wants_raw());
        let mut wanted = wanted.peekable();
        if wanted.peek().is_none() {
            return;
        }
        let Some(raw) = raw.and_then(Raw::read) else { return };
        for listener in wanted {
            listener.mailbox.push(Event::Raw(raw.clone()));
        }
    }
}
