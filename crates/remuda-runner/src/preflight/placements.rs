//! Which files must be at the worker first.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use comfyui::Workflow;
use comfyui::workflow::Input;
use remuda_core::{Placement, Sha256, Tenant};
use remuda_store::{Asset, Store};

use super::refusal::{PreflightError, Refusal, RefusalKind};

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
    let mut found: BTreeMap<(String, String), Asset> = BTreeMap::new();
    for (place, value) in inputs {
        let (node, input) = split(workflow, place)?;
        let asset = named(store, tenant, value).await?;
        let asset = asset.ok_or_else(|| no_asset(&node, &input, value))?;
        found.insert((node, input), asset);
    }
    // Collected first: what borrows the graph must not live across an await.
    for (node, input, value, by_content) in literals(workflow, upload_inputs) {
        if found.contains_key(&(node.clone(), input.clone())) {
            continue;
        }
        match named(store, tenant, &value).await? {
            Some(asset) => {
                found.insert((node, input), asset);
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
    let placements = found.into_iter().map(|((node_id, input), asset)| Placement {
        node_id,
        input,
        sha256: asset.sha256,
        key: asset.key,
        filename: asset.filename,
    });
    Ok(placements.collect())
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

async fn named(
    store: &Arc<dyn Store>,
    tenant: &Tenant,
    value: &str,
) -> Result<Option<Asset>, remuda_store::Error> {
    match value.strip_prefix(BY_CONTENT) {
        Some(hash) => match hash.parse() {
            Ok(sha256) => store.asset(tenant, sha256).await,
            Err(_) => Ok(None),
        },
        // No upload is called so, and not every store takes such a text.
        None if value.chars().any(char::is_control) => Ok(None),
        None => store.asset_named(tenant, value).await,
    }
}

fn no_asset(node: &str, input: &str, value: &str) -> Refusal {
    let value: String = value.chars().take(120).collect();
    let message = format!(
        "there is no uploaded file {value:?}; upload it with POST /api/v1/assets and name it by its \"asset:<sha256>\""
    );
    Refusal::at(RefusalKind::BadInput, node, input, message)
}
