//! `/sim/*`: what tests in other processes use in the place of the handle.

use super::reply::Reply;
use crate::faults::{Fault, FaultKind};
use crate::host::{Command, Deed, Host};
use bytes::Bytes;
use http::header::HeaderValue;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::{Value, json};
use tokio::sync::oneshot;

/// Far more than any script of faults.
const SCRIPT: usize = 1024 * 1024;

/// Answers a control request.
pub(crate) async fn serve(host: &Host, request: Request<Incoming>) -> Reply {
    // A page from elsewhere has no business here, whatever CORS says for the rest.
    if (request.headers().contains_key(header::ORIGIN) && !same_origin(&request))
        || !addressed_by_number(&request)
    {
        return Reply::empty(StatusCode::FORBIDDEN);
    }
    let path = request.uri().path().to_owned();
    match (request.method(), path.as_str()) {
        (&Method::GET, "/sim/stats") => match serde_json::to_value(host.executions.snapshot()) {
            Ok(stats) => answer(StatusCode::OK, &stats),
            Err(_) => Reply::trouble(),
        },
        (&Method::GET, "/sim/timeline") => {
            answer(StatusCode::OK, &json!({"executions": host.executions.spans()}))
        }
        (&Method::GET, "/sim/faults") => answer(StatusCode::OK, &listed(host)),
        (&Method::POST, "/sim/faults") => match read(request).await {
            Ok(faults) => {
                let ids: Vec<_> = faults.into_iter().map(|fault| host.faults.add(fault)).collect();
                answer(StatusCode::OK, &json!({"added": ids}))
            }
            Err(error) => answer(StatusCode::BAD_REQUEST, &json!({"error": error})),
        },
        (&Method::DELETE, "/sim/faults") => {
            host.faults.clear();
            answer(StatusCode::OK, &json!({"faults": []}))
        }
        (&Method::POST, "/sim/reset") => {
            let (done, finished) = oneshot::channel();
            let command = Command { deed: Deed::Reset, done: Some(done) };
            if host.commands.send(command).await.is_err() || finished.await.is_err() {
                return Reply::trouble();
            }
            answer(StatusCode::OK, &json!({"reset": true}))
        }
        (_, "/sim/stats" | "/sim/timeline" | "/sim/faults" | "/sim/reset") => {
            Reply::raise(StatusCode::METHOD_NOT_ALLOWED)
        }
        _ => {
            let routes = "there are GET /sim/stats, GET /sim/timeline, GET, POST and DELETE /sim/faults, and POST /sim/reset";
            answer(StatusCode::NOT_FOUND, &json!({"error": routes}))
        }
    }
}

/// A page can give its own name to this address, but not make the browser send a number instead of that name.
fn addressed_by_number(request: &Request<Incoming>) -> bool {
    let Some(host) = request.headers().get(header::HOST).and_then(|value| value.to_str().ok()) else {
        return true;
    };
    let name =
        host.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(host, |(name, _)| name);
    name.eq_ignore_ascii_case("localhost")
        || name.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>().is_ok()
}

fn same_origin(request: &Request<Incoming>) -> bool {
    let text = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let origin = text(header::ORIGIN).and_then(|origin| origin.split_once("//")).map(|(_, host)| host);
    origin.is_some() && origin == text(header::HOST)
}

fn listed(host: &Host) -> Value {
    let fault = |report: crate::faults::FaultReport| {
        json!({
            "id": report.id,
            "fault": report.fault.to_json(),
            "hits": report.hits,
            "active": report.active,
        })
    };
    json!({"faults": host.faults.list().into_iter().map(fault).collect::<Vec<_>>()})
}

/// The faults of a request: one object or a list of them. Either all of them are taken or none.
async fn read(request: Request<Incoming>) -> Result<Vec<Fault>, String> {
    let body = Limited::new(request.into_body(), SCRIPT).collect().await;
    let body: Bytes = body.map_err(|error| format!("cannot read the body: {error}"))?.to_bytes();
    let script: Value =
        serde_json::from_slice(&body).map_err(|error| format!("the body is no JSON: {error}"))?;
    let objects = match script {
        Value::Array(objects) => objects,
        one => vec![one],
    };
    let fault = |(index, object)| {
        let fault = Fault::from_json(object).map_err(|error| format!("fault {index}: {error}"))?;
        check_way_back(&fault).map_err(|error| format!("fault {index}: {error}"))?;
        Ok(fault)
    };
    objects.into_iter().enumerate().map(fault).collect()
}

/// What shuts the door must say when it opens again, because nobody could come in to open it.
fn check_way_back(fault: &Fault) -> Result<(), &'static str> {
    match fault.kind() {
        FaultKind::Crash { down: None } => {
            Err("crash needs the field `down_ms` here, because nothing could revive it")
        }
        FaultKind::Refuse if !fault.ends() => {
            Err("refuse needs the field `for_ms` here, because nothing could remove it")
        }
        _ => Ok(()),
    }
}

fn answer(status: StatusCode, value: &Value) -> Reply {
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    Reply::bytes(status, json, Bytes::from(value.to_string()))
}
