//! Looking a ComfyUI over: is it there, is it the same, what can it do.

use std::sync::Arc;

use bytes::Bytes;
use comfyui::outputs::FileType;
use comfyui::{Client, ClientId, Error, FileRef, Session, SessionOptions, Upload};
use remuda_core::Sha256;
use remuda_pool::{Pool, Work};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::event::{Inspected, Unwell};
use super::worker::{Ready, Worker};
use crate::decide::offer;
use remuda_preflight::FOLDER;

/// An identity is a UUID and a line break; anything longer is not ours.
const LONGEST_IDENTITY: usize = 256;

/// Descriptions beyond this size are read one at a time.
const LARGE_DESCRIPTION: usize = 8 << 20;
static LARGE_DESCRIPTIONS: Semaphore = Semaphore::const_new(1);

/// Looks the worker over. An error is a reason for people.
pub(super) async fn inspect(
    worker: Arc<Worker>,
    session: Option<Session>,
    options: SessionOptions,
    known: Option<Arc<Ready>>,
) -> Result<Box<Inspected>, Unwell> {
    let words = |error: &dyn std::error::Error| Unwell::from(chain(error));
    let told = |error: Error| Unwell::from(&error);
    let source = &worker.shared.source;
    let installation = match &known {
        Some(ready) => ready.installation,
        None => worker.shared.ask(source.installation()).await.map_err(|error| words(&error))?.id,
    };
    let session = match session {
        Some(session) => session,
        None => {
            let client_id = options.client_id.clone().or_else(|| client_id(installation, &worker));
            let options = SessionOptions { client_id, ..options };
            Session::open(worker.client.clone(), options).await.map_err(told)?
        }
    };
    let client = session.client().clone();
    let stats = client.system_stats().await.map_err(told)?;
    let identity = identity(&client, installation).await.map_err(|error| {
        let Unwell { why, excess } = told(error);
        Unwell { why: format!("our identity file cannot be kept in its input folder: {why}"), excess }
    })?;
    let answer = client.object_info_bytes().await.map_err(told)?;
    let described = describe(&worker.shared.options.pool, answer).await?;
    let saved = known.as_ref().is_some_and(|ready| ready.hash == described.hash);
    if !saved {
        let save = source.save_object_info(described.hash, &described.json);
        worker.shared.ask(save).await.map_err(|error| words(&error))?;
    }
    let offer = Arc::new(remuda_preflight::capabilities(worker.spec.labels.clone(), &described.info));
    let ready = Ready {
        session: session.clone(),
        installation,
        identity,
        info: worker.shared.share(described.hash, described.info),
        hash: described.hash,
        offer,
    };
    Ok(Box::new(Inspected { session, ready: Arc::new(ready), stats }))
}

/// Reads an `/object_info`. Half a megabyte of JSON takes its time, so it is done beside the runtime. Large ones come one
/// after the other, because each takes a multiple of its length in memory while it is read.
pub(super) async fn describe(pool: &Pool, answer: Bytes) -> Result<offer::Described, Unwell> {
    let _turn = match answer.len() > LARGE_DESCRIPTION {
        // It is never closed.
        true => LARGE_DESCRIPTIONS.acquire().await.ok(),
        false => None,
    };
    // Not refused: there is one at a time for each worker.
    let work = Work::new("reading an object_info", "descriptions of workers", answer.len()).patient();
    let described = pool.run(work, move || offer::describe(&answer)).await;
    match described.map_err(|error| error.to_string())? {
        Ok(described) => Ok(described),
        Err(offer::Unreadable::TooLarge) => {
            let why = "the answer to GET /object_info holds more JSON values than any ComfyUI has".to_owned();
            Err(Unwell { why, excess: true })
        }
        Err(offer::Unreadable::NotJson(error)) => {
            Err(format!("its /object_info cannot be read: {error}").into())
        }
    }
}

/// The name under which prompts go out and frames come in: the same for every process that drives this worker, so that one
/// that adopts a render sees its progress. Should an older socket of that name silence ours, the session takes another.
fn client_id(installation: Uuid, worker: &Worker) -> Option<ClientId> {
    let name = Sha256::of(format!("{installation} {}", worker.spec.id).as_bytes()).to_string();
    ClientId::new(&format!("remuda-{}", &name[..24]))
}

/// Reads our identity file in ComfyUI's input folder; puts one there when there is none, and reads it back.
async fn identity(client: &Client, installation: Uuid) -> Result<String, Error> {
    let filename = format!("identity-{installation}.txt");
    let file =
        FileRef { filename: filename.clone(), subfolder: FOLDER.to_owned(), file_type: FileType::Input };
    if let Some(found) = read(client, &file).await? {
        return Ok(found);
    }
    // Not overwriting: of two processes that come at once, one file counts, and both read it.
    let fresh = format!("{}\n", Uuid::new_v4());
    client.upload(Upload::from_bytes(&filename, fresh).subfolder(FOLDER)).await?;
    let found = read(client, &file).await?;
    found.ok_or_else(|| Error::NotFound { what: format!("the file {}, just uploaded,", file.in_workflow()) })
}

async fn read(client: &Client, file: &FileRef) -> Result<Option<String>, Error> {
    let download = match client.view(file).await {
        Ok(download) => download,
        Err(Error::NotFound { .. }) => return Ok(None),
        Err(error) => return Err(error),
    };
    let bytes = download.bytes(LONGEST_IDENTITY).await?;
    let text = String::from_utf8_lossy(&bytes).trim().to_owned();
    match Uuid::try_parse(&text) {
        Ok(_) => Ok(Some(text)),
        Err(_) => Err(Error::Protocol {
            what: format!("GET /view of {}", file.in_workflow()),
            detail: "it is not an identity file; delete it".to_owned(),
        }),
    }
}

/// An error with its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let shown = error.to_string();
        if !text.contains(&shown) {
            text = format!("{text}: {shown}");
        }
        cause = error.source();
    }
    text
}
