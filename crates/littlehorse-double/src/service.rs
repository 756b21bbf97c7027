//! The methods, as one host answers them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::{Request, Response, Status, Streaming};

use crate::access::TokenServer;
use crate::answers::{Answers, Presence};
use crate::cluster::{Cluster, StreamKey};
use crate::fault::{Fault, too_large};
use crate::journal::{Method, What};
use crate::message::Message;
use crate::options::Oversize;
use crate::proto::little_horse_server::LittleHorse;
use crate::proto::{
    Checkpoint, CheckpointId, LhHostInfo, LhTaskError, LittleHorseVersion, PollTaskRequest,
    PutCheckpointRequest, PutCheckpointResponse, PutTaskDefRequest, RegisterTaskWorkerRequest,
    RegisterTaskWorkerResponse, ReportTaskRun, TaskDef, TaskDefId, TaskRun, TaskRunId, TaskStatus,
    report_task_run,
};

/// The most bytes of any message.
const ANY_MESSAGE: usize = 4 * 1024 * 1024;

/// How many answers may wait in a stream whose client does not read.
const UNREAD: usize = 4096;

/// One host of the cluster.
#[derive(Debug, Clone)]
pub(crate) struct HostService {
    pub(crate) cluster: Arc<Cluster>,
    pub(crate) host: usize,
    pub(crate) addresses: Arc<[SocketAddr]>,
    pub(crate) tokens: Option<Arc<TokenServer>>,
    pub(crate) tasks: TaskTracker,
}

impl HostService {
    /// Whose call it is, if its caller may come in.
    fn admit(&self, metadata: &BTreeMap<String, String>) -> Result<String, Status> {
        if let Some(tokens) = &self.tokens {
            let sent = metadata.get("authorization").map(String::as_str).unwrap_or_default();
            match tokens.is_good(sent) {
                _ if sent.is_empty() => return Err(Status::unauthenticated("Token is empty")),
                false => return Err(Status::unauthenticated("Access token is not active")),
                true => {}
            }
        }
        let tenant = metadata.get("tenantid").map_or("default", String::as_str);
        match self.cluster.options.tenants.iter().any(|known| known == tenant) {
            true => Ok(tenant.to_owned()),
            false => Err(Status::permission_denied("Tenant not allowed")),
        }
    }

    /// A server that starts answers little.
    fn ready(&self, method: Method) -> Result<(), Status> {
        let early = matches!(method, Method::GetServerVersion | Method::ReportTask);
        match early || !self.cluster.state().unready.contains(&self.host) {
            true => Ok(()),
            false => Err(Status::unavailable("Kafka Streams not ready yet")),
        }
    }

    async fn call<Q, A>(
        &self,
        method: Method,
        request: Request<Q>,
        act: impl FnOnce(&str, Q) -> Result<A, Status>,
    ) -> Result<Response<A>, Status>
    where
        Q: Clone + Into<Message>,
        A: Clone + Into<Message>,
    {
        let (metadata, deadline) = (words(request.metadata()), deadline(request.metadata()));
        let asked = request.into_inner();
        let admitted = self.admit(&metadata);
        self.note(method, What::Call { metadata, deadline, message: asked.clone().into() });
        let fault = self.cluster.state().faults.take(method);
        let answer = match admitted.and_then(|tenant| self.ready(method).map(|()| tenant)) {
            Err(status) => Err(status),
            Ok(tenant) => match fault {
                None | Some(Fault::Nothing) => act(&tenant, asked),
                Some(Fault::Refuse(status)) => Err(status),
                Some(Fault::DoneThenRefuse(status)) => act(&tenant, asked).and(Err(status)),
                Some(Fault::Hang) => std::future::pending().await,
                Some(Fault::DoneThenHang) => {
                    let _ = act(&tenant, asked);
                    std::future::pending().await
                }
                Some(Fault::Late(pause)) => {
                    let answer = act(&tenant, asked);
                    tokio::time::sleep(pause).await;
                    answer
                }
            },
        };
        self.note(
            method,
            match &answer {
                Ok(answer) => What::Answer(answer.clone().into()),
                Err(status) => What::Refusal { code: status.code(), text: status.message().to_owned() },
            },
        );
        answer.map(Response::new)
    }

