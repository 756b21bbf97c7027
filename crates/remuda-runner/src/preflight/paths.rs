//! Names of files that are not the caller's: refused before a graph is queued.
//!
//! A loader of ComfyUI reads whatever its text names: `/etc/passwd`, another tenant's input, a result with `[output]`
//! behind it. What a tenant may name is its own files, which are placed under names that nobody chooses, and plain names
//! in the worker's input folder, which are the operator's. Everything else is refused here, as far as a graph shows it: a
//! text that another node makes while the graph runs cannot be seen.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};

use comfyui::Workflow;
use comfyui::workflow::{Input, Node};
use percent_encoding::percent_decode_str;
use remuda_core::Placement;
use serde_json::Value;

use super::refusal::{Refusal, RefusalKind};
use super::uploads::annotation;
use crate::decide::edits::FOLDER;

/// Where a loader reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reads {
    /// A name in the input folder, where `[output]` and `[temp]` lead to the others.
    Input,
    /// A name in the output folder, where everybody's results are.
    Output,
    /// Any path of the worker's host, relative to where ComfyUI was started.
    Host,
}

/// Loaders whose descriptions do not say that they read files, or not from where.
const LOADERS: [(&str, &str, Reads); 44] = [
    // ComfyUI's own.
    ("LoadImage", "image", Reads::Input),
    ("LoadImageMask", "image", Reads::Input),
    ("LoadImageOutput", "image", Reads::Output),
    ("LoadLatent", "latent", Reads::Input),
    ("LoadAudio", "audio", Reads::Input),
    ("LoadVideo", "file", Reads::Input),
    ("Load3D", "model_file", Reads::Input),
    ("Load3DAnimation", "model_file", Reads::Input),
    ("LoadImageSetNode", "images", Reads::Input),
    ("LoadImageSetFromFolderNode", "folder", Reads::Input),
    ("LoadImageTextSetFromFolderNode", "folder", Reads::Input),
    ("LoadImageDataSetFromFolder", "folder", Reads::Input),
    ("LoadImageTextDataSetFromFolder", "folder", Reads::Input),
    // Data sets for training are kept beside the results.
    ("LoadTrainingDataset", "folder_name", Reads::Output),
    // VideoHelperSuite. Its loaders with `Path` open what they are given.
    ("VHS_LoadVideo", "video", Reads::Input),
    ("VHS_LoadVideoFFmpeg", "video", Reads::Input),
    ("VHS_LoadAudioUpload", "audio", Reads::Input),
    ("VHS_LoadImages", "directory", Reads::Input),
    ("VHS_LoadVideoPath", "video", Reads::Host),
    ("VHS_LoadVideoFFmpegPath", "video", Reads::Host),
    ("VHS_LoadImagePath", "image", Reads::Host),
    ("VHS_LoadImagesPath", "directory", Reads::Host),
    ("VHS_LoadAudio", "audio_file", Reads::Host),
    // WAS Node Suite.
    ("Image Load", "image_path", Reads::Host),
    ("Load Image Batch", "path", Reads::Host),
    ("Load Text File", "file_path", Reads::Host),
    ("Text Load Line From File", "file_path", Reads::Host),
    ("Load Cache", "latent_path", Reads::Host),
    // Inspire Pack.
    ("LoadImage //Inspire", "image", Reads::Input),
    ("LoadImagesFromDir //Inspire", "directory", Reads::Host),
    ("LoadImageListFromDir //Inspire", "directory", Reads::Host),
    ("LoadPromptsFromDir //Inspire", "prompt_dir", Reads::Host),
    ("LoadPromptsFromFile //Inspire", "prompt_file", Reads::Host),
    // KJNodes.
    ("LoadAndResizeImage", "image", Reads::Input),
    ("LoadImagesFromFolderKJ", "folder", Reads::Host),
    ("LoadVideosFromFolder", "video", Reads::Host),
    // Names that several packs use.
    ("LoadImageFromPath", "image", Reads::Host),
    ("LoadImagesFromPath", "path", Reads::Host),
    ("LoadVideoFromPath", "video", Reads::Host),
    ("LoadAudioFromPath", "audio", Reads::Host),
    ("LoadImagesFromDirectory", "directory", Reads::Host),
    ("JWImageLoadRGB", "path", Reads::Host),
    ("JWImageLoadRGBA", "path", Reads::Host),
    ("easy loadImagesForLoop", "directory", Reads::Host),
];

