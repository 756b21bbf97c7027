//! A tenant's uploads among the choices of nodes that take files.
//!
//! The text of a class is not taken apart for it: where its lists of choices end is known, and the names of the uploads are
//! put in there, the same memory for every list of one kind.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use bytes::Bytes;
use comfyui::object_info::UploadKind;
use remuda_core::Sha256;
use remuda_store::Asset;
use serde_json::value::RawValue;

use super::merge::{Merged, SECTIONS, UploadClass};

/// How many names one answer may list, over all of its inputs. Beyond it, the newest uploads are listed.
const MOST_NAMES: usize = 200_000;

/// How many bytes the names in one answer may take.
const MOST_BYTES: usize = 16 << 20;

/// How many inputs get them. Those of the installation's own workers come first.
const MOST_INPUTS: usize = 2_000;

/// Uploads are told apart into this many groups.
const GROUPS: usize = 4;

fn members(text: &str) -> Option<HashMap<String, &RawValue>> {
    serde_json::from_str(text).ok()
}

/// Where in the text of a class the choices of these inputs are, brackets included, in their order.
pub(super) fn places(class: &str, inputs: &HashMap<String, UploadKind>) -> Vec<(Range<usize>, UploadKind)> {
    let mut found = Vec::new();
    let sections = members(class).and_then(|class| members(class.get("input")?.get()));
    let Some(sections) = sections else { return found };
    let mut seen = HashSet::new();
    for section in SECTIONS {
        let Some(described) = sections.get(section).and_then(|inputs| members(inputs.get())) else {
            continue;
        };
        for (name, described) in described {
            let Some(kind) = inputs.get(&name) else { continue };
            if let Some(list) = list_in(described.get())
                && let Some(from) = list.as_ptr().addr().checked_sub(class.as_ptr().addr())
                && seen.insert(name)
            {
                found.push((from..from + list.len(), kind.clone()));
            }
        }
    }
    found.sort_by_key(|(range, _)| range.start);
    found
}

/// The list of choices, in whichever way it is written: `[[…], {…}]` or `["COMBO", {"options": […]}]`.
fn list_in(described: &str) -> Option<&str> {
    let parts: Vec<&RawValue> = serde_json::from_str(described).ok()?;
    let first = parts.first()?.get();
    let list = match first {
        "\"COMBO\"" => members(parts.get(1)?.get())?.get("options")?.get(),
        first => first,
    };
    list.starts_with('[').then_some(list)
}

/// An answer with the uploads put in.
#[derive(Debug, Default)]
pub(super) struct Put {
    pub(super) pieces: Vec<Bytes>,
    /// What they take beside the text that everybody shares.
    pub(super) own_bytes: usize,
    /// Changes with what was put in.
    pub(super) tag: String,
}

/// This part of the whole, with the uploads among the choices of these classes, which are in the order of the text.
pub(super) fn put_in(merged: &Merged, part: Range<usize>, classes: &[UploadClass], uploads: &[Asset]) -> Put {
    let places: Vec<_> = classes
        .iter()
        .flat_map(|class| class.lists.iter().map(|(range, kind)| (class.own, range, group(kind))))
        .take(MOST_INPUTS)
        .collect();
    let mut newest: Vec<_> = uploads.iter().map(|asset| (asset, groups(asset))).collect();
    newest.sort_by_key(|(asset, _)| std::cmp::Reverse(asset.created_at));
    // The installation's own first: another's description leaves less only to others.
    let (mut names, mut bytes) = (MOST_NAMES, MOST_BYTES);
    let mut lists: HashMap<(bool, usize), Offered<'_>> = HashMap::new();
    for own in [true, false] {
        let theirs = places.iter().filter(|place| place.0 == own);
        let inputs = theirs.clone().count().max(1);
        let share = (names / inputs, bytes / inputs);
        for (_, _, group) in theirs {
            let list = lists.entry((own, *group)).or_insert_with(|| Offered::new(&newest, *group, share));
            names = names.saturating_sub(list.names.len());
            bytes = bytes.saturating_sub(list.text.len());
        }
    }
    let mut put = Put::default();
    let mut tags: Vec<(&(bool, usize), &Offered<'_>)> = lists.iter().collect();
    tags.sort_by_key(|(key, _)| **key);
    let tags: Vec<String> = tags.iter().map(|(_, list)| Sha256::of(&list.text).to_string()).collect();
    put.tag = Sha256::of(tags.concat().as_bytes()).to_string();
    put.own_bytes = lists.values().map(|list| list.text.len()).sum();
    let mut from = part.start;
    for (own, range, group) in places {
        let Some(list) = lists.get(&(own, group)).filter(|list| !list.text.is_empty()) else { continue };
        let there = merged.whole.slice(range.clone());
        let known = list.known_in(&there);
        let text = if known.is_empty() {
            list.text.clone()
        } else {
            let text = joined(list.names.iter().copied().filter(|name| !known.contains(*name)));
            put.own_bytes += text.len();
            text
        };
        if text.is_empty() {
            continue;
        }
        let end = range.end - 1;
        put.pieces.push(merged.whole.slice(from..end));
        if there[1..there.len() - 1].iter().any(|byte| !byte.is_ascii_whitespace()) {
            put.pieces.push(Bytes::from_static(b", "));
        }
        put.pieces.push(text);
        from = end;
    }
    put.pieces.push(merged.whole.slice(from..part.end));
    put.own_bytes += put.pieces.len() * size_of::<Bytes>();
    put
}

/// The uploads of one group that inputs are offered.
struct Offered<'a> {
    /// By name.
    names: Vec<&'a str>,
    set: HashSet<&'a str>,
    /// As members of a list.
    text: Bytes,
}

