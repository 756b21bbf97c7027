//! How much a sidecar may say. None of this is met by one that means well: the bounds are far beyond what ComfyUI says.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::hash::Hash;

use remuda_core::transition::Ending;
use remuda_core::{Capabilities, Failure, FailureClass, Requirements, TaskResult, WorkerReport, WorkerSpec};
use remuda_sidecar as sidecar;
use serde::de::{DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::error::{ApiError, ApiResult};
use crate::wire::printable;

/// A name: of a label, a class, a file, a folder.
const NAME: usize = 2_000;
/// A text for people: why a worker is not well.
const TEXT: usize = 4_000;
/// Labels of a worker.
const LABELS: usize = 500;
/// One of them.
const LABEL: usize = 256;
/// All of them, and what else a worker is registered as: whoever asks for the workers gets them all.
const SPEC: usize = 16 << 10;
/// The same for all workers of a key.
pub(super) const SPECS_OF_KEY: u64 = 2 << 20;
/// Classes and models of a worker, together.
const OFFERS: usize = 200_000;
/// Models that are loaded at the same time, as far as that is remembered while a claim waits.
const LOADED: usize = 64;
/// Classes and models that a worker found to be missing.
const LEARNT: usize = 20_000;
/// Leases in one request about a worker.
pub(super) const LISTED: usize = 20_000;
/// Leases and workers in one beat, each of them once. A key that may have more workers may say more.
const BEATEN: usize = 4_096;
/// A worker renders one task, has the next one ready, and delivers those before.
const LEASES_OF_ONE: usize = 8;

/// Refuses a list that nobody has.
pub(super) fn listed(field: &str, length: usize, most: usize) -> ApiResult<()> {
    if length > most {
        return Err(ApiError::invalid(field, format!("{field} has {length} entries; {most} are allowed")));
    }
    Ok(())
}

/// Takes out what is said twice. Of two the last counts.
pub(super) fn once<T, K: Hash + Eq>(said: &mut Vec<T>, name: impl Fn(&T) -> K) {
    let mut seen = HashSet::with_capacity(said.len());
    if said.iter().all(|one| seen.insert(name(one))) {
        return;
    }
    seen.clear();
    said.reverse();
    said.retain(|one| seen.insert(name(one)));
    said.reverse();
    said.shrink_to_fit();
}

/// A beat with more leases or workers than a key can have. Not just as many as it may register: when that number is made
/// smaller, the workers that it has stay.
pub(super) fn beat(beat: &sidecar::Beat, key_workers: u32) -> ApiResult<()> {
    let workers = usize::try_from(key_workers).unwrap_or(usize::MAX);
    listed("workers", beat.workers.len(), BEATEN.max(workers))?;
    listed("leases", beat.leases.len(), BEATEN.max(workers.saturating_mul(LEASES_OF_ONE)))
}

/// What a worker has loaded is a preference, and the first of it is enough.
pub(super) fn loaded(loaded: &mut Vec<i64>) {
    loaded.truncate(LOADED);
    // A claim waits for long: what was cut off must not stay in memory with it.
    loaded.shrink_to_fit();
}

fn named(field: &str, text: &str) -> ApiResult<()> {
    if text.len() > NAME {
        return Err(ApiError::invalid(field, format!("{field} has a name of more than {NAME} bytes")));
    }
    printable(field, text)
}

/// What a worker is registered as.
pub(super) fn spec(spec: &WorkerSpec) -> ApiResult<()> {
    let WorkerSpec { id: _, endpoint, name, labels } = spec;
    named("spec.endpoint", endpoint)?;
    name.iter().try_for_each(|text| named("spec.name", text))?;
    listed("spec.labels", labels.len(), LABELS)?;
    if labels.iter().any(|label| label.len() > LABEL) {
        return Err(ApiError::invalid(
            "spec.labels",
            format!("spec.labels has a label of more than {LABEL} bytes"),
        ));
    }
    let bytes = spec.bytes();
    if bytes > SPEC {
        let error = format!("spec.labels, name and endpoint have {bytes} bytes together; {SPEC} are allowed");
        return Err(ApiError::invalid("spec.labels", error));
    }
    labels.iter().try_for_each(|text| printable("spec.labels", text))
}

/// What a worker says it can do.
pub(super) fn offer(offer: &Capabilities) -> ApiResult<()> {
    listed("capabilities.labels", offer.labels.len(), LABELS)?;
    listed("capabilities", offer.nodes.len() + offer.models.len(), OFFERS)?;
    let mut names = offer.labels.iter().chain(&offer.nodes).chain(&offer.models);
    match names.find(|name| name.len() > NAME) {
        Some(_) => Err(ApiError::invalid("capabilities", format!("a name has more than {NAME} bytes"))),
        None => Ok(()),
    }
}

/// A report as it is kept and shown to others.
pub(super) fn report(report: &mut WorkerReport) {
    report.reason.iter_mut().for_each(|text| tame(text, TEXT));
    for text in [&mut report.comfyui_version, &mut report.device, &mut report.identity] {
        text.iter_mut().for_each(|text| tame(text, NAME));
    }
}

/// How an attempt ended, as it is kept and shown to others. A sidecar has limits of its own, and may not keep to them.
pub(super) fn ending(ending: &mut Ending, most_files: usize) {
    if let Some(found) = ending.result().map(|result| result.files.len()).filter(|found| *found > most_files)
    {
        let message = format!(
            "its result was not taken: it names {found} files, and {most_files} are allowed (the limit is graph.output_files)"
        );
        let failure = Failure::new(FailureClass::Delivery, message);
        *ending = Ending::Failed { failure, partial: None };
    }
    match ending {
        Ending::Completed { result, .. } => self::result(result),
        Ending::Failed { failure, partial } => {
            self::failure(failure);
            partial.iter_mut().for_each(|partial| self::result(partial));
        }
        Ending::Cancelled => {}
    }
}

fn result(result: &mut TaskResult) {
    for file in &mut result.files {
        let names = [&mut file.filename, &mut file.subfolder, &mut file.node_id, &mut file.output];
        names.into_iter().for_each(|text| tame(text, NAME));
        [&mut file.file_type, &mut file.mime].into_iter().for_each(|text| tame(text, 200));
    }
}

fn failure(failure: &mut Failure) {
    // Lines may stay: tracebacks are made of them.
    failure.bound();
    failure.node_id.iter_mut().for_each(|text| tame(text, NAME));
}

/// Cuts a text that is too long, and takes control characters out of it.
fn tame(text: &mut String, most: usize) {
    clip(text, most);
    if text.chars().any(char::is_control) {
        *text = text.chars().map(|c| if c.is_control() { '_' } else { c }).collect();
    }
}

fn clip(text: &mut String, most: usize) {
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
    }
}

