//! Asking the ComfyUIs that this process drives, for those who show what they have.
//!
//! Only those: another process's may be out of reach, or its loopback address may be somebody else's here. What is
//! asked for is small and read only; answers are kept for some seconds, and an old one stands in while a worker does not
//! answer. Files are streamed.

mod kept;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use comfyui::lenient;
use futures_util::StreamExt as _;
use remuda_core::{Health, OwnerId, Worker, WorkerId};
use remuda_pool::{NotDone, Pool, Work};
use remuda_store::WorkerStore;
use reqwest::header::{self, HeaderMap};
use reqwest::{Method, StatusCode};
use serde_json::Value;
use tokio::time::Instant;
use url::Url;

use kept::{Question, Slot, Weighed, make_room};

/// A ComfyUI that does not take the call within this time is not there.
const CONNECT: Duration = Duration::from_secs(2);

/// … and one that does not begin to answer within this time is too busy to be asked.
const PATIENCE: Duration = Duration::from_secs(5);

/// A stream that stands still for this long is broken.
const SILENCE: Duration = Duration::from_secs(30);

/// How long a worker that did not answer is left alone.
const SORE: Duration = Duration::from_secs(5);

/// The longest answer that is read into memory.
const LONGEST: usize = 8 << 20;

/// How many workers are asked at once.
const AT_ONCE: usize = 16;

/// How many values of JSON may be in it: each takes up to a hundred bytes, and the answers are kept.
const MOST_VALUES: usize = 200_000;

/// Answers that are longer than this give way to others.
const LONG: usize = 1 << 20;

/// What a value of JSON takes in memory beside its text.
const VALUE: usize = 64;

/// What is passed on with a request for a file.
const PASSED_ON: [header::HeaderName; 6] = [
    header::ACCEPT,
    header::RANGE,
    header::IF_RANGE,
    header::IF_NONE_MATCH,
    header::IF_MODIFIED_SINCE,
    header::USER_AGENT,
];

/// Why a worker could not be asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AskError {
    /// It has no usable address.
    #[error("{0:?} is not the address of a ComfyUI")]
    Address(String),
    /// A path that would lead elsewhere.
    #[error("{0:?} cannot be a part of a path")]
    Segment(String),
    /// It cannot be reached.
    #[error("no answer: {}", causes(.0))]
    Http(#[from] reqwest::Error),
    /// It is too slow.
    #[error("no answer within {} s", PATIENCE.as_secs())]
    Late,
    /// It is left alone for a while.
    #[error("did not answer a moment ago")]
    Resting,
    /// It refused.
    #[error("answered {0}")]
    Status(StatusCode),
    /// It says too much.
    #[error("answered with more than {LONGEST} bytes")]
    TooLong,
    /// It does not speak JSON.
    #[error("the answer is not JSON: {0}")]
    NotJson(#[from] serde_json::Error),
    /// There was no room to read it.
    #[error("the answer was not read: {0}")]
    NotRead(#[from] NotDone),
}

/// The error of the library says little without its causes.
fn causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A ComfyUI that this process drives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Driven {
    /// Which one.
    pub id: WorkerId,
    /// Where it answers.
    pub endpoint: String,
}

/// The addresses of the ComfyUIs that this process was told to drive. What a worker is said to be in the store is not
/// asked: a process elsewhere may have said it.
#[derive(Debug, Clone, Default)]
pub struct Addresses(Arc<RwLock<BTreeMap<WorkerId, String>>>);

impl Addresses {
    /// One more.
    pub fn add(&self, worker: WorkerId, endpoint: impl Into<String>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).insert(worker, endpoint.into());
    }

    /// One less.
    pub fn remove(&self, worker: &WorkerId) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).remove(worker);
    }

    /// Where this worker answers, if it is one of them.
    fn of(&self, worker: &WorkerId) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(worker).cloned()
    }
}

/// What a worker says to a question. None: it has no such thing (404).
pub type Answer = Option<Arc<Value>>;

/// What the workers say to a question.
#[derive(Debug, Default)]
pub struct Answers {
    /// Of those that have something to say, in the order of the workers.
    pub given: Vec<(WorkerId, Arc<Value>)>,
    /// Those that could not be asked, and have not been asked before.
    pub silent: Vec<WorkerId>,
    /// About how many bytes all of it takes.
    pub weight: usize,
}

/// Asks the ComfyUIs that this process drives.
#[derive(Debug)]
pub struct Asker {
    owner: Option<OwnerId>,
    addresses: Addresses,
    http: reqwest::Client,
    pool: Pool,
    kept: Mutex<HashMap<Question, Arc<Slot>>>,
    /// Until when those that did not answer are left alone: one that hangs holds a caller up once, not at every question.
    resting: Mutex<HashMap<WorkerId, Instant>>,
}

