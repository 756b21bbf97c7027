//! Which route a request means, decided as aiohttp's router decides it.

use crate::config::Profile;
use percent_encoding::percent_decode_str;
use std::collections::BTreeSet;

/// Everything that has a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Route {
    Websocket,
    Root,
    Prompt,
    Submit,
    Queue,
    ChangeQueue,
    Interrupt,
    History,
    HistoryOf,
    ChangeHistory,
    Free,
    Jobs,
    Job,
    UploadImage,
    UploadMask,
    View,
    ViewMetadata,
    SystemStats,
    Features,
    ObjectInfo,
    ObjectInfoOf,
    Models,
    ModelsOf,
    Embeddings,
    Extensions,
    Users,
    AddUser,
    Settings,
    Setting,
    ChangeSettings,
    ChangeSetting,
    ListUserdata,
    ListUserdataV2,
    GetUserdata,
    PutUserdata,
    DeleteUserdata,
    MoveUserdata,
    Translations,
    WorkflowTemplates,
    Subgraphs,
    Subgraph,
    ModelFolders,
    ModelFiles,
    ModelPreview,
    Logs,
    RawLogs,
    SubscribeLogs,
    FolderPaths,
    Files,
}

/// What the router says.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Found {
    /// A route, with the decoded variable parts of its path.
    Route(Route, Vec<String>),
    /// No route: a GET that may mean a static file.
    Static,
    /// No route below `/internal`, which has no static files.
    Nothing,
    /// The path exists, with these methods.
    WrongMethod(String),
}

/// Method, path, route, and the first version that has it. All exist a second time below `/api`; `/api/jobs`
/// has no shorter form because it is spelt that way here. `{}` is one part of a path, `{*}` is all that follows.
const ROUTES: &[(&str, &str, Route, Profile)] = {
    use Profile::{V0_3_30 as OLD, V0_3_64, V0_7_0};
    use Route as R;
    &[
        ("GET", "/ws", R::Websocket, OLD),
        ("GET", "/", R::Root, OLD),
        ("GET", "/prompt", R::Prompt, OLD),
        ("POST", "/prompt", R::Submit, OLD),
        ("GET", "/queue", R::Queue, OLD),
        ("POST", "/queue", R::ChangeQueue, OLD),
        ("POST", "/interrupt", R::Interrupt, OLD),
        ("GET", "/history", R::History, OLD),
        ("GET", "/history/{}", R::HistoryOf, OLD),
        ("POST", "/history", R::ChangeHistory, OLD),
        ("POST", "/free", R::Free, OLD),
        ("GET", "/api/jobs", R::Jobs, V0_7_0),
        ("GET", "/api/jobs/{}", R::Job, V0_7_0),
        ("POST", "/upload/image", R::UploadImage, OLD),
        ("POST", "/upload/mask", R::UploadMask, OLD),
        ("GET", "/view", R::View, OLD),
        ("GET", "/view_metadata/{}", R::ViewMetadata, OLD),
        ("GET", "/system_stats", R::SystemStats, OLD),
        ("GET", "/features", R::Features, V0_3_64),
        ("GET", "/object_info", R::ObjectInfo, OLD),
        ("GET", "/object_info/{}", R::ObjectInfoOf, OLD),
        ("GET", "/models", R::Models, OLD),
        ("GET", "/models/{}", R::ModelsOf, OLD),
        ("GET", "/embeddings", R::Embeddings, OLD),
        ("GET", "/extensions", R::Extensions, OLD),
        ("GET", "/users", R::Users, OLD),
        ("POST", "/users", R::AddUser, OLD),
        ("GET", "/settings", R::Settings, OLD),
        ("GET", "/settings/{}", R::Setting, OLD),
        ("POST", "/settings", R::ChangeSettings, OLD),
        ("POST", "/settings/{}", R::ChangeSetting, OLD),
        ("GET", "/userdata", R::ListUserdata, OLD),
        ("GET", "/v2/userdata", R::ListUserdataV2, V0_3_64),
        ("GET", "/userdata/{}", R::GetUserdata, OLD),
        ("POST", "/userdata/{}", R::PutUserdata, OLD),
        ("DELETE", "/userdata/{}", R::DeleteUserdata, OLD),
        ("POST", "/userdata/{}/move/{}", R::MoveUserdata, OLD),
        ("GET", "/i18n", R::Translations, OLD),
        ("GET", "/workflow_templates", R::WorkflowTemplates, OLD),
        ("GET", "/global_subgraphs", R::Subgraphs, V0_7_0),
        ("GET", "/global_subgraphs/{}", R::Subgraph, V0_7_0),
        ("GET", "/experiment/models", R::ModelFolders, OLD),
        ("GET", "/experiment/models/{}", R::ModelFiles, OLD),
        ("GET", "/experiment/models/preview/{}/{}/{*}", R::ModelPreview, OLD),
    ]
};

/// Below `/internal` only, without a form below `/api`.
const INTERNAL: &[(&str, &str, Route, Profile)] = {
    use Profile::V0_3_30 as OLD;
    use Route as R;
    &[
        ("GET", "/internal/logs", R::Logs, OLD),
        ("GET", "/internal/logs/raw", R::RawLogs, OLD),
        ("PATCH", "/internal/logs/subscribe", R::SubscribeLogs, OLD),
        ("GET", "/internal/folder_paths", R::FolderPaths, OLD),
        ("GET", "/internal/files/{}", R::Files, OLD),
    ]
};

