//! ComfyUI's own page, from a folder.

use remuda_core::Scope;
use remuda_server::frontend_folder;
use tempfile::TempDir;

use crate::support::{self, Gateway, Ground};

fn package() -> TempDir {
    let dir = TempDir::new().unwrap();
    let files = dir.path().join("static");
    std::fs::create_dir_all(files.join("assets")).unwrap();
    std::fs::write(files.join("index.html"), "<!doctype html>the page").unwrap();
    std::fs::write(files.join("assets/index-abc.js"), "let x = 1;".repeat(100)).unwrap();
    std::fs::write(files.join("assets/font.woff2"), "font").unwrap();
    std::fs::write(dir.path().join("secret.txt"), "secret").unwrap();
    dir
}

#[tokio::test]
async fn the_page_and_its_files_are_served_beside_the_routes() {
    let dir = package();
    let folder = frontend_folder(dir.path()).unwrap();
    let gateway = Gateway::start_with(|options| options.frontend = Some(folder)).await;
    let page = gateway.get("/").send().await.unwrap();
    assert_eq!(page.headers()["content-type"], "text/html");
    assert!(page.headers()["cache-control"].to_str().unwrap().contains("no-cache"));
    assert_eq!(page.text().await.unwrap(), "<!doctype html>the page");
    let index = gateway.get("/").header("accept", "application/json").send().await.unwrap();
    assert_eq!(support::json(index, 200).await["name"], "remuda");
    let script = gateway.get("/assets/index-abc.js").header("accept-encoding", "gzip").send().await.unwrap();
    assert_eq!(script.headers()["content-type"], "text/javascript");
    assert!(script.headers()["cache-control"].to_str().unwrap().contains("immutable"));
    assert_eq!(
        gateway.get("/assets/font.woff2").send().await.unwrap().headers()["content-type"],
        "font/woff2"
    );
    assert_eq!(gateway.get("/users").send().await.unwrap().status(), 200, "routes come first");
    for path in
        ["/nowhere.js", "/assets", "/assets/", "/%2e%2e/secret.txt", "/..%2fsecret.txt", "/../secret.txt"]
    {
        let answer = gateway.get(path).send().await.unwrap();
        assert_eq!(answer.status(), 404, "{path}");
        assert!(!answer.text().await.unwrap().contains("\nsecret"));
    }
}

#[tokio::test]
async fn with_keys_the_page_needs_one() {
    let dir = package();
    let ground = Ground::new().await;
    let key = ground.key("default", &[Scope::Read]).await;
    let folder = frontend_folder(dir.path()).unwrap();
    let gateway = Gateway::on(ground, |options| options.frontend = Some(folder)).await;
    for path in ["/", "/assets/index-abc.js"] {
        assert_eq!(gateway.get(path).send().await.unwrap().status(), 401, "{path}");
        assert_eq!(gateway.get(path).bearer_auth(&key).send().await.unwrap().status(), 200, "{path}");
    }
}

#[cfg(unix)]
#[tokio::test]
async fn hidden_files_links_that_lead_out_and_endless_names_are_not_there() {
    let dir = package();
    let files = dir.path().join("static");
    std::fs::write(files.join(".env"), "secret").unwrap();
    std::fs::create_dir(files.join(".git")).unwrap();
    std::fs::write(files.join(".git/config"), "secret").unwrap();
    std::os::unix::fs::symlink(dir.path().join("secret.txt"), files.join("assets/out.js")).unwrap();
    std::os::unix::fs::symlink(dir.path(), files.join("assets/up")).unwrap();
    std::os::unix::fs::symlink(files.join("assets/loop.js"), files.join("assets/loop.js")).unwrap();
    std::os::unix::fs::symlink(files.join("assets/index-abc.js"), files.join("assets/within.js")).unwrap();
    let folder = frontend_folder(dir.path()).unwrap();
    let gateway = Gateway::start_with(|options| options.frontend = Some(folder)).await;
    let long = "x".repeat(5_000);
    let deep = "x/".repeat(2_500);
    for path in [
        "/.env",
        "/.git/config",
        "/%2egit/config",
        "/assets/out.js",
        "/assets/up/secret.txt",
        "/assets/loop.js",
        "/assets/index-abc.js/x",
        "/assets/a%00b.js",
        &format!("/assets/{long}.js"),
        &format!("/extensions/{long}.js"),
        &format!("/extensions/{long}/{long}.html"),
        &format!("/extensions/{deep}x.js"),
        &format!("/templates/{long}.json"),
        &format!("/{long}"),
    ] {
        let answer = gateway.get(path).send().await.unwrap();
        assert!(matches!(answer.status().as_u16(), 404 | 422), "{} {path}", answer.status());
        assert_ne!(answer.text().await.unwrap(), "secret", "{path}");
    }
    assert_eq!(gateway.get("/assets/within.js").send().await.unwrap().status(), 200);
}