impl Asker {
    /// For the workers of this process. None: it drives none.
    pub fn new(owner: Option<OwnerId>, addresses: Addresses, pool: Pool) -> Self {
        Self { owner, addresses, http: client(), pool, kept: Mutex::default(), resting: Mutex::default() }
    }

    /// Works on answers of this many bytes, beside the runtime: a worker may answer anything. Waits for its turn, because it is
    /// done once for all who ask.
    pub async fn digest<T, F>(&self, weight: usize, compute: F) -> Result<T, NotDone>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let work = Work::new("reading answers of workers", "answers of workers", weight).patient();
        self.pool.run(work, compute).await
    }

    /// The workers that this process drives, those left out that are known not to answer. Which they are and where they
    /// answer is this process's own knowledge: a row of the store may be somebody else's word.
    pub async fn driven(&self, store: &dyn WorkerStore) -> remuda_store::Result<Vec<Driven>> {
        let Some(owner) = self.owner else { return Ok(Vec::new()) };
        let workers = store.workers().await?;
        let mine = workers.iter().filter(|worker| worker.owner == owner);
        let answering = mine.filter(|worker| worker.report.health != Health::Unreachable);
        let driven = |worker: &Worker| {
            let endpoint = self.addresses.of(&worker.spec.id)?;
            Some(Driven { id: worker.spec.id.clone(), endpoint })
        };
        Ok(answering.filter_map(driven).collect())
    }

    /// Asks one worker for a file or anything else that is passed on as it comes. `asked` are the headers of the caller;
    /// what matters to a file is passed on. The status is the worker's own.
    pub async fn stream(
        &self,
        worker: &Driven,
        method: Method,
        segments: &[&str],
        query: Option<&str>,
        asked: &HeaderMap,
    ) -> Result<reqwest::Response, AskError> {
        let mut request = self.http.request(method, url(&worker.endpoint, segments, query)?);
        for name in PASSED_ON {
            if let Some(value) = asked.get(&name) {
                request = request.header(name, value);
            }
        }
        let answer = match tokio::time::timeout(PATIENCE, request.send()).await {
            Ok(answer) => answer.map_err(AskError::from),
            Err(_) => Err(AskError::Late),
        };
        if answer.is_err() {
            self.rest(&worker.id);
        }
        answer
    }

    /// Tells one worker to unload its models, or also to forget its results. It does so when it is idle.
    pub async fn free(&self, worker: &Driven, unload: bool, forget: bool) -> Result<(), AskError> {
        let wish = serde_json::json!({"unload_models": unload, "free_memory": forget});
        let request = self.http.post(url(&worker.endpoint, &["free"], None)?).body(wish.to_string());
        let request = request.header(header::CONTENT_TYPE, "application/json");
        let answer = tokio::time::timeout(PATIENCE, request.send()).await.map_err(|_| AskError::Late)??;
        match answer.status() {
            status if status.is_success() => Ok(()),
            other => Err(AskError::Status(other)),
        }
    }

    /// Asks one worker for JSON. None: it has no such thing (404).
    async fn json(&self, worker: &Driven, segments: &[&str]) -> Result<Weighed, AskError> {
        let read = async {
            let answer = self.stream(worker, Method::GET, segments, None, &HeaderMap::new()).await?;
            match answer.status() {
                StatusCode::OK => {}
                StatusCode::NOT_FOUND => return Ok(None),
                other => return Err(AskError::Status(other)),
            }
            let mut bytes = Vec::new();
            let mut pieces = answer.bytes_stream();
            while let Some(piece) = pieces.next().await {
                let piece = piece?;
                if bytes.len() + piece.len() > LONGEST {
                    return Err(AskError::TooLong);
                }
                bytes.extend_from_slice(&piece);
            }
            Ok(Some(bytes))
        };
        let read = tokio::time::timeout(PATIENCE, read).await.unwrap_or_else(|_| {
            self.rest(&worker.id);
            Err(AskError::Late)
        });
        let Some(bytes) = read? else { return Ok(Weighed { answer: None, weight: 0, long: false }) };
        let length = bytes.len();
        let parse = move || {
            let values = lenient::count_values(&bytes, usize::MAX);
            if values > MOST_VALUES {
                return Err(AskError::TooLong);
            }
            let answer = Some(Arc::new(serde_json::from_slice(&bytes)?));
            let (weight, long) = (bytes.len() + VALUE * values, bytes.len() > LONG);
            Ok(Weighed { answer, weight, long })
        };
        self.digest(length, parse).await?
    }

    /// Asks all of them for JSON, at most every half minute. Whoever could not be asked is logged and named, unless there
    /// is an older answer of it. The segments must not be the caller's choice: what is kept would be, too.
    pub async fn all(&self, workers: &[Driven], segments: &[&str]) -> Answers {
        let asked: Vec<_> = workers.iter().map(|worker| self.kept(worker, segments)).collect();
        let asked: Vec<_> = futures_util::stream::iter(asked).buffered(AT_ONCE).collect().await;
        let mut answers = Answers::default();
        for (worker, answer) in workers.iter().zip(asked) {
            match answer {
                Some(Weighed { answer: Some(answer), weight, .. }) => {
                    answers.given.push((worker.id.clone(), answer));
                    answers.weight += weight;
                }
                Some(_) => {}
                None => answers.silent.push(worker.id.clone()),
            }
        }
        answers
    }

    /// Whether it did not answer a moment ago.
    pub fn rests(&self, worker: &WorkerId) -> bool {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.retain(|_, until| *until > Instant::now());
        resting.contains_key(worker)
    }

    fn rest(&self, worker: &WorkerId) {
        let mut resting = self.resting.lock().unwrap_or_else(PoisonError::into_inner);
        resting.insert(worker.clone(), Instant::now() + SORE);
    }

    /// The answer of one worker, not older than it may be, or the last one.
    async fn kept(&self, worker: &Driven, segments: &[&str]) -> Option<Weighed> {
        let question = (worker.id.clone(), segments.join("/"));
        let slot = self.slot(question);
        let mut asked = false;
        let answer = slot
            .answer
            .get_or_init(|| async {
                asked = true;
                let answer = match self.rests(&worker.id) {
                    true => Err(AskError::Resting),
                    false => self.json(worker, segments).await,
                };
                answer.map_err(|error| {
                    let path = segments.join("/");
                    tracing::warn!(worker = %worker.id, path, %error, "a worker could not be asked");
                    Arc::new(error)
                })
            })
            .await;
        if asked && answer.is_ok() {
            *slot.before() = None;
            make_room(&mut self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        }
        match answer {
            Ok(answer) => Some(answer.clone()),
            Err(_) => slot.before().clone(),
        }
    }

    fn slot(&self, question: Question) -> Arc<Slot> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let old = kept.get(&question);
        if let Some(slot) = old
            && slot.is_fresh()
        {
            return slot.clone();
        }
        let before = old.and_then(|slot| slot.last());
        let slot = Arc::new(Slot::new(before));
        kept.insert(question, slot.clone());
        make_room(&mut kept);
        slot
    }
}

