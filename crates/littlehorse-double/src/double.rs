//! The double itself.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tonic::{Code, Status};

use crate::access::TokenServer;
use crate::cluster::Cluster;
use crate::fault::Fault;
use crate::host::Host;
use crate::journal::{Journal, Method};
use crate::options::{NewRun, Options};
use crate::proto::{PutTaskDefRequest, TaskDef};
use crate::run::Run;
use crate::service::HostService;

/// A cluster of LittleHorse servers that is none. It stops when it is dropped.
#[derive(Debug)]
pub struct Double {
    cluster: Arc<Cluster>,
    hosts: Vec<Arc<Host>>,
    services: Vec<HostService>,
    tokens: Option<Arc<TokenServer>>,
    tasks: TaskTracker,
    stop: CancellationToken,
    _stop: DropGuard,
}

impl Double {
    /// Starts one on free ports of this machine.
    pub async fn start(options: Options) -> io::Result<Self> {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        let acceptor = options.tls.as_ref().map(|tls| tls.acceptor()).transpose()?;
        let tokens = match options.oauth.clone() {
            Some(oauth) => Some(Arc::new(TokenServer::start(oauth, &tasks, &stop).await?)),
            None => None,
        };
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let hosts: io::Result<Vec<Arc<Host>>> = (0..options.hosts)
            .map(|_| Host::bind(any, acceptor.clone(), options.least_ping).map(Arc::new))
            .collect();
        let hosts = hosts?;
        let addresses: Arc<[SocketAddr]> = hosts.iter().map(|host| host.address).collect();
        let cluster = Cluster::new(options);
        let service = |host| HostService {
            cluster: Arc::clone(&cluster),
            host,
            addresses: Arc::clone(&addresses),
            tokens: tokens.clone(),
            tasks: tasks.clone(),
        };
        let services: Vec<HostService> = (0..hosts.len()).map(service).collect();
        for (host, service) in hosts.iter().zip(&services) {
            host.up(service.clone())?;
        }
        let (timer, ended) = (Arc::clone(&cluster), stop.clone());
        tasks.spawn(async move { timer.keep_time(ended).await });
        let guard = stop.clone().drop_guard();
        Ok(Self { cluster, hosts, services, tokens, tasks, stop, _stop: guard })
    }

    /// Stops, and waits until nothing runs any more.
    pub async fn stop(self) -> io::Result<()> {
        self.stop.cancel();
        for host in &self.hosts {
            host.down().await?;
        }
        self.tasks.close();
        self.tasks.wait().await;
        Ok(())
    }

    /// The port of a host.
    pub fn port(&self, host: usize) -> u16 {
        self.hosts.get(host).map_or(0, |host| host.address.port())
    }

    /// Everything that was said.
    pub fn journal(&self) -> &Journal {
        &self.cluster.journal
    }

    /// The token server, if tokens are checked.
    pub fn tokens(&self) -> Option<&TokenServer> {
        self.tokens.as_deref()
    }

    /// Puts a task where workers get it.
    pub fn schedule(&self, new: NewRun) -> Run {
        let (key, id) = self.cluster.schedule(new);
        Run { cluster: Arc::clone(&self.cluster), key, id }
    }

    /// Registers a TaskDef, as some worker did before.
    pub fn put_task_def(&self, tenant: &str, def: PutTaskDefRequest) -> Result<TaskDef, Status> {
        self.cluster.put_task_def(tenant, def)
    }

    /// How many requests for tasks are parked at a host.
    pub fn parked(&self, host: usize) -> usize {
        self.cluster.state().parked(host)
    }

    /// Waits until this many requests are parked at a host.
    pub async fn until_parked(&self, host: usize, count: usize) {
        self.cluster.until(|state| (state.parked(host) == count).then_some(())).await;
    }

    /// How many connections a host has had.
    pub fn connections(&self, host: usize) -> usize {
        self.hosts.get(host).map_or(0, |host| host.accepted())
    }

    /// How many pings a host has had.
    pub fn pings(&self, host: usize) -> usize {
        self.hosts.get(host).map_or(0, |host| host.pings())
    }

    /// Moves time forward: timeouts, pauses and silent workers are due earlier.
    pub fn advance(&self, by: Duration) {
        self.cluster.clock.advance(by);
        self.cluster.look_at_timers();
    }

    /// Makes the next calls of a method go wrong.
    pub fn inject(&self, method: Method, fault: Fault, times: usize) {
        self.cluster.state().faults.add(method, &fault, times);
    }

    /// Takes back the faults that have not happened.
    pub fn mend(&self) {
        self.cluster.state().faults.clear();
    }

    /// A host is away: it does not listen, and its connections are cut. What it knows, it keeps.
    pub async fn down(&self, host: usize) -> io::Result<()> {
        match self.hosts.get(host) {
            Some(host) => host.down().await,
            None => Ok(()),
        }
    }

    /// A host is back, on the same port.
    pub fn up(&self, host: usize) -> io::Result<()> {
        match self.hosts.get(host).zip(self.services.get(host)) {
            Some((host, service)) => host.up(service.clone()),
            None => Ok(()),
        }
    }

    /// A host listens but does not work yet, as a server does for some seconds after its start; or it works again.
    pub fn set_ready(&self, host: usize, ready: bool) {
        let unready = &mut self.cluster.state().unready;
        match ready {
            true => unready.remove(&host),
            false => unready.insert(host),
        };
    }

    /// Cuts the connections of a host; new ones are welcome.
    pub fn cut(&self, host: usize) {
        self.with(host, Host::cut);
    }

    /// A host sends GOAWAY: new calls want a new connection, those that run go on.
    pub fn goaway(&self, host: usize) {
        self.with(host, Host::goaway);
    }

    /// A host resets its poll streams with CANCEL, as a server does that is told to stop.
    pub fn reset_streams(&self, host: usize) {
        self.with(host, Host::reset);
    }

    /// A host ends its poll streams with a status.
    pub fn end_streams(&self, host: usize, code: Code, text: &str) {
        self.cluster.end_streams(host, &Status::new(code, text));
    }

    fn with(&self, host: usize, act: impl Fn(&Host)) {
        if let Some(host) = self.hosts.get(host) {
            act(host);
        }
    }

    /// Decides which hosts a worker gets; `None` deals them out again.
    pub fn assign(&self, worker: &str, hosts: Option<Vec<usize>>) {
        self.cluster.assign(worker, hosts);
    }

    /// What heartbeats are told of the cluster's health.
    pub fn set_healthy(&self, healthy: Option<bool>) {
        self.cluster.set_healthy(healthy);
    }
}

impl Drop for Double {
    fn drop(&mut self) {
        for host in &self.hosts {
            host.close();
        }
    }
}