/// What a worker found to be missing, as far as the task's graph names it: a task must not be made to wait for things that
/// it does not use, in lanes that nobody else is in.
pub(super) fn learnt(learnt: Requirements, workflow: &RawValue) -> ApiResult<Requirements> {
    listed("learnt", learnt.nodes.len() + learnt.models.len(), LEARNT)?;
    let mut texts = HashSet::new();
    let mut deserializer = serde_json::Deserializer::from_str(workflow.get());
    // What cannot be read names nothing.
    let _ = Texts(&mut texts).deserialize(&mut deserializer);
    let named = |names: BTreeSet<String>| -> BTreeSet<String> {
        names.into_iter().filter(|name| texts.contains(name)).collect()
    };
    let said = learnt.nodes.len() + learnt.models.len() + learnt.labels.len();
    let kept =
        Requirements { labels: BTreeSet::new(), nodes: named(learnt.nodes), models: named(learnt.models) };
    if said > 0 && kept.nodes.is_empty() && kept.models.is_empty() {
        return Err(ApiError::invalid("learnt", "learnt names nothing that the task's graph names"));
    }
    Ok(kept)
}

/// Gathers all texts of a JSON document.
struct Texts<'a>(&'a mut HashSet<String>);

impl<'de> DeserializeSeed<'de> for Texts<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Texts<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        if text.len() <= NAME {
            self.0.insert(text.to_owned());
        }
        Ok(())
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        while all.next_element_seed(Texts(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut all: A) -> Result<(), A::Error> {
        while all.next_key::<serde::de::IgnoredAny>()?.is_some() {
            all.next_value_seed(Texts(&mut *self.0))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_learns_of_nothing_but_what_the_graph_names() {
        let graph = r#"{"1": {"class_type": "Odd", "inputs": {"ckpt": "a.safetensors", "n": 1e400, "x": [["b.pt"], null]}}}"#;
        let graph = RawValue::from_string(graph.to_owned()).unwrap();
        let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
        let said = Requirements {
            labels: set(&["gold"]),
            nodes: set(&["Odd", "Other", "class_type"]),
            models: set(&["a.safetensors", "c.pt"]),
        };
        let kept = learnt(said, &graph).unwrap();
        assert_eq!((kept.labels, kept.nodes), (set(&[]), set(&["Odd"])), "names of fields are no classes");
        assert_eq!(kept.models, set(&["a.safetensors"]));
        let nothing = Requirements { models: set(&["c.pt"]), ..Requirements::default() };
        assert_eq!(learnt(nothing, &graph).unwrap_err().status.as_u16(), 422);
    }

    #[test]
    fn what_is_said_twice_counts_once() {
        let mut said = vec![(1, 'a'), (2, 'b'), (1, 'c'), (3, 'd'), (2, 'e')];
        once(&mut said, |one| one.0);
        assert_eq!(said, [(1, 'c'), (3, 'd'), (2, 'e')]);
        let mut many = vec![(7, 'a'); 100_000];
        once(&mut many, |one| one.0);
        assert!(many.len() == 1 && many.capacity() < 100, "{} of {}", many.len(), many.capacity());
    }

    #[test]
    fn of_what_is_loaded_the_first_is_kept() {
        let mut many: Vec<i64> = (0..10_000).collect();
        loaded(&mut many);
        assert_eq!(many, (0..64).collect::<Vec<_>>());
        assert!(many.capacity() < 200, "{}", many.capacity());
    }

    #[test]
    fn texts_are_cut_at_whole_characters() {
        let mut text = "ä".repeat(10) + "\n";
        tame(&mut text, 5);
        assert_eq!(text, "ää");
        let mut text = "a\r\nb\0".to_owned();
        tame(&mut text, 100);
        assert_eq!(text, "a__b_");
    }
}