    fn note(&self, method: Method, what: What) {
        self.cluster.journal.add(self.host, method, None, what);
    }

    fn hosts(&self, numbers: &[usize]) -> Vec<LhHostInfo> {
        let host = |address: &SocketAddr| LhHostInfo {
            host: self.cluster.options.advertised.clone(),
            port: address.port().into(),
        };
        numbers.iter().filter_map(|number| self.addresses.get(*number)).map(host).collect()
    }

    /// Reads what a client says in a stream until it has said all.
    fn read(&self, stream: StreamKey, mut said: Streaming<PollTaskRequest>) -> Presence {
        let gone = CancellationToken::new();
        let presence = Presence::new(Arc::clone(&self.cluster), stream, gone.clone());
        let cluster = Arc::clone(&self.cluster);
        self.tasks.spawn(async move {
            loop {
                let message = tokio::select! {
                    () = gone.cancelled() => return,
                    message = said.message() => message,
                };
                match message {
                    Ok(Some(request)) => cluster.asked(stream, request),
                    Ok(None) => return cluster.half_closed(stream),
                    // The connection broke, or the client left: the answering side notices, too.
                    Err(_) => return,
                }
            }
        });
        presence
    }
}

#[tonic::async_trait]
impl LittleHorse for HostService {
    async fn put_task_def(&self, request: Request<PutTaskDefRequest>) -> Result<Response<TaskDef>, Status> {
        let act = |tenant: &str, asked| self.cluster.put_task_def(tenant, asked);
        self.call(Method::PutTaskDef, request, act).await
    }

    async fn get_task_def(&self, request: Request<TaskDefId>) -> Result<Response<TaskDef>, Status> {
        let act = |tenant: &str, asked| self.cluster.get_task_def(tenant, &asked);
        self.call(Method::GetTaskDef, request, act).await
    }

    async fn register_task_worker(
        &self,
        request: Request<RegisterTaskWorkerRequest>,
    ) -> Result<Response<RegisterTaskWorkerResponse>, Status> {
        let act = |tenant: &str, asked| {
            let (hosts, is_cluster_healthy) = self.cluster.register(tenant, &asked);
            Ok(RegisterTaskWorkerResponse { your_hosts: self.hosts(&hosts), is_cluster_healthy })
        };
        self.call(Method::RegisterTaskWorker, request, act).await
    }

    type PollTaskStream = Answers;

    async fn poll_task(
        &self,
        request: Request<Streaming<PollTaskRequest>>,
    ) -> Result<Response<Answers>, Status> {
        let (metadata, deadline) = (words(request.metadata()), deadline(request.metadata()));
        let admitted = self.admit(&metadata).and_then(|tenant| self.ready(Method::PollTask).map(|()| tenant));
        let tenant = admitted.clone().unwrap_or_default();
        let (sender, mut answers) = mpsc::channel(UNREAD);
        let opened = What::Open { metadata, deadline };
        let stream = self.cluster.open_stream(self.host, &tenant, sender, opened);
        if let Err(status) = admitted {
            let refusal = What::Refusal { code: status.code(), text: status.message().to_owned() };
            self.cluster.journal.add(self.host, Method::PollTask, Some(stream.number), refusal);
            self.cluster.stream_gone(stream);
            return Err(status);
        }
        let presence = self.read(stream, request.into_inner());
        match answers.recv().await {
            Some(Ok(first)) => Ok(Response::new(Answers::new(first, answers, presence))),
            Some(Err(status)) => Err(status),
            None => Err(Status::unavailable("the stream was closed")),
        }
    }

    async fn report_task(&self, request: Request<ReportTaskRun>) -> Result<Response<()>, Status> {
        let size = prost::Message::encoded_len(request.get_ref());
        let large = size > self.cluster.options.most_bytes;
        let oversize = self.cluster.options.oversize;
        let act = |tenant: &str, asked: ReportTaskRun| match oversize {
            _ if size > ANY_MESSAGE => Err(any_too_large(size)),
            Oversize::Unavailable if large => {
                Err(Status::unavailable("Failed recording task claim to Kafka"))
            }
            Oversize::Exhausted if large => Err(too_large()),
            Oversize::Swallowed if large => {
                self.cluster.report(tenant, instead(asked));
                Ok(())
            }
            _ => {
                self.cluster.report(tenant, asked);
                Ok(())
            }
        };
        let answer = self.call(Method::ReportTask, request, act).await;
        if large && oversize == Oversize::Swallowed && answer.is_ok() {
            return std::future::pending().await;
        }
        answer
    }

