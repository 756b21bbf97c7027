//! The description of the API is part of the repository: a change of it is a change that somebody reviews.

use std::path::Path;

/// Run with `REMUDA_BLESS=1` to take over what the code says.
#[test]
fn the_description_is_the_one_that_was_reviewed() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("openapi.json");
    let mut now = remuda_server::openapi();
    // A new version of the crate is no change of the API.
    now["info"]["version"] = "0".into();
    let now = format!("{}\n", serde_json::to_string_pretty(&now).unwrap());
    if std::env::var_os("REMUDA_BLESS").is_some() {
        std::fs::write(&path, &now).unwrap();
    }
    let reviewed = std::fs::read_to_string(&path).unwrap_or_default();
    let first = now.lines().zip(reviewed.lines()).position(|(now, reviewed)| now != reviewed);
    assert!(
        now == reviewed,
        "the API is not as crates/remuda-server/openapi.json says, from line {}: if that is meant, run \
         REMUDA_BLESS=1 cargo test -p remuda-server --test api openapi",
        first.map_or(1, |line| line + 1)
    );
}
