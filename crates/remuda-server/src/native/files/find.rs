//! Where a file is that a client names.

use remuda_core::{Status, Tenant};
use remuda_preflight::uploads::{annotation, kept_name, straight};
use url::form_urlencoded;

use crate::error::ApiResult;
use crate::native::names;
use crate::routes::Sendable;
use crate::state::AppState;
use remuda_runner::ask::Driven;

/// A file as clients name it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) filename: String,
    /// Without detours.
    pub(super) subfolder: String,
    pub(super) kind: &'static str,
}

/// Why a name names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadName {
    /// It cannot be the name of a file.
    Name,
    /// Its folder is not below ours.
    Folder,
}

impl Named {
    /// As `/view` reads it: what stands behind the name says more than `kind`, and a folder within the name is cut off.
    pub(super) fn read(name: &str, subfolder: &str, kind: Option<&str>) -> Result<Self, BadName> {
        let (name, annotated) = annotation(name);
        if name.is_empty() || name.starts_with('/') || name.contains("..") {
            return Err(BadName::Name);
        }
        let kind = match annotated.or(kind).unwrap_or("output") {
            "output" => "output",
            "input" => "input",
            "temp" => "temp",
            _ => return Err(BadName::Name),
        };
        let filename = name.rsplit('/').next().unwrap_or(name).to_owned();
        if filename.chars().any(char::is_control) {
            return Err(BadName::Name);
        }
        Ok(Self { filename, subfolder: straight(subfolder).ok_or(BadName::Folder)?, kind })
    }

    fn path(&self) -> String {
        match self.subfolder.as_str() {
            "" => self.filename.clone(),
            folder => format!("{folder}/{}", self.filename),
        }
    }

    /// How a ComfyUI is asked for it.
    fn query(&self, channel: Option<&str>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.append_pair("filename", &self.filename);
        query.append_pair("subfolder", &self.subfolder).append_pair("type", self.kind);
        if let Some(channel) = channel {
            query.append_pair("channel", channel);
        }
        query.finish()
    }
}

/// A file in the file store.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) file: Sendable,
    /// Nobody can put other bytes under this name.
    pub(super) for_ever: bool,
}

/// What the tenant has under this name in the file store: a file of a task, or an upload.
pub(super) async fn kept(state: &AppState, tenant: &Tenant, named: &Named) -> ApiResult<Option<Kept>> {
    if named.kind != "input"
        && let Some(id) = names::task_of(&named.subfolder)
        && let Some(task) = state.store.task(id).await?.filter(|task| task.tenant == *tenant)
        && let Some(result) = task.result
        && let Some(file) = names::find_file(id, &result, &named.filename, &named.subfolder, named.kind)
    {
        let file = Sendable::from(file);
        return Ok(Some(Kept { file, for_ever: true }));
    }
    let asset = state.store.asset_named(tenant, &kept_name(&named.path(), named.kind)).await?;
    Ok(asset.map(|asset| Kept {
        file: Sendable { filename: named.filename.clone(), ..asset.into() },
        for_ever: false,
    }))
}

/// The workers that may have it, and how they are asked: for an input of their own, or for what a task of the tenant has
/// saved so far. Other files of a worker are somebody else's.
pub(super) async fn at_workers(
    state: &AppState,
    tenant: &Tenant,
    named: &Named,
    channel: Option<&str>,
) -> ApiResult<Option<(Vec<Driven>, String)>> {
    let first = named.subfolder.split('/').next().unwrap_or_default();
    // Files that were placed for tasks are there, too, and those of all tenants; some systems know one folder by
    // several names.
    let ours = first.trim_end_matches(['.', ' ']).eq_ignore_ascii_case("remuda");
    // A worker reads what stands behind the name as we did, and would look into another folder than the one asked for.
    let odd = named.path().contains(['\\', ':']) || annotation(&named.filename).1.is_some();
    let workers = match named.kind {
        "input" if !ours && !odd => state.catalogue.ask.driven(&*state.store).await?,
        "output" if !odd => {
            let Some(id) = names::task_of(&named.subfolder) else { return Ok(None) };
            let task = state.store.task(id).await?;
            let running = task.filter(|task| task.tenant == *tenant && task.status == Status::Running);
            let Some(worker) = running.and_then(|task| task.worker) else { return Ok(None) };
            let driven = state.catalogue.ask.driven(&*state.store).await?;
            driven.into_iter().filter(|driven| driven.id == worker).collect()
        }
        _ => return Ok(None),
    };
    Ok((!workers.is_empty()).then(|| (workers, named.query(channel))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_recorded() {
        let read = |name: &str, subfolder: &str, kind: Option<&str>| {
            Named::read(name, subfolder, kind).map(|named| (named.path(), named.kind))
        };
        let ok = |path: &str, kind| Ok((path.to_owned(), kind));
        assert_eq!(read("a.png", "", None), ok("a.png", "output"));
        assert_eq!(read("a.png [output]", "rig", Some("temp")), ok("rig/a.png", "output"));
        assert_eq!(read("rig/a.png", "", Some("input")), ok("a.png", "input"));
        assert_eq!(read("a.png", "x/../y//", Some("temp")), ok("y/a.png", "temp"));
        for name in ["", "/etc/passwd", "../../etc/passwd", "a..b.png", "a\0", " [temp]"] {
            assert_eq!(read(name, "", None), Err(BadName::Name), "{name:?}");
        }
        assert_eq!(read("a.png", "", Some("nowhere")), Err(BadName::Name));
        assert_eq!(read("passwd", "../../etc", None), Err(BadName::Folder));
        assert_eq!(read("passwd", "/etc", None), Err(BadName::Folder));
    }
}
