//! How much of a task is done, from what ComfyUI tells of its nodes.

use std::collections::HashSet;
use std::time::Duration;

use comfyui::Event;
use remuda_core::{AttemptNo, TaskId};
use tokio::time::Instant;

use remuda_frames::{Frame, FrameKind};
use remuda_sidecar::frames::LARGEST_PREVIEW;

/// At most ten frames of progress and four previews a second: more is not seen by anybody.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);
const PREVIEW_PAUSE: Duration = Duration::from_millis(250);

/// More nodes than this are not remembered of one attempt.
const MOST_DONE: usize = 100_000;

/// Follows one attempt.
#[derive(Debug)]
pub(crate) struct Meter {
    task: TaskId,
    attempt: AttemptNo,
    nodes: u32,
    done: HashSet<String>,
    /// How many of them are nodes of the graph itself. Nodes made at run time have dotted ids, and are part of one that
    /// counts.
    done_of_graph: usize,
    node: Option<String>,
    value: f64,
    max: f64,
    fraction: f64,
    shown: Option<Instant>,
    previewed: Option<Instant>,
}

impl Meter {
    pub(crate) fn new(task: TaskId, attempt: AttemptNo, nodes: usize) -> Self {
        let nodes = u32::try_from(nodes).unwrap_or(u32::MAX);
        Self {
            task,
            attempt,
            nodes,
            done: HashSet::new(),
            done_of_graph: 0,
            node: None,
            value: 0.0,
            max: 0.0,
            fraction: 0.0,
            shown: None,
            previewed: None,
        }
    }

    /// Of the whole, 0 to 1. Never falls.
    pub(crate) fn fraction(&self) -> f64 {
        self.fraction
    }

    /// Takes what happened; a frame when there is something to show.
    pub(crate) fn take(&mut self, now: Instant, event: &Event) -> Option<Frame> {
        match event {
            Event::Cached { nodes } => nodes.iter().for_each(|node| self.end(node)),
            Event::Node { display_node, .. } => {
                // One after the other: what was at work before is done.
                if let Some(before) = self.node.replace(display_node.clone())
                    && before != *display_node
                {
                    self.end(&before);
                    (self.value, self.max) = (0.0, 0.0);
                }
            }
            Event::Progress { node, value, max } => {
                self.node = node.clone().or_else(|| self.node.take());
                (self.value, self.max) = (*value, *max);
            }
            Event::Nodes(states) => {
                for state in states {
                    if state.finished {
                        self.end(&state.node);
                    } else {
                        self.node = Some(state.node.clone());
                        (self.value, self.max) = (state.value, state.max);
                    }
                }
            }
            Event::Preview(preview) => return self.preview(now, preview),
            _ => return None,
        }
        self.progress(now)
    }

    fn progress(&mut self, now: Instant) -> Option<Frame> {
        let whole = f64::from(self.nodes.max(1));
        let part = if self.max > 0.0 { (self.value / self.max).clamp(0.0, 1.0) } else { 0.0 };
        let here = if self.node.as_ref().is_some_and(|node| self.done.contains(node)) { 0.0 } else { part };
        let fraction = ((self.done_of_graph() as f64 + here) / whole).clamp(0.0, 1.0);
        if fraction.is_finite() {
            self.fraction = self.fraction.max(fraction);
        }
        let last_step = self.max > 0.0 && self.value >= self.max;
        if self.shown.is_some_and(|shown| now - shown < PROGRESS_PAUSE) && !last_step {
            return None;
        }
        self.shown = Some(now);
        Some(self.frame(FrameKind::Progress {
            fraction: self.fraction,
            node: self.node.clone(),
            value: self.value,
            max: self.max,
            nodes_done: u32::try_from(self.done_of_graph()).unwrap_or(u32::MAX),
            nodes: self.nodes,
        }))
    }

    /// A node is done. Its id comes from ComfyUI, and so does their number.
    fn end(&mut self, node: &str) {
        if self.done.len() >= MOST_DONE || self.done.contains(node) {
            return;
        }
        self.done_of_graph += usize::from(!node.contains('.'));
        self.done.insert(node.to_owned());
    }

    fn done_of_graph(&self) -> usize {
        self.done_of_graph.min(self.nodes as usize)
    }

    fn preview(&mut self, now: Instant, preview: &comfyui::ws::Preview) -> Option<Frame> {
        if self.previewed.is_some_and(|shown| now - shown < PREVIEW_PAUSE)
            // Every follower may have some dozens of them waiting.
            || preview.image.len() > LARGEST_PREVIEW
        {
            return None;
        }
        self.previewed = Some(now);
        let mime = match preview.format {
            comfyui::ws::ImageFormat::Png => "image/png",
            _ => "image/jpeg",
        };
        Some(self.frame(FrameKind::Preview { mime: mime.to_owned(), bytes: preview.image.clone() }))
    }

    fn frame(&self, what: FrameKind) -> Frame {
        Frame { task: self.task, attempt: self.attempt, what }
    }
}

#[cfg(test)]
mod tests {
    use comfyui::NodeState;

    use super::*;

    fn meter(nodes: usize) -> Meter {
        Meter::new(TaskId::new(), 1, nodes)
    }

    fn state(node: &str, value: f64, finished: bool) -> NodeState {
        NodeState { node: node.into(), value, max: 10.0, finished }
    }

    #[test]
    fn it_rises_with_nodes_and_steps_and_never_falls() {
        let now = Instant::now();
        let mut meter = meter(4);
        meter.take(now, &Event::Cached { nodes: vec!["1".into()] });
        assert_eq!(meter.fraction(), 0.25);
        meter.take(now, &Event::Nodes(vec![state("2", 10.0, true), state("3", 5.0, false)]));
        assert_eq!(meter.fraction(), 0.625);
        meter.take(now, &Event::Progress { node: Some("3".into()), value: 1.0, max: 10.0 });
        assert_eq!(meter.fraction(), 0.625);
        meter.take(
            now,
            &Event::Nodes(vec![state("3", 10.0, true), state("4", 10.0, true), state("4.0.1", 1.0, true)]),
        );
        assert_eq!(meter.fraction(), 1.0);
    }

    #[test]
    fn old_servers_tell_only_which_node_begins() {
        let now = Instant::now();
        let mut meter = meter(2);
        let node = |id: &str| Event::Node { node: id.into(), display_node: id.into() };
        meter.take(now, &node("1"));
        meter.take(now, &Event::Progress { node: None, value: 1.0, max: 2.0 });
        assert_eq!(meter.fraction(), 0.25);
        meter.take(now, &node("2"));
        assert_eq!(meter.fraction(), 0.5);
    }

    #[test]
    fn frames_are_few_and_the_last_step_is_shown() {
        let now = Instant::now();
        let mut meter = meter(1);
        let step = |value| Event::Progress { node: Some("1".into()), value, max: 1000.0 };
        let shown = (0..1000)
            .filter(|&ms| meter.take(now + Duration::from_millis(ms), &step(ms as f64)).is_some())
            .count();
        assert_eq!(shown, 10);
        assert!(meter.take(now + Duration::from_millis(1000), &step(999.0)).is_some());
        assert!(meter.take(now + Duration::from_millis(1001), &step(1000.0)).is_some());
    }
}
