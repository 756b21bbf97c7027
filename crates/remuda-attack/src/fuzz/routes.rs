//! Every route there is.

use serde_json::Value;

/// Who may use a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Door {
    /// Submit or read.
    Tenant,
    /// Worker.
    Worker,
    /// Admin.
    Admin,
}

/// A route, with names in braces for what varies.
#[derive(Debug, Clone)]
pub(super) struct Route {
    pub(super) method: String,
    pub(super) path: String,
    /// Parameters of the query that it knows.
    pub(super) query: Vec<String>,
    pub(super) door: Door,
}

/// ComfyUI's own API, which no document describes: method, path, parameters.
const NATIVE: &[(&str, &str, &[&str])] = &[
    ("POST", "/prompt", &[]),
    ("GET", "/prompt", &[]),
    ("GET", "/queue", &[]),
    ("POST", "/queue", &[]),
    ("GET", "/history", &["max_items", "offset"]),
    ("POST", "/history", &[]),
    ("GET", "/history/{prompt}", &[]),
    ("POST", "/interrupt", &[]),
    ("POST", "/free", &[]),
    ("GET", "/api/jobs", &["status", "limit", "offset", "sort_by", "sort_order"]),
    ("POST", "/api/jobs/cancel", &[]),
    ("GET", "/api/jobs/{prompt}", &[]),
    ("POST", "/api/jobs/{prompt}/cancel", &[]),
    ("GET", "/view", &["filename", "type", "subfolder", "preview", "channel"]),
    ("POST", "/upload/image", &[]),
    ("POST", "/upload/mask", &[]),
    ("GET", "/object_info", &[]),
    ("GET", "/object_info/{class}", &[]),
    ("GET", "/models", &[]),
    ("GET", "/models/{folder}", &[]),
    ("GET", "/embeddings", &[]),
    ("GET", "/experiment/models", &[]),
    ("GET", "/experiment/models/{folder}", &[]),
    ("GET", "/experiment/models/preview/{folder}/0/{file}", &[]),
    ("GET", "/view_metadata/{folder}", &["filename"]),
    ("GET", "/system_stats", &[]),
    ("GET", "/features", &[]),
    ("GET", "/extensions", &[]),
    ("GET", "/extensions/{folder}/{file}", &[]),
    ("GET", "/i18n", &[]),
    ("GET", "/workflow_templates", &[]),
    ("GET", "/workflow_templates/{folder}/{file}", &[]),
    ("GET", "/templates/{file}", &[]),
    ("GET", "/global_subgraphs", &[]),
    ("GET", "/global_subgraphs/{file}", &[]),
    ("GET", "/node_replacements", &[]),
    ("GET", "/internal/folder_paths", &[]),
    ("GET", "/internal/files/{kind}", &[]),
    ("GET", "/internal/logs", &[]),
    ("GET", "/internal/logs/raw", &[]),
    ("PATCH", "/internal/logs/subscribe", &[]),
    ("GET", "/users", &[]),
    ("GET", "/settings", &[]),
    ("POST", "/settings", &[]),
    ("GET", "/settings/{setting}", &[]),
    ("POST", "/settings/{setting}", &[]),
    ("GET", "/userdata", &["dir", "recurse", "full_info", "split"]),
    ("GET", "/v2/userdata", &["path"]),
    ("GET", "/userdata/{file}", &[]),
    ("POST", "/userdata/{file}", &["overwrite", "full_info"]),
    ("DELETE", "/userdata/{file}", &[]),
    ("POST", "/userdata/{file}/move/{file}", &["overwrite"]),
    ("GET", "/ws", &["clientId", "token"]),
    ("GET", "/internal/v1/frames/{id}", &["messages"]),
    ("POST", "/internal/v1/frames", &[]),
];

/// What the description of the API says, and ComfyUI's routes with their second form below `/api`.
pub(super) fn all(openapi: &Value) -> Vec<Route> {
    let mut routes = Vec::new();
    for (path, item) in openapi["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            let parameters = operation["parameters"].as_array().into_iter().flatten();
            let query = parameters.filter(|parameter| parameter["in"] == "query");
            let query = query.filter_map(|parameter| parameter["name"].as_str().map(str::to_owned)).collect();
            let door = match path.as_str() {
                path if path.contains("/worker/") => Door::Worker,
                "/metrics" => Door::Admin,
                _ => Door::Tenant,
            };
            routes.push(Route { method: method.to_uppercase(), path: path.clone(), query, door });
        }
    }
    for (method, path, query) in NATIVE {
        let query: Vec<String> = query.iter().map(|&name| name.to_owned()).collect();
        let route =
            Route { method: (*method).to_owned(), path: (*path).to_owned(), query, door: Door::Tenant };
        if !path.starts_with("/api") && !path.starts_with("/internal") && !path.starts_with("/templates") {
            routes.push(Route { path: format!("/api{path}"), ..route.clone() });
        }
        routes.push(route);
    }
    routes
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn described_routes_and_those_of_comfyui_are_there() {
        let openapi = json!({"paths": {"/api/v1/worker/claim": {"post": {}}, "/api/v1/tasks": {"get":
            {"parameters": [{"in": "query", "name": "limit"}, {"in": "header", "name": "x"}]}}}});
        let routes = all(&openapi);
        let tasks = routes.iter().find(|route| route.path == "/api/v1/tasks").unwrap();
        assert_eq!(
            (tasks.method.as_str(), tasks.query.clone(), tasks.door),
            ("GET", vec!["limit".to_owned()], Door::Tenant)
        );
        assert_eq!(routes[1].door, Door::Tenant);
        assert!(routes.iter().any(|route| route.door == Door::Worker));
        assert!(routes.iter().any(|route| route.path == "/api/prompt"));
    }
}