/// A machine without certificates is no obstacle to plain HTTP.
fn client() -> reqwest::Client {
    let plain = || {
        reqwest::Client::builder()
            .connect_timeout(CONNECT)
            .read_timeout(SILENCE)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
    };
    plain().build().or_else(|_| plain().tls_certs_only([]).build()).unwrap_or_default()
}

/// Whether a part of a path stays where it is put. Addresses lose their tabs and line ends when they are made: with one
/// between two dots a part goes upwards.
pub fn is_segment(text: &str) -> bool {
    !matches!(text, "" | "." | "..") && !text.chars().any(char::is_control)
}

fn url(endpoint: &str, segments: &[&str], query: Option<&str>) -> Result<Url, AskError> {
    if let Some(bad) = segments.iter().find(|segment| !is_segment(segment)) {
        return Err(AskError::Segment((*bad).to_owned()));
    }
    let bad = || AskError::Address(endpoint.to_owned());
    let mut url = Url::parse(endpoint).map_err(|_| bad())?;
    url.path_segments_mut().map_err(|()| bad())?.pop_if_empty().extend(segments);
    url.set_query(query);
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_stay_below_the_address_of_the_worker() {
        let of = |segments: &[&str]| url("http://gpu:8188/comfy/", segments, None).unwrap().to_string();
        assert_eq!(of(&["models", "a/b c"]), "http://gpu:8188/comfy/models/a%2Fb%20c");
        assert_eq!(of(&["models", "%2e%2e", "x?y"]), "http://gpu:8188/comfy/models/%252e%252e/x%3Fy");
        for upwards in ["..", ".", "", ".\t.", ".\n.", "..\r", "\t.."] {
            assert!(url("http://gpu:8188/comfy/", &["models", upwards, "x"], None).is_err(), "{upwards:?}");
        }
        assert!(url("mailto:x", &["a"], None).is_err());
    }
}
