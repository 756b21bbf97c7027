//! One call: who we are, how long it may take, what its failure means.

use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Code, Request, Response, Status};

use super::{Client, Host, status};
use crate::error::{Error, Result};
use crate::proto::little_horse_client::LittleHorseClient;

/// The methods of one host, with our headers.
pub(crate) type Stub = LittleHorseClient<InterceptedService<Channel, Headers>>;

/// The largest answer that is read. A task run has the inputs, outputs and logs of all its attempts.
const LARGEST: usize = 64 * 1024 * 1024;
/// The longest wait that a server may ask for at once.
const LONGEST: Duration = Duration::from_secs(60);
/// How long a call waits for its quota altogether.
const PATIENCE: Duration = Duration::from_secs(120);

/// What every call carries.
#[derive(Debug, Clone)]
pub(crate) struct Headers {
    tenant: Option<MetadataValue<Ascii>>,
    token: Option<MetadataValue<Ascii>>,
}

impl Interceptor for Headers {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(tenant) = &self.tenant {
            request.metadata_mut().insert("tenantid", tenant.clone());
        }
        if let Some(token) = &self.token {
            request.metadata_mut().insert("authorization", token.clone());
        }
        Ok(request)
    }
}

impl Client {
    /// The methods of a host, with a token that is good now. For calls of a moment: a stub keeps its token.
    pub(crate) async fn stub(&self, host: &Host) -> Result<Stub> {
        let token = match &self.inner.tokens {
            Some(tokens) => Some(tokens.header().await?),
            None => None,
        };
        let headers = Headers { tenant: self.inner.tenant.clone(), token };
        let channel = self.inner.channels.to(host)?;
        Ok(LittleHorseClient::with_interceptor(channel, headers).max_decoding_message_size(LARGEST))
    }

    /// Lets go of the connection to a host, as one that is not assigned any more. The next call makes a new one.
    pub(crate) fn forget(&self, host: &Host) {
        if *host != self.inner.bootstrap {
            self.inner.channels.forget(host);
        }
    }

    /// What a failed call to a host means. A refused token is not used again: call [`Client::stub`] anew.
    /// `asked` is when that call began.
    pub(crate) fn failure(
        &self,
        host: &Host,
        method: &'static str,
        asked: Instant,
        failed: &Status,
    ) -> Error {
        if let (Code::Unauthenticated, Some(tokens)) = (failed.code(), &self.inner.tokens) {
            tokens.refused(asked);
        }
        let mut error = status::error(method, host, *host != self.inner.bootstrap, failed);
        // The server does not say whom it refuses, and a wrong tenant is the usual reason.
        if let (Error::Refused { code: Code::PermissionDenied, message, .. }, Some(tenant)) =
            (&mut error, &self.config().tenant)
        {
            message.push_str(&format!(" (as tenant {tenant})"));
        }
        error
    }

    /// A question to the host of the settings; when it is away, to the others that are known. Any host answers for all.
    ///
    /// Only for what may be done twice: a host that is away may have done it.
    pub(super) async fn ask<Q, A, F, C>(&self, method: &'static str, request: Q, call: C) -> Result<A>
    where
        Q: Clone,
        C: Fn(Stub, Request<Q>) -> F,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let away = match self.call(self.bootstrap(), method, request.clone(), &call).await {
            Err(error @ Error::Unavailable { .. }) => error,
            other => return other,
        };
        for host in self.inner.channels.known() {
            if host == *self.bootstrap() {
                continue;
            }
            match self.call(&host, method, request.clone(), &call).await {
                Err(Error::Unavailable { .. }) => {}
                other => return other,
            }
        }
        Err(away)
    }

    /// A call with a deadline. A refused token is renewed once, and a quota is waited for if the settings say so.
    pub(super) async fn call<Q, A, F, C>(
        &self,
        host: &Host,
        method: &'static str,
        request: Q,
        call: &C,
    ) -> Result<A>
    where
        Q: Clone,
        C: Fn(Stub, Request<Q>) -> F,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let began = Instant::now();
        loop {
            match self.call_once(host, method, request.clone(), call).await {
                Err(Error::Exhausted { retry_after: Some(wait), .. })
                    if self.config().wait_for_quota && began.elapsed() + wait <= PATIENCE =>
                {
                    let wait = wait.min(LONGEST);
                    tracing::debug!(method, wait_ms = wait.as_millis() as u64, "the quota is used up");
                    sleep(wait).await;
                }
                other => return other,
            }
        }
    }

    /// A call with a deadline. A refused token is renewed once.
    pub(super) async fn call_once<Q, A, F, C>(
        &self,
        host: &Host,
        method: &'static str,
        request: Q,
        call: &C,
    ) -> Result<A>
    where
        Q: Clone,
        C: Fn(Stub, Request<Q>) -> F,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let mut renewed = self.inner.tokens.is_none();
        loop {
            let stub = self.stub(host).await?;
            let deadline = self.config().deadline;
            let mut request = Request::new(request.clone());
            request.set_timeout(deadline);
            let asked = Instant::now();
            // The timeout of the request does not count the time until there is a connection.
            let Ok(answer) = timeout(deadline, call(stub, request)).await else {
                return Err(status::no_answer(host, method, deadline));
            };
            match answer {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(failed) if status::is_deadline(&failed) => {
                    return Err(status::no_answer(host, method, deadline));
                }
                Err(failed) => {
                    let error = self.failure(host, method, asked, &failed);
                    if failed.code() != Code::Unauthenticated || renewed {
                        return Err(error);
                    }
                    renewed = true;
                }
            }
        }
    }
}
