//! Names of files that are not the caller's: refused before a graph is queued.
//!
//! A loader of ComfyUI reads whatever its text names: `/etc/passwd`, another tenant's input, a result with `[output]`
//! behind it. What a tenant may name is its own files, which are placed under names that nobody chooses, and plain names
//! in the worker's input folder, which are the operator's. Everything else is refused here, as far as a graph shows it: a
//! text that another node makes while the graph runs cannot be seen.

use std::borrow::Cow;
use std::collections::HashSet;
use std::sync::Arc;

use comfyui::Workflow;
use comfyui::workflow::{Input, Node};
use percent_encoding::percent_decode_str;
use remuda_core::Placement;
use serde_json::Value;

use super::FOLDER;
use super::handed::{Handed, Hands};
use super::loaders::{LOADERS, Reads, names_a_place, reads_by_its_name};
use super::placements::UploadInputs;
use super::refusal::{Refusal, RefusalKind};
use super::uploads::annotation;

/// The longest path that systems know, in bytes.
const LONGEST: usize = 4096;

/// An object that is longer is not looked into.
const BULKY: usize = 64 << 10;

/// Refuses the first name that is not the caller's. `placed` are the inputs that name files of the tenant's own, which
/// are found by now; `allowed` are folders of the workers' hosts that the operator has opened to everybody.
pub(super) fn check(
    workflow: &Workflow,
    upload_inputs: &UploadInputs,
    placed: &[Placement],
    allowed: &[String],
) -> Result<(), Refusal> {
    let placed: HashSet<(&str, &str)> =
        placed.iter().map(|file| (file.node_id.as_str(), file.input.as_str())).collect();
    let index = workflow.index();
    let is_bad = |text: &str, part: bool| is_bad(text, part, allowed);
    let mut handed = Handed::new(&index, &is_bad);
    for node in index.nodes() {
        let Some(class) = node.class_type() else { continue };
        let listed: Vec<_> = LOADERS.iter().filter(|(known, ..)| *known == class).collect();
        let uploads = upload_inputs.get(class.as_ref());
        let reader = reads_by_its_name(&class);
        if listed.is_empty() && uploads.is_none() && !reader {
            continue;
        }
        for input in node.inputs().unwrap_or_default() {
            if placed.contains(&(node.id(), input.name.as_ref())) {
                continue;
            }
            let by_list = listed.iter().find(|(_, name, _)| *name == input.name).map(|(.., reads)| *reads);
            let takes_upload = uploads.is_some_and(|inputs| inputs.contains(input.name.as_ref()));
            let reads = by_list.or_else(|| takes_upload.then_some(Reads::Input));
            // A loader that nobody has listed, by its names: only what cannot be meant well is refused there.
            if reads.is_none() && !(reader && names_a_place(&input.name)) {
                continue;
            }
            // Nobody names files with as much as this, and to look into it would take a hundred times its room.
            let raw = input.raw.get();
            if raw.starts_with('{') && raw.len() > BULKY {
                return Err(refusal(node, &class, &input, raw, "is larger than any name of a file"));
            }
            for text in texts(&mut handed, &input) {
                let wrong = match reads {
                    // No path is as long as that, and one text may be handed to any number of loaders.
                    Some(_) if text.len() > LONGEST => Some("is longer than any name of a file".into()),
                    None if text.len() > LONGEST => None,
                    _ if reads != Some(Reads::Output) && is_allowed(&text, allowed) => None,
                    Some(reads) => wrong(reads, &text),
                    None => trick(&text).filter(|_| !is_web(&text)).map(Cow::Borrowed),
                };
                if let Some(wrong) = wrong {
                    return Err(refusal(node, &class, &input, &text, &wrong));
                }
            }
        }
    }
    Ok(())
}

