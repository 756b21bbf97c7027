//! The committed code is what the schema says. `UPDATE=1` writes it anew.

use std::path::Path;

#[test]
fn the_generated_code_is_current() -> Result<(), Box<dyn std::error::Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema = protox::compile(["workflows.proto"], [root.join("proto")])?;
    let folder = tempfile::tempdir()?;
    tonic_prost_build::configure().build_server(false).out_dir(folder.path()).compile_fds(schema)?;
    let made = std::fs::read_to_string(folder.path().join("littlehorse.rs"))?;
    let committed = root.join("src/littlehorse/proto/generated.rs");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(&committed, &made)?;
    }
    assert!(
        std::fs::read_to_string(&committed)? == made,
        "the schema has changed: run this test with UPDATE=1"
    );
    Ok(())
}
