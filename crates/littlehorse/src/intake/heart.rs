//! The heartbeat: it tells the server that we are here, and us which hosts to ask.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::desk::Desk;
use super::{Health, backoff};
use crate::client::Host;
use crate::error::{Error, Result};
use crate::proto;

/// Streams may break as often as they like: two heartbeats are at least so far apart.
const APART: Duration = Duration::from_secs(1);
/// How long an assigned host may take to answer, when the server of the settings is away.
const ELSEWHERE: Duration = Duration::from_secs(5);
/// How often the cluster is asked while it deals its tasks anew.
const REBALANCING: Duration = Duration::from_secs(2);

/// Registers, and goes on registering until the intake ends.
pub(super) async fn beat(desk: Arc<Desk>) {
    let mut failures = 0;
    loop {
        let begun = Instant::now();
        let answer = tokio::select! {
            answer = register(&desk) => answer,
            () = desk.stop.cancelled() => return,
        };
        let heard = heard(&desk, answer, &mut failures);
        let pause = match heard {
            Heard::Assigned => desk.options.heartbeat,
            Heard::Rebalancing => desk.options.heartbeat.min(REBALANCING),
            Heard::Nothing => backoff::failures(failures, rand::random()).min(desk.options.heartbeat),
        };
        let hurried = async {
            desk.hurry.notified().await;
            sleep_until(begun + APART).await;
        };
        tokio::select! {
            () = sleep(pause) => {}
            () = hurried, if heard != Heard::Nothing => {}
            () = desk.stop.cancelled() => return,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Heard {
    Assigned,
    Rebalancing,
    Nothing,
}

/// Takes in what was answered.
fn heard(desk: &Arc<Desk>, answer: Result<proto::RegisterTaskWorkerResponse>, failures: &mut u32) -> Heard {
    let task = &desk.options.task;
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => {
            *failures = failures.saturating_add(1);
            if *failures == 1 {
                tracing::warn!(%task, %error, "the heartbeat failed; it is repeated until it is answered");
            } else {
                tracing::debug!(%task, %error, failures = *failures, "the heartbeat failed again");
            }
            desk.show(Health::Unhealthy(error.to_string()));
            return Heard::Nothing;
        }
    };
    if *failures > 0 {
        tracing::info!(%task, "the server answers heartbeats again");
        *failures = 0;
    }
    let healthy = answer.is_cluster_healthy.unwrap_or(true);
    let hosts: Vec<Host> = answer.your_hosts.iter().filter_map(|host| host_of(task, host)).collect();
    // A cluster that deals anew and names nobody has not decided yet. What we have goes on.
    if healthy || !hosts.is_empty() {
        desk.assign(hosts);
    }
    if !healthy {
        desk.show(Health::Rebalancing);
        return Heard::Rebalancing;
    }
    desk.show(desk.trouble().map_or(Health::Healthy, Health::Unhealthy));
    Heard::Assigned
}

fn host_of(task: &str, host: &proto::LhHostInfo) -> Option<Host> {
    match u16::try_from(host.port) {
        Ok(port) if port > 0 && !host.host.is_empty() => Some(Host { name: host.host.clone(), port }),
        _ => {
            tracing::warn!(task, host = %host.host, port = host.port, "the server names a host that cannot be one");
            None
        }
    }
}

/// Asks the server of the settings; when it is away, the hosts that are assigned.
async fn register(desk: &Desk) -> Result<proto::RegisterTaskWorkerResponse> {
    let away = match desk.client.register_task_worker(&desk.options.task).await {
        Err(error @ Error::Unavailable { .. }) => error,
        answer => return answer,
    };
    for host in desk.hosts() {
        if host != *desk.client.bootstrap()
            && let Some(answer) = register_at(desk, &host).await
        {
            return Ok(answer);
        }
    }
    Err(away)
}

async fn register_at(desk: &Desk, host: &Host) -> Option<proto::RegisterTaskWorkerResponse> {
    let request = proto::RegisterTaskWorkerRequest {
        task_worker_id: desk.client.config().worker_id.clone(),
        task_def_id: Some(proto::TaskDefId { name: desk.options.task.clone() }),
    };
    let mut stub = desk.client.stub(host).await.ok()?;
    let answer = timeout(ELSEWHERE, stub.register_task_worker(request)).await.ok()?;
    answer.ok().map(tonic::Response::into_inner)
}