/// What an input names, as far as the graph tells: its text, the texts within its value, or the text that a node which
/// only holds one hands to it.
fn texts(handed: &mut Handed<'_>, input: &Input<'_>) -> Vec<Arc<str>> {
    if let Some(text) = input.text() {
        return vec![Arc::from(text.as_ref())];
    }
    if !input.is_list() {
        let mut found = Vec::new();
        strings(&input.value().unwrap_or_default(), &mut found);
        return found;
    }
    match handed.over(input) {
        Hands::Text(text) | Hands::Among(text) => vec![text],
        Hands::Unknown => Vec::new(),
    }
}

/// Whether a text that is one of several cannot be meant well as the name of a file, or as a part of one.
fn is_bad(text: &str, part: bool, allowed: &[String]) -> bool {
    if text.len() > LONGEST || is_web(text) || is_allowed(text, allowed) {
        return false;
    }
    let (path, kind) = annotation(stripped(text));
    // What is put behind a folder begins with a slash.
    let path = if part { path.trim_start_matches(['/', '\\']) } else { path };
    matches!(kind, Some("output" | "temp")) || trick(path).is_some()
}

fn strings(value: &Value, found: &mut Vec<Arc<str>>) {
    match value {
        Value::String(text) => found.push(Arc::from(text.as_str())),
        Value::Array(members) => members.iter().for_each(|member| strings(member, found)),
        Value::Object(members) => members.values().for_each(|member| strings(member, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// Why a text that names no file of the tenant's own is refused.
fn wrong(reads: Reads, text: &str) -> Option<Cow<'static, str>> {
    let text = stripped(text);
    if text.is_empty() {
        return None;
    }
    match reads {
        Reads::Input => match annotation(text) {
            (_, Some(kind @ ("output" | "temp"))) => Some(Cow::Owned(format!(
                "is in the {kind} folder, which all users of the worker share, and is none of your own results"
            ))),
            (path, _) => trick(path).map(Cow::Borrowed),
        },
        Reads::Output => Some(
            "is in the output folder, which all users of the worker share, and is none of your own results"
                .into(),
        ),
        Reads::Host if is_web(text) => None,
        Reads::Host => trick(text).map(Cow::Borrowed).or_else(|| {
            let plain = text.replace('\\', "/");
            let mut parts = plain.split('/').filter(|part| !matches!(*part, "" | "."));
            let inside = parts.next().is_some_and(|first| first.eq_ignore_ascii_case("input"));
            let ours = parts.next().is_some_and(is_ours);
            (!inside || ours).then_some("is a path of the worker's host outside its input folder".into())
        }),
    }
}

/// Blanks and quotes around a path are taken off by some loaders.
fn stripped(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\''))
}

/// Whether it is the address of something in the network, which a node fetches as it would any other.
fn is_web(text: &str) -> bool {
    let text = stripped(text).to_ascii_lowercase();
    ["http://", "https://", "s3://", "gs://", "hf://"].iter().any(|scheme| text.starts_with(scheme))
}

fn is_ours(part: &str) -> bool {
    part.trim().eq_ignore_ascii_case(FOLDER)
}

/// Whether it is an absolute path in one of these folders, without anything that could lead out of it.
fn is_allowed(text: &str, folders: &[String]) -> bool {
    if folders.is_empty() {
        return false;
    }
    let text = stripped(text);
    let plain = text.replace('\\', "/");
    let looks_alike =
        text.chars().any(|c| c != '\\' && (fold(c) != c || matches!(c, '\u{2025}' | '\u{2026}')));
    let escaped = percent_decode_str(text).decode_utf8_lossy() != text;
    let address = plain.contains("://") || plain.contains("::$");
    if looks_alike || escaped || address || plain.chars().any(char::is_control) {
        return false;
    }
    let parts: Vec<&str> = parts_of(&plain).collect();
    if parts.iter().copied().any(upwards) {
        return false;
    }
    folders.iter().any(|folder| {
        let folder = folder.replace('\\', "/");
        let mut beyond = parts.iter();
        let inside = parts_of(&folder).all(|part| beyond.next() == Some(&part));
        // Two slashes at the beginning name another machine on some systems, and no folder of this one.
        let same_kind = folder.starts_with('/') == plain.starts_with('/')
            && folder.starts_with("//") == plain.starts_with("//");
        // Everybody's files, should they be below.
        inside && same_kind && !beyond.any(|part| is_ours(part))
    })
}

fn parts_of(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|part| !matches!(*part, "" | "."))
}

