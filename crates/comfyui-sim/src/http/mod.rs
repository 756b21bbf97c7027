//! The outside: HTTP and websocket with the manners of aiohttp, as recorded.
//!
//! ```text
//!  connection ─▶ service: faults, then ─▶ middleware (origin, CORS, gzip, cache) ─▶ routes ─▶ one handler per route
//!                   │                                                                            │
//!                   └─▶ control (/sim/*), never hit by faults                       Engine, files, Sockets
//! ```
//! A handler gets a [`Call`](call::Call) and gives a [`Reply`](reply::Reply); what both mean on the wire is
//! settled in their files, once.

mod body;
mod call;
mod control;
mod disposition;
mod file;
mod flood;
mod frontend;
mod info;
mod log;
mod mask;
mod middleware;
mod mime;
mod multipart;
mod paths;
mod prompt;
mod reply;
mod routes;
mod service;
mod settings;
mod upload;
mod userdata;
mod view;
mod ws;

pub(crate) use log::Log;
pub(crate) use service::serve;
