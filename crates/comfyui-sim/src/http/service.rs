//! From a request to an answer, with everything that may go wrong in between.

use super::body::RequestBody;
use super::call::Call;
use super::reply::{Body, Reply};
use super::routes::{Found, Route, find};
use super::{control, flood, frontend, info, middleware, prompt, settings, upload, userdata, view, ws};
use crate::faults::{After, Before, Plan};
use crate::host::{Command, Deed, Host, Life};
use crate::wire::Control;
use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::header::{self, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::{Frame, Incoming};
use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::sync::Arc;

/// Serves one request of a connection.
pub(crate) async fn serve(
    host: Arc<Host>,
    control: Arc<Control>,
    request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path();
    if path == "/sim" || path.starts_with("/sim/") {
        control.spare(true);
        return Ok(control::serve(&host, request).await.into_response());
    }
    control.spare(false);
    let mut plan = host.faults.plan(request.method().as_str(), path);
    if !plan.delay.is_zero() {
        tokio::time::sleep(plan.delay).await;
    }
    match plan.before.take() {
        None => {}
        Some(Before::Hang) => pending().await,
        Some(Before::Reset) => {
            control.reset();
            pending().await
        }
        Some(Before::HalfOpen) => {
            control.silence();
            pending().await
        }
        Some(Before::Error(status)) => return Ok(error_page(status)),
        Some(Before::Endless(status, bytes)) => return Ok(flood::endless(status, bytes)),
        Some(Before::GzipBomb(bytes)) => return Ok(flood::gzip_bomb(bytes)),
    }
    let Some(life) = host.life() else {
        // The process is going down, and this connection with it.
        return pending().await;
    };
    // As in aiohttp a handler goes on when its client leaves; only the end of the process stops it.
    let work =
        life.ended.clone().run_until_cancelled_owned(answer(host.clone(), life, control.clone(), request));
    let answered = host.tasks.spawn(work).await;
    let reply = match answered {
        Ok(Some(reply)) => reply,
        Ok(None) => return pending().await,
        Err(error) => {
            tracing::error!(%error, "a handler of the simulator panicked");
            Reply::trouble()
        }
    };
    Ok(spoil(&host, &control, plan, reply.into_response()).await)
}

/// What happens to an answer after the request has been processed.
async fn spoil(host: &Host, control: &Control, plan: Plan, response: Response<Body>) -> Response<Body> {
    if !plan.process.is_empty() {
        for fault in plan.process {
            let command = Command { deed: Deed::Fault(fault), done: None };
            // An error means that the simulator stops anyway.
            let _ = host.commands.send(command).await;
        }
        // All of these end the connection.
        return pending().await;
    }
    match plan.after {
        None => response,
        Some(After::Lose) => {
            control.reset();
            pending().await
        }
        Some(After::Error(status)) => error_page(status),
        Some(After::Garbage) => garbage(response).await,
        Some(After::Cut) => cut(response).await,
        Some(After::ObjectInfo(nodes)) => {
            let (parts, body) = response.into_parts();
            flood::object_info(parts, collect(body).await, nodes)
        }
        Some(After::History(bytes)) => {
            let (parts, body) = response.into_parts();
            flood::history(parts, collect(body).await, bytes)
        }
        Some(After::Trickle(delay)) => {
            let (parts, body) = response.into_parts();
            flood::trickle(parts, collect(body).await, delay)
        }
    }
}

fn error_page(status: u16) -> Response<Body> {
    let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Reply::trouble_with(status).into_response()
}

/// The first half of the answer and then bytes that no JSON and no UTF-8 can hold.
async fn garbage(response: Response<Body>) -> Response<Body> {
    let body = collect(response.into_body()).await;
    let mut broken = body[..body.len() / 2].to_vec();
    broken.extend_from_slice(b"\xff{");
    let json = HeaderValue::from_static("application/json; charset=utf-8");
    Reply::bytes(StatusCode::OK, json, broken.into()).into_response()
}

/// The promise of a whole answer, and half of its body.
async fn cut(response: Response<Body>) -> Response<Body> {
    let (mut parts, body) = response.into_parts();
    let body = collect(body).await;
    let half = body.slice(..body.len() / 2);
    parts.headers.remove(header::TRANSFER_ENCODING);
    parts.headers.insert(header::CONTENT_LENGTH, body.len().max(1).into());
    let first = stream::once(async { Ok(Frame::data(half)) });
    let then = stream::once(async {
        // One turn of the connection, in which the first half is sent.
        tokio::task::yield_now().await;
        Err(io::Error::other("cut by a fault"))
    });
    Response::from_parts(parts, StreamBody::new(first.chain(then)).boxed_unsync())
}

async fn collect(body: Body) -> Bytes {
    match body.collect().await {
        Ok(collected) => collected.to_bytes(),
        Err(_) => Bytes::new(),
    }
}

async fn answer(
    host: Arc<Host>,
    life: Arc<Life>,
    control: Arc<Control>,
    request: Request<Incoming>,
) -> Reply {
    let (mut parts, incoming) = request.into_parts();
    let upgrade = parts.extensions.remove::<hyper::upgrade::OnUpgrade>();
    let config = life.config.clone();
    let body = RequestBody::new(incoming, &parts.headers, config.max_upload_bytes);
    let mut call = Call::new(host.clone(), life, parts, body);
    let reply = match middleware::before(&call) {
        Some(reply) => reply,
        None => match find(config.profile, call.parts.method.as_str(), call.path()) {
            Found::Route(Route::Websocket, _) => ws::open(&call, upgrade, control),
            Found::Route(route, params) => {
                call.params = params;
                dispatch(route, &mut call).await
            }
            Found::Static => frontend::static_file(&call).await,
            Found::Nothing => Reply::raise(StatusCode::NOT_FOUND),
            Found::WrongMethod(allowed) => {
                let allowed = HeaderValue::from_str(&allowed).unwrap_or(HeaderValue::from_static(""));
                Reply::raise(StatusCode::METHOD_NOT_ALLOWED).with(header::ALLOW, allowed)
            }
        },
    };
    let accepts_gzip = call.header(header::ACCEPT_ENCODING).is_some_and(|accepted| accepted.contains("gzip"));
    let reply = middleware::after(reply, &config, call.path(), accepts_gzip);
    call.body.drain(&host.tasks);
    reply
}

async fn dispatch(route: Route, call: &mut Call) -> Reply {
    match route {
        Route::Websocket | Route::Root => frontend::root(call).await,
        Route::Prompt => prompt::info(call),
        Route::Submit => prompt::submit(call).await,
        Route::Queue => prompt::queue(call),
        Route::ChangeQueue => prompt::change_queue(call).await,
        Route::Interrupt => prompt::interrupt(call).await,
        Route::History => prompt::history(call),
        Route::HistoryOf => prompt::history_of(call),
        Route::ChangeHistory => prompt::change_history(call).await,
        Route::Free => prompt::free(call).await,
        Route::Jobs => prompt::jobs(call),
        Route::Job => prompt::job(call),
        Route::UploadImage => upload::image(call).await,
        Route::UploadMask => upload::mask(call).await,
        Route::View => view::view(call).await,
        Route::ViewMetadata => info::view_metadata(call),
        Route::SystemStats => info::system_stats(call),
        Route::Features => info::features(call),
        Route::ObjectInfo => info::object_info(call),
        Route::ObjectInfoOf => info::object_info_of(call),
        Route::Models => info::models(call),
        Route::ModelsOf => info::models_of(call),
        Route::Embeddings => info::embeddings(call),
        Route::Extensions => frontend::extensions(call).await,
        Route::Users => settings::users(call),
        Route::AddUser => settings::add_user(call).await,
        Route::Settings => settings::all(call).await,
        Route::Setting => settings::one(call).await,
        Route::ChangeSettings => settings::change_all(call).await,
        Route::ChangeSetting => settings::change_one(call).await,
        Route::ListUserdata => userdata::list(call).await,
        Route::ListUserdataV2 => userdata::list_v2(call).await,
        Route::GetUserdata => userdata::get(call).await,
        Route::PutUserdata => userdata::put(call).await,
        Route::DeleteUserdata => userdata::delete(call).await,
        Route::MoveUserdata => userdata::rename(call).await,
        Route::Translations | Route::WorkflowTemplates | Route::Subgraphs => frontend::nothing(),
        Route::Subgraph => frontend::no_subgraph(),
        Route::ModelFolders => info::model_folders(call),
        Route::ModelFiles => info::model_files(call),
        Route::ModelPreview => info::model_preview(call),
        Route::Logs => info::logs(call),
        Route::RawLogs => info::raw_logs(call),
        Route::SubscribeLogs => info::subscribe_logs(call).await,
        Route::FolderPaths => info::folder_paths(call),
        Route::Files => info::files(call).await,
    }
}
