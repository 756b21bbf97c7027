//! The bar of one task.

use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

const STEPS: u64 = 1000;

/// Shows where one task is: waiting, at which place, rendering which node, done.
#[derive(Debug)]
pub(crate) struct TaskBar {
    bar: ProgressBar,
}

impl TaskBar {
    /// A bar on stderr, invisible where there is no terminal or `quiet` is wanted.
    pub(crate) fn new(name: &str, quiet: bool, among: Option<&MultiProgress>) -> Self {
        let target = if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() };
        let bar = ProgressBar::with_draw_target(Some(STEPS), target);
        let bar = among.map_or_else(|| bar.clone(), |all| all.add(bar.clone()));
        let template =
            "{spinner:.cyan} {prefix:20!} {bar:30.cyan/blue} {percent:>3}% {elapsed:>4} {msg:.dim}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸─").tick_chars("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏✔"));
        }
        bar.set_prefix(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self { bar }
    }

    /// What is going on.
    pub(crate) fn say(&self, message: impl Into<String>) {
        self.bar.set_message(message.into());
    }

    /// How much is done, 0 to 1.
    pub(crate) fn fraction(&self, fraction: f64) {
        // A float to integer cast saturates, and NaN becomes 0.
        self.bar.set_position((fraction.clamp(0.0, 1.0) * STEPS as f64) as u64);
    }

    /// It ended well.
    pub(crate) fn done(&self, message: impl Into<String>) {
        self.bar.set_position(STEPS);
        self.bar.finish_with_message(message.into());
    }

    /// It ended, and not well.
    pub(crate) fn abandon(&self, message: impl Into<String>) {
        self.bar.abandon_with_message(message.into());
    }

    /// Writes a line above the bar.
    pub(crate) fn above(&self, text: &str) {
        self.bar.println(text);
    }
}
