//! One socket to one ComfyUI, and everything watched on it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch as cell};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::ids::{ClientId, PromptId};
use crate::prompt::PromptRequest;
use crate::watch::mailbox::Mailbox;
use crate::watch::service::{Command, Service};
use crate::watch::{GaveUp, Outcome, SessionOptions, Watch, WatchOptions};

/// One websocket to one ComfyUI, shared by any number of watches.
///
/// ```
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let sim = comfyui_sim::Simulator::start(Default::default()).await?;
/// # let url = sim.url();
/// use comfyui::{Client, Event, PromptRequest, Session, Workflow};
///
/// let session = Session::open(Client::new(&url)?, Default::default()).await?;
/// let workflow = Workflow::parse(r#"{
///     "1": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 1122867}},
///     "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "docs/fox"}}
/// }"#)?;
/// let mut watch = session.submit(PromptRequest::new(workflow)).await?;
/// while let Some(event) = watch.next().await {
///     if let Event::Finished(outcome) = event {
///         let success = outcome.into_result(watch.prompt_id())?;
///         let file = success.outputs.files().next().expect("SaveImage leaves a file");
///         assert_eq!(file.subfolder, "docs");
///     }
/// }
/// session.close().await;
/// # sim.shutdown().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Session {
    client: Client,
    commands: mpsc::Sender<Command>,
    client_id: cell::Receiver<ClientId>,
    up: cell::Receiver<bool>,
    buffer: usize,
    tasks: TaskTracker,
    stop: CancellationToken,
    /// The last handle to go stops the tasks.
    _guard: Arc<DropGuard>,
}

impl Session {
    /// Finds out what the server can do, opens a socket (waiting at most [`SessionOptions::greeting`] for it), and keeps one open.
    ///
    /// # Errors
    /// When the server does not answer now. Later absences are survived.
    pub async fn open(client: Client, options: SessionOptions) -> Result<Session> {
        client.capabilities().await?;
        let first_id = options.client_id.clone().unwrap_or_else(ClientId::random);
        let (commands, command_receiver) = mpsc::channel(64);
        let (client_id_sender, client_id) = cell::channel(first_id);
        let (up_sender, mut up) = cell::channel(false);
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        let service =
            Service::new(&client, &options, client_id_sender, up_sender, tasks.clone(), stop.clone());
        tasks.spawn(service.run(command_receiver));
        tasks.close();
        // The server keeps no frames for a socket that is not there yet. Without one we go on all the same, by asking.
        let _ = tokio::time::timeout(options.greeting, up.wait_for(|up| *up)).await;
        Ok(Session {
            client,
            commands,
            client_id,
            up,
            buffer: options.buffer,
            tasks,
            stop: stop.clone(),
            _guard: Arc::new(stop.drop_guard()),
        })
    }

    /// The client it speaks through.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The name that new submissions go out under. It changes when the server stops sending to the old one.
    #[must_use]
    pub fn client_id(&self) -> ClientId {
        self.client_id.borrow().clone()
    }

    /// Whether frames arrive at this moment. Watches go on without.
    #[must_use]
    pub fn is_connected(&self) -> bool {
        *self.up.borrow()
    }

    /// Tells when frames begin or cease to arrive.
    #[must_use]
    pub fn connection(&self) -> cell::Receiver<bool> {
        self.up.clone()
    }

    /// Submits a prompt and follows it. The watch is there before the request leaves, so no frame is missed.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn submit(&self, request: PromptRequest) -> Result<Watch> {
        self.submit_for(request, None).await
    }

    /// As [`Session::submit`]; the watch gives up after `limit`. That does not stop the prompt: see [`Client::cancel`].
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn submit_for(&self, request: PromptRequest, limit: Option<Duration>) -> Result<Watch> {
        self.submit_with(request, WatchOptions { limit, ..WatchOptions::default() }).await
    }

    /// As [`Session::submit`], with options.
    ///
    /// # Errors
    /// As [`Client::submit`].
    pub async fn submit_with(&self, request: PromptRequest, options: WatchOptions) -> Result<Watch> {
        let request = match request.owner() {
            Some(_) => request,
            None => request.client_id(self.client_id()),
        };
        let sent = request.prompt_id().clone();
        if self.stop.is_cancelled() {
            return Err(Error::GaveUp { prompt_id: sent, why: GaveUp::SessionClosed });
        }
        let mut watch = self.register(sent.clone(), options, request.owner().cloned()).await;
        // When it fails, the watch is dropped here, and with it the wish to follow it.
        let accepted = self.client.submit(&request).await?;
        let got = accepted.prompt_id.clone();
        watch.prompt_id = got.clone();
        watch.accepted = Some(accepted);
        self.send(Command::Accepted { sent, got }).await;
        Ok(watch)
    }

    /// Follows a prompt that is already there: submitted earlier, by a process that died, or by somebody else.
    pub async fn watch(&self, id: &PromptId) -> Watch {
        self.watch_for(id, None).await
    }

    /// As [`Session::watch`]; gives up after `limit`.
    pub async fn watch_for(&self, id: &PromptId, limit: Option<Duration>) -> Watch {
        self.watch_with(id, WatchOptions { limit, ..WatchOptions::default() }).await
    }

    /// As [`Session::watch`], with options.
    pub async fn watch_with(&self, id: &PromptId, options: WatchOptions) -> Watch {
        self.register(id.clone(), options, None).await
    }

    async fn register(&self, id: PromptId, options: WatchOptions, owner: Option<ClientId>) -> Watch {
        let limit = options.limit;
        let mailbox = Arc::new(Mailbox::with_raw(self.buffer, options.raw));
        let (done, registered) = oneshot::channel();
        self.send(Command::Watch { id: id.clone(), mailbox: Arc::clone(&mailbox), limit, owner, done }).await;
        if registered.await.is_err() {
            mailbox.finish(Outcome::GaveUp(GaveUp::SessionClosed));
        }
        Watch { prompt_id: id, accepted: None, mailbox }
    }

    async fn send(&self, command: Command) {
        // A closed session finishes its watches itself; there is nobody left to tell.
        let _ = self.commands.send(command).await;
    }

    /// Closes the socket and waits until nothing of it runs any more. Watches end as given up.
    pub async fn close(&self) {
        self.stop.cancel();
        self.tasks.wait().await;
    }
}
