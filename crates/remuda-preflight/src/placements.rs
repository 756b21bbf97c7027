//! Which files must be at the worker first.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use comfyui::Workflow;
use comfyui::workflow::{Index, Input};
use futures_util::stream::{self, StreamExt as _, TryStreamExt as _};
use remuda_core::{OutputFile, Placement, Sha256, Tenant};
use remuda_store::{Asset, Store};

use super::refusal::{Place, Refusal, RefusalKind};
use super::uploads::{annotation, kept_name, straight};
use crate::limits::GraphLimits;

/// How a graph names an uploaded file by its content.
const BY_CONTENT: &str = "asset:";

/// Inputs that take files in ComfyUI itself, for when no worker has told yet.
const USUAL: [(&str, &str); 6] = [
    ("LoadImage", "image"),
    ("LoadImageMask", "image"),
    ("LoadAudio", "audio"),
    ("LoadVideo", "file"),
    ("Load3D", "model_file"),
    ("VHS_LoadVideo", "video"),
];

/// Classes with their inputs that take uploaded files, as far as workers told.
pub(super) type UploadInputs = HashMap<String, HashSet<String>>;

/// How many questions about files are with the store at once.
const AT_ONCE: usize = 8;

/// A file that a graph, or the request with it, names.
pub(super) struct One {
    node: String,
    input: String,
    value: String,
    /// It can mean nothing but an uploaded file; otherwise it may be one of the worker's own.
    surely: bool,
}

/// The files that the request names by `inputs`, those that are pinned, and those that the graph names itself.
pub(super) struct Named {
    all: Vec<One>,
    pinned: Vec<Placement>,
    different: Vec<String>,
}

/// What the store said about the different names.
pub(super) type KnownFiles = HashMap<String, Option<Found>>;

impl Named {
    pub(super) fn of(
        workflow: &Workflow,
        inputs: &BTreeMap<String, String>,
        pinned: Vec<Placement>,
        upload_inputs: &UploadInputs,
        limits: &GraphLimits,
    ) -> Result<Self, Refusal> {
        let mut all = all_named(workflow, inputs, upload_inputs, limits)?;
        if !pinned.is_empty() {
            let files = pinned.iter().map(|file| file.key.as_str()).collect::<HashSet<_>>().len();
            if files > limits.files {
                return Err(too_many(files, limits));
            }
            let places: HashSet<(&str, &str)> =
                pinned.iter().map(|file| (file.node_id.as_str(), file.input.as_str())).collect();
            all.retain(|one| !places.contains(&(one.node.as_str(), one.input.as_str())));
        }
        let different: HashSet<&str> = all.iter().map(|one| one.value.as_str()).collect();
        let different = different.into_iter().map(str::to_owned).collect();
        Ok(Self { all, pinned, different })
    }

    /// Every name once, to be asked for.
    pub(super) fn different(&self) -> Vec<String> {
        self.different.clone()
    }

    /// The files that must be at the worker first, by what the store said of their names.
    pub(super) fn placed(self, known: &KnownFiles) -> Result<Vec<Placement>, Refusal> {
        let mut found: BTreeMap<(String, String), Found> = BTreeMap::new();
        for one in self.all {
            match known.get(&one.value).cloned().flatten() {
                Some(file) => {
                    found.insert((one.node, one.input), file);
                }
                None if one.surely => return Err(no_asset(&one.node, &one.input, &one.value)),
                // A file of the worker's own.
                None => {}
            }
        }
        let placements = found.into_iter().map(|((node_id, input), file)| Placement {
            node_id,
            input,
            sha256: file.sha256,
            key: file.key,
            filename: file.filename,
        });
        Ok(placements.chain(self.pinned).collect())
    }
}

/// Asks the store for each of these names, a few at a time.
pub(super) async fn look_up_all(
    store: &Arc<dyn Store>,
    tenant: &Tenant,
    names: Vec<String>,
) -> Result<KnownFiles, remuda_store::Error> {
    let questions = stream::iter(names).map(|name| {
        let (store, tenant) = (Arc::clone(store), tenant.clone());
        async move {
            let file = look_up(&store, &tenant, &name).await?;
            Ok((name, file))
        }
    });
    questions.buffer_unordered(AT_ONCE).try_collect().await
}

/// Every file that is named, those of the request first. Each different name is a question to the store, so their number
/// has a limit.
pub(super) fn all_named(
    workflow: &Workflow,
    inputs: &BTreeMap<String, String>,
    upload_inputs: &UploadInputs,
    limits: &GraphLimits,
) -> Result<Vec<One>, Refusal> {
    if inputs.len() > limits.files {
        return Err(too_many(inputs.len(), limits));
    }
    let index = workflow.index();
    let mut named = Vec::new();
    for (place, value) in inputs {
        if place.len() > 2 * limits.name_length + 1 || value.len() > limits.name_length {
            return Err(too_long(&format!("inputs: {:?}", beginning(place)), limits));
        }
        let (node, input) = split(&index, place)?;
        named.push(One { node, input, value: value.clone(), surely: true });
    }
    let given: HashSet<(String, String)> =
        named.iter().map(|one| (one.node.clone(), one.input.clone())).collect();
    let literals = literals(&index, upload_inputs, limits)?;
    named.extend(literals.into_iter().filter(|one| !given.contains(&(one.node.clone(), one.input.clone()))));
    let different = named.iter().map(|one| one.value.as_str()).collect::<HashSet<_>>().len();
    if different > limits.files {
        return Err(too_many(different, limits));
    }
    Ok(named)
}

