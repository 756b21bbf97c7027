//! ComfyUI's own API, with the whole fleet behind it as if it were one ComfyUI.
//!
//! A prompt that comes in here is a task whose [`remuda_core::Origin`] says so; what its client calls it, and whose it
//! is, is there as well. Everything is scoped to the caller's tenant; frames of the websocket also to the client.
//!
//! ```text
//!  prompts   /prompt /queue /history /interrupt /free /api/jobs     what is to be done, what was done
//!  socket    /ws                                                    what happens, as it happens
//!  files     /view /upload/image /upload/mask                       what goes in and comes out
//!  catalogue /object_info /models /embeddings /extensions …         what the workers have, taken together
//!  user      /users /settings /userdata                             what clients keep here
//!  frontend  /                                                      ComfyUI's own page, from a folder
//! ```

mod catalogue;
mod files;
mod frontend;
pub(crate) mod names;
pub(crate) mod prompts;
mod socket;
mod user;

use axum::Router;
use utoipa_axum::router::OpenApiRouter;

pub(crate) use catalogue::Catalogue;
pub(crate) use frontend::Frontend;
pub use frontend::{NoFrontend, frontend_folder};
pub(crate) use socket::Desk;

use crate::dialect::Dialect;
use crate::state::AppState;

/// ComfyUI's own API.
pub(crate) const DIALECT: Dialect = Dialect {
    routes,
    refusal: None,
    contests: &[],
    key_in_query: |path| {
        let path = path.strip_prefix(AGAIN_BELOW).unwrap_or(path);
        path == socket::SOCKET || path == files::VIEW
    },
    listens: Some(|state| state.desk.has_clients()),
};

/// All routes are there, and again below this.
const AGAIN_BELOW: &str = "/api";

/// All routes, each also below `/api`.
fn routes() -> OpenApiRouter<AppState> {
    let all = || {
        Router::new()
            .merge(prompts::routes())
            .merge(socket::routes())
            .merge(files::routes())
            .merge(catalogue::routes())
            .merge(user::routes())
    };
    Router::new().merge(all()).nest(AGAIN_BELOW, all()).merge(catalogue::bare()).into()
}
