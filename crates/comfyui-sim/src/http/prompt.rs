//! Prompts, queue, history, jobs: parsed here, decided by the engine.

use super::call::Call;
use super::reply::Reply;
use crate::json::Json;

/// `GET /prompt`
pub(crate) fn info(call: &Call) -> Reply {
    call.life.engine.prompt_info().into()
}

/// `POST /prompt`
pub(crate) async fn submit(call: &mut Call) -> Reply {
    call.life.log("got prompt");
    let body = match call.json().await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let hold = call.life.sockets.hold();
    Reply::from(call.life.engine.submit(&body)).holding(hold)
}

/// `GET /queue`
pub(crate) fn queue(call: &Call) -> Reply {
    call.life.engine.queue().into()
}

/// `POST /queue`
pub(crate) async fn change_queue(call: &mut Call) -> Reply {
    let body = match call.json().await {
        Ok(body) => body,
        Err(refusal) => return refusal,
    };
    let hold = call.life.sockets.hold();
    Reply::from(call.life.engine.post_queue(&body)).holding(hold)
}

/// `POST /interrupt`: a body that is no JSON counts as none, one that is no text is trouble.
pub(crate) async fn interrupt(call: &mut Call) -> Reply {
    let bytes = match call.bytes().await {
        Ok(bytes) => bytes,
        Err(refusal) => return refusal,
    };
    if std::str::from_utf8(&bytes).is_err() {
        return Reply::trouble();
    }
    let body = Json::parse(&bytes).ok();
    call.life.engine.interrupt(body.as_ref()).into()
}

/// `GET /history`
pub(crate) fn history(call: &Call) -> Reply {
    call.life.engine.history(call.query("max_items"), call.query("offset")).into()
}

/// `GET /history/{id}`
pub(crate) fn history_of(call: &Call) -> Reply {
    call.life.engine.history_one(call.param(0)).into()
}

/// `POST /history`
pub(crate) async fn change_history(call: &mut Call) -> Reply {
    match call.json().await {
        Ok(body) => call.life.engine.post_history(&body).into(),
        Err(refusal) => refusal,
    }
}

/// `POST /free`
pub(crate) async fn free(call: &mut Call) -> Reply {
    match call.json().await {
        Ok(body) => call.life.engine.free(&body).into(),
        Err(refusal) => refusal,
    }
}

/// `GET /api/jobs`
pub(crate) fn jobs(call: &Call) -> Reply {
    call.life.engine.jobs(call.query_pairs()).into()
}

/// `GET /api/jobs/{id}`
pub(crate) fn job(call: &Call) -> Reply {
    call.life.engine.job(call.param(0)).into()
}