fn too_many(found: usize, limits: &GraphLimits) -> Refusal {
    let message = format!("the task names {found} different files, and {} are allowed", limits.files);
    Refusal::too_large("graph.files", message)
}

fn too_long(what: &str, limits: &GraphLimits) -> Refusal {
    let message = format!("{what}: the name of a file is longer than {} bytes", limits.name_length);
    Refusal::too_large("graph.name_length", message)
}

/// As much of a text as a message has room for.
fn beginning(text: &str) -> &str {
    &text[..text.floor_char_boundary(120)]
}

/// A file of the tenant's that a graph names.
#[derive(Clone)]
pub(super) struct Found {
    sha256: Sha256,
    key: String,
    filename: String,
}

impl From<Asset> for Found {
    fn from(asset: Asset) -> Self {
        // ComfyUI's nodes go by the ending, which `[temp]` would hide.
        let filename = annotation(&asset.filename).0.to_owned();
        Self { sha256: asset.sha256, key: asset.key, filename }
    }
}

impl From<&OutputFile> for Found {
    fn from(file: &OutputFile) -> Self {
        Self { sha256: file.sha256, key: file.key.clone(), filename: file.filename.clone() }
    }
}

/// `node.input`. Ids and names may have dots of their own, so the graph decides.
fn split(index: &Index<'_>, place: &str) -> Result<(String, String), Refusal> {
    let bad = |message: String| Refusal::new(RefusalKind::BadInput, message);
    let mut node_seen = None;
    for (id, name) in index.places(place) {
        node_seen = Some((id, name));
        let Some(input) = index.input(id, name) else { continue };
        if input.is_list() {
            return Err(Refusal::at(
                RefusalKind::BadInput,
                id,
                name,
                "is linked to another node, so that no file can be put there",
            ));
        }
        return Ok((id.to_owned(), name.to_owned()));
    }
    Err(match node_seen {
        Some((id, name)) => bad(format!("inputs: node {id} has no input {name:?} in the graph")),
        None => bad(format!("inputs: {place:?} names no node of the graph; write \"node.input\"")),
    })
}

/// Texts in the graph that may name uploaded files.
fn literals(
    index: &Index<'_>,
    upload_inputs: &UploadInputs,
    limits: &GraphLimits,
) -> Result<Vec<One>, Refusal> {
    let mut found = Vec::new();
    for node in index.nodes() {
        let class = node.class_type().unwrap_or_default();
        let told = upload_inputs.get(class.as_ref());
        let takes_files = |input: &Input<'_>| {
            let usual = USUAL.iter().any(|(known, name)| *known == class && *name == input.name);
            usual || told.is_some_and(|inputs| inputs.contains(input.name.as_ref()))
        };
        for input in node.inputs().unwrap_or_default() {
            let Some(text) = input.text() else { continue };
            let by_content = text.strip_prefix(BY_CONTENT).is_some_and(|hash| hash.parse::<Sha256>().is_ok());
            if !by_content && !takes_files(&input) {
                continue;
            }
            if text.len() > limits.name_length {
                let mut refusal = too_long(&format!("node {} input {}", node.id(), input.name), limits);
                refusal.place = Some(Box::new(Place {
                    node_id: node.id().to_owned(),
                    class_type: Some(class.into_owned()),
                    input: Some(input.name.into_owned()),
                }));
                return Err(refusal);
            }
            found.push(One {
                node: node.id().to_owned(),
                input: input.name.into_owned(),
                value: text.into_owned(),
                surely: by_content,
            });
        }
    }
    Ok(found)
}

/// An upload by its content or its name, or a file that an earlier task of the tenant made.
async fn look_up(
    store: &Arc<dyn Store>,
    tenant: &Tenant,
    value: &str,
) -> Result<Option<Found>, remuda_store::Error> {
    if let Some(hash) = value.strip_prefix(BY_CONTENT) {
        let Ok(sha256) = hash.parse() else { return Ok(None) };
        return Ok(store.asset(tenant, sha256).await?.map(Found::from));
    }
    // No upload is called so, and not every store takes such a text.
    if value.chars().any(char::is_control) {
        return Ok(None);
    }
    // An upload through our own API may have any name, also one that looks like a path.
    if let Some(asset) = store.asset_named(tenant, value).await? {
        return Ok(Some(asset.into()));
    }
    let (path, kind) = annotation(value);
    let kind = kind.unwrap_or("input");
    let Some(path) = straight(path) else { return Ok(None) };
    if kind != "input"
        && let Some(file) = made(store, tenant, &path, kind).await?
    {
        return Ok(Some(file));
    }
    let name = kept_name(&path, kind);
    if name == value {
        return Ok(None);
    }
    Ok(store.asset_named(tenant, &name).await?.map(Found::from))
}

/// A file of a task, by the name under which it is shown.
async fn made(
    store: &Arc<dyn Store>,
    tenant: &Tenant,
    path: &str,
    kind: &str,
) -> Result<Option<Found>, remuda_store::Error> {
    let Some((subfolder, filename)) = path.rsplit_once('/') else { return Ok(None) };
    let Some(id) = OutputFile::task_of(subfolder) else { return Ok(None) };
    let task = store.task(id).await?.filter(|task| task.tenant == *tenant);
    let result = task.and_then(|task| task.result);
    Ok(result.and_then(|result| result.find(id, filename, subfolder, kind).map(Found::from)))
}

fn no_asset(node: &str, input: &str, value: &str) -> Refusal {
    let value: String = value.chars().take(120).collect();
    let message = format!(
        "there is no uploaded file {value:?}; upload it with POST /api/v1/assets and name it by its \"asset:<sha256>\""
    );
    Refusal::at(RefusalKind::BadInput, node, input, message)
}