impl<'a> Offered<'a> {
    /// The newest, at most this many names and bytes.
    fn new(newest: &[(&'a Asset, [bool; GROUPS])], group: usize, (most, mut room): (usize, usize)) -> Self {
        let mut names = Vec::new();
        for (asset, _) in newest.iter().filter(|(_, groups)| groups[group]) {
            let name = asset.filename.as_str();
            let size = name.len() + 3;
            if names.len() >= most || size > room {
                break;
            }
            room -= size;
            names.push(name);
        }
        names.sort_unstable();
        names.dedup();
        let text = joined(names.iter().copied());
        Self { set: names.iter().copied().collect(), names, text }
    }

    /// Which of them a list has already.
    fn known_in(&self, list: &[u8]) -> HashSet<&'a str> {
        let choices: Vec<&RawValue> = serde_json::from_slice(list).unwrap_or_default();
        let known = choices.into_iter().filter_map(|choice| {
            let quoted = choice.get().strip_prefix('"')?;
            let name = match quoted.contains('\\') {
                true => Cow::Owned(serde_json::from_str::<String>(choice.get()).ok()?),
                false => Cow::Borrowed(quoted.strip_suffix('"')?),
            };
            self.set.get(name.as_ref()).copied()
        });
        known.collect()
    }
}

/// Names as members of a list.
fn joined<'a>(names: impl Iterator<Item = &'a str>) -> Bytes {
    let names: Vec<&str> = names.collect();
    let list = serde_json::to_string(&names).unwrap_or_else(|_| "[]".to_owned());
    let list = Bytes::from(list);
    list.slice(1..list.len() - 1)
}

fn group(kind: &UploadKind) -> usize {
    match kind {
        UploadKind::Image => 0,
        UploadKind::Video => 1,
        UploadKind::Audio => 2,
        _ => 3,
    }
}

/// In which groups a file is, as far as its media type or its name tells.
fn groups(asset: &Asset) -> [bool; GROUPS] {
    let by_name = mime_guess::from_path(&asset.filename).first_raw();
    let is =
        |prefix: &str| asset.mime.starts_with(prefix) || by_name.is_some_and(|mime| mime.starts_with(prefix));
    let (image, video, audio) = (is("image/"), is("video/"), is("audio/"));
    // ComfyUI takes the sound of films.
    [image, video || is("image/gif") || is("image/webp"), audio || video, !image && !video && !audio]
}

#[cfg(test)]
mod tests {
    use remuda_core::{KeyId, Tenant, Timestamp};
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::super::merge::{Description, merge};
    use super::*;

    fn upload(name: &str, second: i64) -> Asset {
        Asset {
            tenant: Tenant::new("a").unwrap(),
            sha256: Sha256::of(name.as_bytes()),
            key: String::new(),
            filename: name.to_owned(),
            mime: "image/png".to_owned(),
            size: 1,
            created_at: Timestamp::from_second(second).unwrap(),
        }
    }

    fn read(put: &Put) -> Value {
        serde_json::from_slice(&put.pieces.concat()).unwrap()
    }

    fn described(key: Option<KeyId>, json: &Value) -> Description {
        Description { workers: vec!["w".to_owned()], key, json: json.to_string() }
    }

    #[test]
    fn uploads_are_put_in_once_in_whichever_way_the_choices_are_written() {
        let json = json!({
            "A": {"input": {"required": {"image": [["x.png", "b \" ü.png"], {"image_upload": true}]}}, "output": []},
            "B": {"input": {"optional": {"image": ["COMBO", {"image_upload": true, "options": []}]}}, "output": []},
            "C": {"input": {"required": {"x": [["y"]]}}, "output": []},
        });
        let (merged, _) = merge(&[described(None, &json)]);
        let uploads = [upload("a.png", 1), upload("b \" ü.png", 2)];
        let put = put_in(&merged, 0..merged.whole.len(), &merged.uploads, &uploads);
        let mut expected = json;
        expected["A"]["input"]["required"]["image"][0] = json!(["x.png", "b \" ü.png", "a.png"]);
        expected["B"]["input"]["optional"]["image"][1]["options"] = json!(["a.png", "b \" ü.png"]);
        assert_eq!(read(&put), expected);
        let part = merged.classes["B"].clone();
        let put = put_in(&merged, part, &merged.uploads[1..], &uploads);
        assert_eq!(read(&put), expected["B"]);
    }

    #[test]
    fn many_inputs_of_a_key_get_the_newest_and_own_ones_get_all() {
        let input = json!([[], {"image_upload": true}]);
        let own = json!({"Own": {"input": {"required": {"image": input}}, "output": []}});
        let many: serde_json::Map<String, Value> =
            (0..1000).map(|n| (format!("i{n}"), input.clone())).collect();
        let theirs = json!({"Theirs": {"input": {"required": many}}});
        let key = Some(KeyId(Uuid::nil()));
        let (merged, _) = merge(&[described(None, &own), described(key, &theirs)]);
        let uploads: Vec<Asset> = (0..10_000).map(|n| upload(&format!("{n:05}.png"), n)).collect();
        let put = put_in(&merged, 0..merged.whole.len(), &merged.uploads, &uploads);
        assert!(put.own_bytes < 2 << 20, "{}", put.own_bytes);
        let whole = read(&put);
        assert_eq!(whole["Own"]["input"]["required"]["image"][0].as_array().unwrap().len(), 10_000);
        let theirs = whole["Theirs"]["input"]["required"]["i999"][0].as_array().unwrap();
        assert_eq!((theirs.len(), theirs.last().unwrap()), (190, &json!("09999.png")));
    }
}