/// Some systems take dots and blanks at the end of a name for nothing.
fn upwards(part: &str) -> bool {
    part.len() >= 2 && part.chars().all(|c| c == '.' || c.is_whitespace())
}

/// Why a name cannot be one in the input folder; also when it only looks so to a system that reads escapes, other slashes
/// or other dots.
fn trick(text: &str) -> Option<&'static str> {
    let mut text = Cow::Borrowed(stripped(text));
    for _ in 0..4 {
        if let Some(why) = plain_trick(&text) {
            return Some(why);
        }
        let unescaped = percent_decode_str(&text).decode_utf8_lossy().into_owned();
        if unescaped == text {
            return None;
        }
        text = Cow::Owned(unescaped);
    }
    Some("is escaped over and over")
}

fn plain_trick(text: &str) -> Option<&'static str> {
    if text.chars().any(char::is_control) {
        return Some("has control characters");
    }
    let folded: String = text.chars().map(fold).collect();
    let text = folded.replace('\u{2025}', "..").replace('\u{2026}', "...");
    let drive = matches!(text.as_bytes(), [letter, b':', ..] if letter.is_ascii_alphabetic());
    if text.starts_with('/') || drive {
        return Some("is an absolute path");
    }
    if text.starts_with('~') {
        return Some("names a home folder");
    }
    let lower = text.to_ascii_lowercase();
    if text.contains("://") || lower.starts_with("file:") || text.contains("::$") {
        return Some("is an address, not the name of a file");
    }
    let mut parts = text.split('/').map(str::trim).filter(|part| !matches!(*part, "" | "."));
    if parts.clone().any(upwards) {
        return Some("leaves its folder");
    }
    if parts.next().is_some_and(is_ours) {
        return Some("is in the folder where Remuda keeps everybody's files");
    }
    None
}

/// Characters that some systems take for a slash, a dot, a colon or a tilde.
fn fold(c: char) -> char {
    match c {
        '\\' | '\u{2044}' | '\u{2215}' | '\u{29f8}' | '\u{ff0f}' | '\u{2216}' | '\u{29f5}' | '\u{29f9}'
        | '\u{fe68}' | '\u{ff3c}' => '/',
        '\u{2024}' | '\u{fe52}' | '\u{ff0e}' | '\u{ff61}' => '.',
        '\u{ff1a}' | '\u{a789}' | '\u{fe55}' | '\u{2236}' => ':',
        '\u{ff5e}' | '\u{223c}' => '~',
        other => other,
    }
}

