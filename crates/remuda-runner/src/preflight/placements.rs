//! Which files must be at the worker first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comfyui::Workflow;
use comfyui::workflow::Input;
use remuda_core::{OutputFile, Placement, Sha256, Tenant};
use remuda_store::{Asset, Store};

use super::refusal::{PreflightError, Refusal, RefusalKind};
use super::uploads::{annotation, kept_name, straight};

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

/// So many files a task may bring.
const MOST: usize = 256;

/// The files that the request names by `inputs`, and those that the graph names itself.
pub(super) async fn find(
    store: &Arc<dyn Store>,
    tenant: &Tenant,
    workflow: &Workflow,
    inputs: &BTreeMap<String, String>,
    upload_inputs: &BTreeSet<(String, String)>,
) -> Result<Vec<Placement>, PreflightError> {
    let mut found: BTreeMap<(String, String), Found> = BTreeMap::new();
    for (place, value) in inputs {
        let (node, input) = split(workflow, place)?;
        let file = named(store, tenant, value).await?;
        let file = file.ok_or_else(|| no_asset(&node, &input, value))?;
        found.insert((node, input), file);
    }
    // Collected first: what borrows the graph must not live across an await.
    for (node, input, value, by_content) in literals(workflow, upload_inputs) {
        if found.contains_key(&(node.clone(), input.clone())) {
            continue;
        }
        match named(store, tenant, &value).await? {
            Some(file) => {
                found.insert((node, input), file);
            }
            None if by_content => return Err(no_asset(&node, &input, &value).into()),
            // A file of the worker's own.
            None => {}
        }
    }
    if found.len() > MOST {
        let message = format!("the graph names {} files; {MOST} are possible", found.len());
        return Err(Refusal::new(RefusalKind::BadInput, message).into());
    }
    let placements = found.into_iter().map(|((node_id, input), file)| Placement {
        node_id,
        input,
        sha256: file.sha256,
        key: file.key,
        filename: file.filename,
    });
    Ok(placements.collect())
}

/// A file of the tenant's that a graph names.
struct Found {
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
fn split(workflow: &Workflow, place: &str) -> Result<(String, String), Refusal> {
    let bad = |message: String| Refusal::new(RefusalKind::BadInput, message);
    let mut node_seen = None;
    for (dot, _) in place.match_indices('.') {
        let (id, name) = (&place[..dot], &place[dot + 1..]);
        let Some(node) = workflow.node(id) else { continue };
        node_seen = Some(id);
        let Some(input) = node.input(name) else { continue };
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
        Some(id) => bad(format!("inputs: node {id} has no input {:?} in the graph", &place[id.len() + 1..])),
        None => bad(format!("inputs: {place:?} names no node of the graph; write \"node.input\"")),
    })
}

/// Texts in the graph that may name uploaded files, and whether they can mean nothing else.
fn literals(
    workflow: &Workflow,
    upload_inputs: &BTreeSet<(String, String)>,
) -> Vec<(String, String, String, bool)> {
    let mut found = Vec::new();
    for node in workflow.nodes() {
        let class = node.class_type().unwrap_or_default();
        let takes_files = |input: &Input<'_>| {
            let usual = USUAL.iter().any(|(known, name)| *known == class && *name == input.name);
            usual || upload_inputs.contains(&(class.to_string(), input.name.to_string()))
        };
        for input in node.inputs().unwrap_or_default() {
            let Some(text) = input.text() else { continue };
            let by_content = text.strip_prefix(BY_CONTENT).is_some_and(|hash| hash.parse::<Sha256>().is_ok());
            if by_content || takes_files(&input) {
                found.push((node.id().to_owned(), input.name.to_string(), text.to_string(), by_content));
            }
        }
    }
    found
}

/// An upload by its content or its name, or a file that an earlier task of the tenant made.
async fn named(
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