    async fn put_checkpoint(
        &self,
        request: Request<PutCheckpointRequest>,
    ) -> Result<Response<PutCheckpointResponse>, Status> {
        let large = prost::Message::encoded_len(request.get_ref()) > self.cluster.options.most_bytes;
        let act = |tenant: &str, asked| match large {
            true => Err(Status::internal("Internal error")),
            false => self.cluster.put_checkpoint(tenant, asked),
        };
        self.call(Method::PutCheckpoint, request, act).await
    }

    async fn get_checkpoint(&self, request: Request<CheckpointId>) -> Result<Response<Checkpoint>, Status> {
        let act = |tenant: &str, asked| self.cluster.get_checkpoint(tenant, &asked);
        self.call(Method::GetCheckpoint, request, act).await
    }

    async fn get_task_run(&self, request: Request<TaskRunId>) -> Result<Response<TaskRun>, Status> {
        let act = |tenant: &str, asked| self.cluster.get_task_run(tenant, &asked);
        self.call(Method::GetTaskRun, request, act).await
    }

    async fn get_server_version(&self, request: Request<()>) -> Result<Response<LittleHorseVersion>, Status> {
        let (major_version, minor_version, patch) = self.cluster.options.version;
        let version = LittleHorseVersion {
            major_version,
            minor_version,
            patch_version: Some(patch),
            pre_release_identifier: None,
        };
        self.call(Method::GetServerVersion, request, |_, ()| Ok(version)).await
    }
}

fn any_too_large(size: usize) -> Status {
    Status::resource_exhausted(format!("gRPC message exceeds maximum size {ANY_MESSAGE}: {size}"))
}

/// What a report that is too large becomes.
fn instead(report: ReportTaskRun) -> ReportTaskRun {
    let error = LhTaskError {
        r#type: crate::proto::LhErrorType::VarMutationError as i32,
        message: "the report was too large".to_owned(),
    };
    ReportTaskRun {
        status: TaskStatus::TaskOutputSerdeError as i32,
        result: Some(report_task_run::Result::Error(error)),
        log_output: None,
        ..report
    }
}

/// The metadata without what belongs to gRPC itself.
fn words(metadata: &MetadataMap) -> BTreeMap<String, String> {
    let ours = |key: &str| {
        !(key.starts_with("grpc-")
            || matches!(key, "te" | "content-type" | "accept-encoding" | "content-length"))
    };
    let pair = |entry: KeyAndValueRef<'_>| match entry {
        KeyAndValueRef::Ascii(key, value) => {
            (key.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        }
        KeyAndValueRef::Binary(key, value) => (key.to_string(), format!("{value:?}")),
    };
    metadata.iter().map(pair).filter(|(key, _)| ours(key)).collect()
}

/// How long the caller means to wait: digits and a unit.
fn deadline(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let count: u64 = digits.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(count * 3600)),
        "M" => Some(Duration::from_secs(count * 60)),
        "S" => Some(Duration::from_secs(count)),
        "m" => Some(Duration::from_millis(count)),
        "u" => Some(Duration::from_micros(count)),
        "n" => Some(Duration::from_nanos(count)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_have_units() {
        let of = |text: &'static str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", tonic::metadata::MetadataValue::from_static(text));
            deadline(&metadata)
        };
        assert_eq!(of("30S"), Some(Duration::from_secs(30)));
        assert_eq!(of("29998m"), Some(Duration::from_millis(29998)));
        assert_eq!(of("1H"), Some(Duration::from_secs(3600)));
        assert_eq!(of("S"), None);
        assert_eq!(of("3x"), None);
        assert_eq!(deadline(&MetadataMap::new()), None);
    }
}