/// Words in the name of a class that reads something, and in the name of an input that says where.
const READERS: [&str; 5] = ["load", "read", "import", "open", "fromfile"];
const PLACES: [&str; 5] = ["path", "dir", "folder", "file", "location"];

/// So many links are followed to find out what a text is.
const HOPS: usize = 8;

/// Refuses the first name that is not the caller's. `placed` are the inputs that name files of the tenant's own, which
/// are found by now.
pub(super) fn check(
    workflow: &Workflow,
    upload_inputs: &BTreeSet<(String, String)>,
    placed: &[Placement],
) -> Result<(), Refusal> {
    let placed: HashSet<(&str, &str)> =
        placed.iter().map(|file| (file.node_id.as_str(), file.input.as_str())).collect();
    let mut uploads: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (class, input) in upload_inputs {
        uploads.entry(class).or_default().insert(input);
    }
    for node in workflow.nodes() {
        let Some(class) = node.class_type() else { continue };
        let listed: Vec<_> = LOADERS.iter().filter(|(known, ..)| *known == class).collect();
        let uploads = uploads.get(class.as_ref());
        let reader = mentions(&class, &READERS);
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
            if reads.is_none() && !(reader && mentions(&input.name, &PLACES)) {
                continue;
            }
            for text in texts(workflow, &input) {
                let wrong = match reads {
                    Some(reads) => wrong(reads, &text),
                    None => trick(&text).filter(|_| !is_web(&text)).map(Cow::Borrowed),
                };
                if let Some(wrong) = wrong {
                    return Err(refusal(&node, &class, &input, &text, &wrong));
                }
            }
        }
    }
    Ok(())
}

fn mentions(name: &str, words: &[&str]) -> bool {
    let name = name.to_ascii_lowercase();
    words.iter().any(|word| name.contains(word))
}

/// What an input names, as far as the graph tells: its text, the texts within its value, or the text that a node which
/// only holds one hands to it.
fn texts(workflow: &Workflow, input: &Input<'_>) -> Vec<String> {
    if let Some(text) = input.text() {
        return vec![text.into_owned()];
    }
    if !input.is_list() {
        let mut found = Vec::new();
        strings(&input.value().unwrap_or_default(), &mut found);
        return found;
    }
    let Some(mut from) = input.link().map(|link| link.node.to_string()) else { return Vec::new() };
    for _ in 0..HOPS {
        let Some(node) = workflow.node(&from) else { break };
        let inputs = node.inputs().unwrap_or_default();
        let (links, literals): (Vec<&Input<'_>>, Vec<&Input<'_>>) =
            inputs.iter().partition(|input| input.link().is_some());
        match (links.as_slice(), literals.as_slice()) {
            ([], [one]) => return one.text().map(Cow::into_owned).into_iter().collect(),
            ([one], []) => match one.link() {
                Some(link) => from = link.node.to_string(),
                None => break,
            },
            _ => break,
        }
    }
    Vec::new()
}

fn strings(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::String(text) => found.push(text.clone()),
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

fn is_web(text: &str) -> bool {
    let text = stripped(text).to_ascii_lowercase();
    text.starts_with("http://") || text.starts_with("https://")
}

fn is_ours(part: &str) -> bool {
    part.trim().eq_ignore_ascii_case(FOLDER)
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
    // Some systems take dots and blanks at the end of a name for nothing.
    let upwards = |part: &str| part.len() >= 2 && part.chars().all(|c| c == '.' || c.is_whitespace());
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
        let graph = json!({"7": {"class_type": class, "inputs": {input: value, "n": 1}},
            "8": {"class_type": "PrimitiveString", "inputs": {"value": "/etc/passwd"}},
            "9": {"class_type": "Reroute", "inputs": {"": ["8", 0]}},
            "10": {"class_type": "StringConcatenate", "inputs": {"string_a": "/etc", "string_b": "/passwd"}}});
        let uploads = BTreeSet::from([("MyLoader".to_owned(), "what".to_owned())]);
        check(&Workflow::parse(graph.to_string()).unwrap(), &uploads, &[])
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
        assert!(refused("LoadImage", "image", json!(["8", 0])), "a node that only holds a text");
        assert!(refused("LoadImage", "image", json!(["9", 0])), "by way of another");
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
        assert_eq!(check(&workflow, &BTreeSet::new(), &[placed]), Ok(()));
    }
}
