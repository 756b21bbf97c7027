//! A simulated ComfyUI: its process, and its own account of what it executed.
//!
//! A simulator counts in memory. A crash that it plays itself keeps the counts; before its process is really killed
//! it is asked for them. What it begins in the milliseconds between the two dies with it, uncounted: that can hide
//! one of the repeats that are allowed because the ComfyUI was lost, and none that is not.

use super::part::Part;
use anyhow::{Context, Result, bail};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// How often each prompt and each graph was begun.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Counts {
    pub(crate) by_prompt: BTreeMap<String, u64>,
    pub(crate) by_graph: BTreeMap<String, u64>,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        for (prompt, count) in &other.by_prompt {
            *self.by_prompt.entry(prompt.clone()).or_default() += count;
        }
        for (graph, count) in &other.by_graph {
            *self.by_graph.entry(graph.clone()).or_default() += count;
        }
    }
}

/// A ComfyUI lost its queue and its history, at some moment within this time.
#[derive(Debug, Clone)]
pub(crate) struct Loss {
    /// Which, by its address.
    pub(crate) sim: String,
    pub(crate) from: Timestamp,
    pub(crate) to: Timestamp,
}

/// A simulated ComfyUI.
#[derive(Debug)]
pub(crate) struct Sim {
    pub(crate) part: Part,
    pub(crate) url: String,
    /// Of processes that are gone.
    past: Counts,
    pub(crate) losses: Vec<Loss>,
    http: reqwest::Client,
}

impl Sim {
    pub(crate) fn new(part: Part, url: String) -> Result<Sim> {
        let http = reqwest::Client::builder().timeout(Duration::from_secs(60)).build()?;
        Ok(Sim { part, url, past: Counts::default(), losses: Vec::new(), http })
    }

    /// Since `from`, and at the latest now, it has forgotten its queue and its history.
    pub(crate) fn note_loss(&mut self, from: Timestamp) {
        self.losses.push(Loss { sim: self.url.clone(), from, to: Timestamp::now() });
    }

    /// Kills the process, after it was asked for its counts.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        let counts = self.ask().await;
        let from = Timestamp::now();
        self.part.kill().await?;
        self.note_loss(from);
        if let Ok(counts) = counts {
            self.past.add(&counts);
        }
        Ok(())
    }

    async fn ask(&self) -> Result<Counts> {
        let answer = self.http.get(format!("{}/sim/stats", self.url)).send().await?;
        Ok(serde_json::from_slice(&answer.bytes().await?)?)
    }

    /// Everything it executed, in all its lives.
    pub(crate) async fn counts(&self) -> Result<Counts> {
        let mut counts = self.past.clone();
        let now = self.ask().await;
        counts.add(&now.with_context(|| format!("{} does not tell its counts", self.part.name))?);
        Ok(counts)
    }

    /// Adds one of its own faults.
    pub(crate) async fn fault(&self, fault: &Value) -> Result<()> {
        let request = self.http.post(format!("{}/sim/faults", self.url)).body(fault.to_string());
        let answer = request.send().await?;
        if !answer.status().is_success() {
            bail!("{} refused the fault {fault}: {}", self.part.name, answer.text().await?);
        }
        Ok(())
    }

    /// Removes all faults; returns whether it answered.
    pub(crate) async fn heal(&self) -> bool {
        self.http.delete(format!("{}/sim/faults", self.url)).send().await.is_ok()
    }

    /// How often its faults of a kind have struck.
    pub(crate) async fn hits(&self, kind: &str) -> Result<u64> {
        let answer = self.http.get(format!("{}/sim/faults", self.url)).send().await?;
        let list: Value = serde_json::from_slice(&answer.bytes().await?)?;
        let faults = list["faults"].as_array().into_iter().flatten();
        Ok(faults
            .filter(|fault| fault["fault"]["kind"] == kind)
            .filter_map(|fault| fault["hits"].as_u64())
            .sum())
    }

    /// The ids in its queue, running ones first.
    pub(crate) async fn queue(&self) -> Result<Vec<String>> {
        let answer = self.http.get(format!("{}/queue", self.url)).send().await?;
        let queue: Value = serde_json::from_slice(&answer.bytes().await?)?;
        let ids = |field: &str| {
            let entries = queue[field].as_array().cloned().unwrap_or_default();
            entries.into_iter().map(|entry| entry[1].as_str().unwrap_or("?").to_owned())
        };
        Ok(ids("queue_running").chain(ids("queue_pending")).collect())
    }
}
