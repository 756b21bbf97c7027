//! `/system_stats` and `/features`: the fleet as one machine.

use axum::Json;
use axum::extract::State;
use jiff::Timestamp;
use remuda_core::Worker;
use serde_json::{Value, json};

use super::known::{is_usable, version};
use crate::access::ReadCaller;
use crate::error::ApiResult;
use crate::state::AppState;

/// The version whose API this is: what is said while no worker has told its own.
const DIALECT: &str = "0.7.0";

/// `GET /system_stats`
pub(super) async fn system_stats(State(state): State<AppState>, _: ReadCaller) -> ApiResult<Json<Value>> {
    let workers = state.store.workers().await?;
    let memory = tokio::task::spawn_blocking(memory).await.ok().flatten();
    Ok(Json(described(&workers, memory.unwrap_or_default(), Timestamp::now())))
}

/// The machine is the gateway's, the devices are those of all workers that may get tasks.
fn described(workers: &[Worker], (total, free): (u64, u64), now: Timestamp) -> Value {
    let usable: Vec<&Worker> = workers.iter().filter(|worker| is_usable(worker, now)).collect();
    let lowest = usable.iter().filter_map(|worker| version(worker)).min();
    let lowest = lowest.or_else(|| workers.iter().filter_map(version).min());
    let devices: Vec<Value> = usable.iter().enumerate().map(|(n, worker)| device(n, worker)).collect();
    json!({
        "system": {
            "os": std::env::consts::OS,
            "ram_total": total,
            "ram_free": free,
            "comfyui_version": lowest.map_or_else(|| DIALECT.to_owned(), |version| version.to_string()),
            "python_version": "unknown",
            "pytorch_version": "unknown",
            "embedded_python": false,
            "argv": [],
        },
        "devices": devices,
    })
}

fn device(n: usize, worker: &Worker) -> Value {
    let name = worker.report.device.as_deref().unwrap_or("unknown");
    // `cuda:0 NVIDIA A100 : cudaMallocAsync`, `cpu`
    let kind: String = name.chars().take_while(char::is_ascii_alphanumeric).collect();
    let kind = kind.to_ascii_lowercase();
    let index = if kind == "cpu" { Value::Null } else { json!(n) };
    let (free, total) = worker.report.vram.unwrap_or_default();
    json!({
        "name": format!("{}: {name}", worker.spec.id),
        "type": kind,
        "index": index,
        "vram_total": total,
        "vram_free": free,
        "torch_vram_total": total,
        "torch_vram_free": free,
    })
}

/// Whole and free memory of this machine, in bytes, where the system tells.
fn memory() -> Option<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        kilobytes.checked_mul(1024)
    };
    Some((field("MemTotal:")?, field("MemAvailable:")?))
}

/// What this server can do, for the route and for the websocket.
pub(crate) fn feature_flags(state: &AppState) -> Value {
    json!({"supports_preview_metadata": true, "max_upload_size": state.limits.asset})
}

/// `GET /features`
pub(super) async fn features(State(state): State<AppState>, _: ReadCaller) -> Json<Value> {
    Json(feature_flags(&state))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use remuda_core::{Fence, Health, OwnerId, WorkerId, WorkerReport, WorkerSpec};

    use super::*;

    fn worker(name: &str, health: Health, version: &str, device: &str) -> Worker {
        let now = Timestamp::UNIX_EPOCH;
        Worker {
            spec: WorkerSpec {
                id: WorkerId::new(name).unwrap(),
                endpoint: "http://gpu:8188".to_owned(),
                name: None,
                labels: BTreeSet::new(),
            },
            report: WorkerReport {
                health,
                comfyui_version: Some(version.to_owned()),
                device: Some(device.to_owned()),
                vram: Some((3, 8)),
                ..WorkerReport::default()
            },
            owner: OwnerId(uuid::Uuid::nil()),
            fence: Fence(1),
            until: now,
            created_at: now,
            last_active_at: now,
        }
    }

    #[test]
    fn the_fleet_is_as_old_as_its_oldest_usable_worker() {
        let workers = [
            worker("gpu-1", Health::Healthy, "0.10.0", "cuda:0 NVIDIA A100 : cudaMallocAsync"),
            worker("gpu-2", Health::Busy, "0.7.0", "cpu"),
            worker("gpu-3", Health::Unreachable, "0.3.30", "cuda:0 X"),
        ];
        let found = described(&workers, (2, 1), Timestamp::UNIX_EPOCH);
        assert_eq!(found["system"]["comfyui_version"], "0.7.0");
        let devices = found["devices"].as_array().unwrap();
        let shown: Vec<_> =
            devices.iter().map(|one| (one["name"].as_str().unwrap(), &one["type"], &one["index"])).collect();
        assert_eq!(
            shown,
            [
                ("gpu-1: cuda:0 NVIDIA A100 : cudaMallocAsync", &json!("cuda"), &json!(0)),
                ("gpu-2: cpu", &json!("cpu"), &Value::Null),
            ]
        );
        assert_eq!((&devices[0]["vram_total"], &devices[0]["vram_free"]), (&json!(8), &json!(3)));
        let nobody = described(&workers[2..], (2, 1), Timestamp::UNIX_EPOCH);
        assert_eq!(
            (&nobody["system"]["comfyui_version"], &nobody["devices"]),
            (&json!("0.3.30"), &json!([]))
        );
        assert_eq!(described(&[], (2, 1), Timestamp::UNIX_EPOCH)["system"]["comfyui_version"], DIALECT);
    }
}
