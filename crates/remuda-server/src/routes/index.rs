//! `/`: what there is.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse as _, Response};
use http::{HeaderMap, Method};
use serde::Serialize;
use utoipa::openapi::{Info, License, OpenApi};
use utoipa::{Modify, ToSchema};
use utoipa_axum::router::OpenApiRouter;

use crate::access::ReadCaller;
use crate::dialect::DIALECTS;
use crate::state::AppState;

/// What there is.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct IndexView {
    #[schema(value_type = String)]
    name: &'static str,
    #[schema(value_type = String)]
    version: &'static str,
    /// A page for people.
    #[schema(value_type = String)]
    docs: &'static str,
    /// A description for programs.
    #[schema(value_type = String)]
    openapi: &'static str,
    /// Every route with its methods.
    routes: BTreeMap<String, Vec<String>>,
}

/// What there is.
#[utoipa::path(get, path = "/", tag = "service", responses((status = 200, description = "The routes", body = IndexView)))]
pub(crate) async fn index(
    State(state): State<AppState>,
    _caller: ReadCaller,
    method: Method,
    headers: HeaderMap,
) -> Response {
    if let Some(frontend) = &state.frontend
        && let Some(page) = frontend.page(&method, &headers).await
    {
        return page;
    }
    let mut routes = BTreeMap::new();
    for (path, item) in described().paths.paths {
        let methods =
            [("GET", &item.get), ("POST", &item.post), ("DELETE", &item.delete), ("PUT", &item.put)];
        let methods = methods.into_iter().filter(|(_, operation)| operation.is_some());
        routes.insert(path, methods.map(|(method, _)| method.to_owned()).collect());
    }
    Json(IndexView {
        name: "remuda",
        version: env!("CARGO_PKG_VERSION"),
        docs: "/docs/",
        openapi: "/openapi.json",
        routes,
    })
    .into_response()
}

/// The description of the API, as the code has it.
pub(crate) fn described() -> OpenApi {
    let all = DIALECTS.iter().fold(document(), |all, dialect| all.merge((dialect.routes)()));
    let mut api = all.into_openapi();
    Access.modify(&mut api);
    api
}

fn document() -> OpenApiRouter<crate::state::AppState> {
    let mut info = Info::new("Remuda", env!("CARGO_PKG_VERSION"));
    info.description = Some(
        "One queue in front of many ComfyUIs: submit workflows, follow them, fetch what they made."
            .to_owned(),
    );
    info.license = Some(License::new("Apache-2.0 OR MIT"));
    OpenApiRouter::with_openapi(OpenApi::new(info, utoipa::openapi::Paths::new()))
}

/// How to show who you are.
struct Access;

impl Modify for Access {
    fn modify(&self, api: &mut OpenApi) {
        use utoipa::openapi::security::{
            ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme,
        };
        let components = api.components.get_or_insert_default();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
        let header = ApiKey::Header(ApiKeyValue::new("X-API-Key"));
        components.add_security_scheme("api_key", SecurityScheme::ApiKey(header));
        let none: [&str; 0] = [];
        api.security =
            Some(vec![SecurityRequirement::new("bearer", none), SecurityRequirement::new("api_key", none)]);
    }
}