/// Finds the route of a request. `path` is still encoded.
pub(crate) fn find(profile: Profile, method: &str, path: &str) -> Found {
    let path = normal(path);
    let internal = path == "/internal" || path.starts_with("/internal/");
    let table = if internal { INTERNAL } else { ROUTES };
    let short = path.strip_prefix("/api").filter(|rest| rest.starts_with('/') && !internal);
    let mut allowed = BTreeSet::new();
    for (of_method, pattern, route, since) in table {
        if profile < *since {
            continue;
        }
        let matched = matches(pattern, &path).or_else(|| matches(pattern, short?));
        let Some(params) = matched else { continue };
        if method == *of_method || (method == "HEAD" && *of_method == "GET") {
            return Found::Route(*route, params);
        }
        allowed.insert(*of_method);
        if *of_method == "GET" {
            allowed.insert("HEAD");
        }
    }
    if !internal {
        // The static files lie below `/`, so every path can be asked for.
        if matches!(method, "GET" | "HEAD") {
            return Found::Static;
        }
        allowed.extend(["GET", "HEAD"]);
    }
    if allowed.is_empty() {
        return Found::Nothing;
    }
    Found::WrongMethod(allowed.into_iter().collect::<Vec<_>>().join(","))
}

/// Resolves the escapes of letters that need none, as every path is compared after that.
fn normal(path: &str) -> String {
    let mut normal = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        normal.push_str(&rest[..at]);
        let escape = rest.get(at..at + 3).unwrap_or(&rest[at..]);
        let byte = escape.get(1..3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => normal.push(byte.into()),
            _ => normal.push_str(escape),
        }
        rest = &rest[at + escape.len()..];
    }
    normal.push_str(rest);
    normal
}

fn matches(pattern: &str, path: &str) -> Option<Vec<String>> {
    let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
    let mut params = Vec::new();
    let mut rest = path;
    for part in pattern.split('/').skip(1) {
        rest = rest.strip_prefix('/')?;
        if part == "{*}" {
            params.push(decode(rest));
            return Some(params);
        }
        let (segment, after) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        match part {
            "{}" if segment.is_empty() || segment.contains(['{', '}']) => return None,
            "{}" => params.push(decode(segment)),
            fixed if fixed != segment => return None,
            _ => {}
        }
        rest = after;
    }
    rest.is_empty().then_some(params)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Profile = Profile::V0_7_0;

    fn route(method: &str, path: &str) -> Found {
        find(NOW, method, path)
    }

    #[test]
    fn routes_are_found_with_and_without_prefix() {
        let plain = |route| Found::Route(route, vec![]);
        assert_eq!(route("GET", "/prompt"), plain(Route::Prompt));
        assert_eq!(route("HEAD", "/api/prompt"), plain(Route::Prompt));
        assert_eq!(route("POST", "/prompt"), plain(Route::Submit));
        assert_eq!(route("GET", "/"), plain(Route::Root));
        assert_eq!(route("GET", "/api/"), plain(Route::Root));
        assert_eq!(route("GET", "/%71ueue"), plain(Route::Queue));
        assert_eq!(route("GET", "/api/jobs"), plain(Route::Jobs));
        assert_eq!(route("GET", "/jobs"), Found::Static);
        assert_eq!(route("GET", "/queue/"), Found::Static);
        assert_eq!(route("GET", "/api"), Found::Static);
        assert_eq!(find(Profile::V0_3_64, "GET", "/api/jobs"), Found::Static);
        assert_eq!(find(Profile::V0_3_30, "GET", "/features"), Found::Static);
    }

    #[test]
    fn variable_parts_are_decoded_and_never_empty() {
        let with = |route, params: &[&str]| Found::Route(route, params.iter().map(|&p| p.into()).collect());
        assert_eq!(route("GET", "/history/a%2Fb%20c"), with(Route::HistoryOf, &["a/b c"]));
        assert_eq!(route("GET", "/settings/"), Found::Static);
        assert_eq!(route("GET", "/userdata/workflows/a.json"), Found::Static);
        let moved = with(Route::MoveUserdata, &["w/a.json", "b.json"]);
        assert_eq!(route("POST", "/userdata/w%2Fa.json/move/b.json"), moved);
        let preview = with(Route::ModelPreview, &["loras", "0", "a/b.safetensors"]);
        assert_eq!(route("GET", "/experiment/models/preview/loras/0/a/b.safetensors"), preview);
    }

    #[test]
    fn wrong_methods_name_the_right_ones() {
        let wrong = |allowed: &str| Found::WrongMethod(allowed.into());
        assert_eq!(route("POST", "/system_stats"), wrong("GET,HEAD"));
        assert_eq!(route("PUT", "/prompt"), wrong("GET,HEAD,POST"));
        assert_eq!(route("DELETE", "/upload/image"), wrong("GET,HEAD,POST"));
        assert_eq!(route("PUT", "/userdata/x"), wrong("DELETE,GET,HEAD,POST"));
        assert_eq!(route("POST", "/api/jobs/abc/cancel"), wrong("GET,HEAD"));
        assert_eq!(route("GET", "/upload/image"), Found::Static);
        assert_eq!(route("GET", "/internal/logs/subscribe"), wrong("PATCH"));
        assert_eq!(route("PATCH", "/api/internal/logs/subscribe"), wrong("GET,HEAD"));
        assert_eq!(route("GET", "/internal/nosuch"), Found::Nothing);
    }
}