fn refusal(node: &Node<'_>, class: &str, input: &Input<'_>, text: &str, wrong: &str) -> Refusal {
    let shown: String = text.chars().take(120).collect();
    let message = format!(
        "{shown:?} {wrong}; upload the file with POST /api/v1/assets or POST /upload/image, and name it as you uploaded it"
    );
    let mut refusal = Refusal::at(RefusalKind::BadInput, node.id(), &input.name, message);
    if let Some(place) = &mut refusal.place {
        place.class_type = Some(class.to_owned());
    }
    refusal
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check_one(class: &str, input: &str, value: Value) -> Result<(), Refusal> {
        check_allowing(class, input, value, &[])
    }

    fn check_allowing(class: &str, input: &str, value: Value, allowed: &[&str]) -> Result<(), Refusal> {
        let allowed: Vec<String> = allowed.iter().map(|&folder| folder.to_owned()).collect();
        let graph = json!({"7": {"class_type": class, "inputs": {input: value, "n": 1}},
            "8": {"class_type": "PrimitiveString", "inputs": {"value": "/etc/passwd"}},
            "9": {"class_type": "Reroute", "inputs": {"": ["8", 0]}},
            "10": {"class_type": "StringConcatenate", "inputs": {"string_a": "sub", "string_b": "/x.png"}},
            "11": {"class_type": "PrimitiveString", "inputs": {"value": "../x.png", "control": "fixed"}},
            "12": {"class_type": "TextSwitch", "inputs": {"a": "x.png", "b": "y.png [output]", "which": 1}}});
        let uploads = UploadInputs::from([("MyLoader".to_owned(), HashSet::from(["what".to_owned()]))]);
        check(&Workflow::parse(graph.to_string()).unwrap(), &uploads, &[], &allowed)
    }

    #[test]
    fn names_in_the_input_folder_stay_possible() {
        for name in [
            "example.png",
            "sub/example.png",
            "sub\\example.png",
            "./sub//x.png",
            "..hidden.png",
            "a..b.png",
            "x.png [input]",
            "clipspace/clipspace-mask-1.png [input]",
            "100% real.png",
            "näme (1).webp",
            "remuda.png",
            "3d/model.glb",
            "",
        ] {
            for (class, input) in [("LoadImage", "image"), ("MyLoader", "what"), ("LoadLatent", "latent")] {
                assert_eq!(check_one(class, input, json!(name)), Ok(()), "{class} {name:?}");
            }
        }
        assert_eq!(check_one("VHS_LoadVideoPath", "video", json!("input/film.mp4")), Ok(()));
        assert_eq!(check_one("VHS_LoadVideoPath", "video", json!("https://example.com/film.mp4")), Ok(()));
        assert_eq!(check_one("CheckpointLoaderSimple", "ckpt_name", json!("SDXL\\base.safetensors")), Ok(()));
        assert_eq!(check_one("SaveText", "path", json!("/tmp/x")), Ok(()), "it writes");
        assert_eq!(check_one("LoadImage", "image", json!(["10", 0])), Ok(()), "it cannot be seen");
    }

    #[test]
    fn paths_of_the_host_and_files_of_others_are_refused() {
        let names = [
            "/etc/passwd",
            "../output/x.png",
            "sub/../../x.png",
            "sub/../x.png",
            "..\\..\\x.png",
            "C:\\secret.png",
            "c:/secret.png",
            "\\\\host\\share\\x.png",
            "~/x.png",
            "~root/x.png",
            "file:///etc/passwd",
            "file:/etc/passwd",
            " /etc/passwd",
            "\"/etc/passwd\"",
            "%2e%2e/x.png",
            "..%2fx.png",
            "%252e%252e%252fx.png",
            "%2fetc/passwd",
            "..\u{2215}x.png",
            "\u{ff0e}\u{ff0e}/x.png",
            "\u{2025}/x.png",
            "\u{ff0f}etc/passwd",
            "a\0b.png",
            "a\nb.png",
            ".. /x.png",
            ".../x.png",
            "x.png [output]",
            "x.png [temp]",
            "x.png [output] ",
            "remuda/0123456789abcdef-cat.png",
            "./Remuda//0123456789abcdef-cat.png",
            "remuda\\x.png",
            "sub/../remuda/x.png [input]",
        ];
        for name in names {
            for (class, input) in [
                ("LoadImage", "image"),
                ("MyLoader", "what"),
                ("LoadAudio", "audio"),
                ("VHS_LoadVideoPath", "video"),
            ] {
                let refused = check_one(class, input, json!(name)).expect_err(&format!("{class} {name:?}"));
                let place = refused.place.unwrap();
                assert_eq!((place.node_id.as_str(), place.input.as_deref()), ("7", Some(input)));
                assert_eq!(place.class_type.as_deref(), Some(class));
            }
        }
    }

    #[test]
    fn loaders_of_outputs_and_of_host_paths_have_rules_of_their_own() {
        let refused = |class: &str, input: &str, value: Value| check_one(class, input, value).is_err();
        assert!(refused("LoadImageOutput", "image", json!("x.png")));
        assert!(refused("LoadImageOutput", "image", json!("x.png [output]")));
        for path in ["output/x.mp4", "temp/x.mp4", "input/remuda/x.mp4", "user/default/x.json", "x.mp4"] {
            assert!(refused("VHS_LoadVideoPath", "video", json!(path)), "{path}");
        }
        assert!(
            refused("SomebodysImageLoader", "folder_path", json!("/data")),
            "not listed, and plain to see"
        );
        assert!(refused("LoadImageSetNode", "images", json!({"__value__": ["a.png", "../b.png"]})));
        assert!(refused("LoadImageSetNode", "images", json!({"__value__": vec!["a.png"; 10_000]})), "bulky");
        assert!(refused("LoadImage", "image", json!(["8", 0])), "a node that only holds a text");
        assert!(refused("LoadImage", "image", json!(["9", 0])), "by way of another");
        assert!(refused("LoadImage", "image", json!(["11", 0])), "beside another input");
        assert!(refused("LoadImage", "image", json!(["12", 0])), "one of two");
        assert!(refused("LoadImage", "image", json!(["8", false])), "what Python takes for a link");
        assert!(refused("Load Image Batch", "pattern", json!("../../output/**")));
        assert!(!refused("Load Image Batch", "pattern", json!("**/*.png")));
        assert!(!refused("LoadImageFromS3", "file_path", json!("s3://bucket/x.png")));
    }

    #[test]
    fn folders_that_the_operator_opens_can_be_named_and_nothing_beside_them() {
        let allowed = ["/mnt/nas/", "D:\\films"];
        let check =
            |class: &str, input: &str, path: &str| check_allowing(class, input, json!(path), &allowed);
        for path in
            ["/mnt/nas/film.mp4", "/mnt//nas/./a/b.mp4", "/mnt/nas", "D:\\films\\x.mp4", "D:/films/x.mp4"]
        {
            for (class, input) in [
                ("VHS_LoadVideoPath", "video"),
                ("LoadImage", "image"),
                ("SomebodysImageLoader", "folder_path"),
            ] {
                assert_eq!(check(class, input, path), Ok(()), "{class} {path}");
                assert!(check_one(class, input, json!(path)).is_err(), "{class} {path}");
            }
        }
        for path in [
            "/mnt/nas2/film.mp4",
            "/mnt",
            "/etc/passwd",
            "/mnt/nas/../x",
            "/mnt/nas/..\\..\\x",
            "/mnt/nas/%2e%2e/x",
            "/mnt/nas/.. /x",
            "/mnt/nas/\u{ff0e}\u{ff0e}/x",
            "/mnt/nas/..\u{2215}x",
            "//mnt/nas/x",
            "\\\\mnt\\nas\\x",
            "/mnt/nas/remuda/0123-cat.png",
            "/mnt/nas/a\nb",
            "file:///mnt/nas/x",
            "D:\\other\\x.mp4",
            "C:\\films\\x.mp4",
            "mnt/nas/x",
        ] {
            assert!(check("VHS_LoadVideoPath", "video", path).is_err(), "{path}");
        }
        assert!(check("LoadImageOutput", "image", "/mnt/nas/x.png").is_err(), "it reads results");
    }

    #[test]
    fn what_was_placed_is_the_tenants_own() {
        let graph = json!({"7": {"class_type": "LoadImage", "inputs": {"image": "x.png [output]"}}});
        let placed = Placement {
            node_id: "7".into(),
            input: "image".into(),
            sha256: remuda_core::Sha256::of(b"x"),
            key: "k".into(),
            filename: "x.png".into(),
        };
        let workflow = Workflow::parse(graph.to_string()).unwrap();
        assert_eq!(check(&workflow, &UploadInputs::new(), &[placed], &[]), Ok(()));
    }
}
