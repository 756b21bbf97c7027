//! A folder of somebody's is not emptied because a simulator was pointed at it.

#![allow(clippy::expect_used, reason = "test code")]

use comfyui_sim::{SimConfig, Simulator};

#[tokio::test]
async fn a_temp_folder_with_foreign_files_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("temp/notes.txt");
    std::fs::create_dir_all(file.parent().expect("a folder")).expect("made");
    std::fs::write(&file, "mine").expect("written");
    let config = || SimConfig { base_dir: Some(dir.path().to_owned()), ..SimConfig::default() };
    let error = Simulator::start(config()).await.expect_err("refused");
    let whole = format!("{error} {:?}", std::error::Error::source(&error).map(ToString::to_string));
    assert!(whole.contains("choose another folder"), "{whole}");
    assert_eq!(std::fs::read_to_string(&file).expect("still there"), "mine");

    // Its own folder it empties, as ComfyUI does.
    std::fs::remove_file(&file).expect("removed");
    Simulator::start(config()).await.expect("a simulator").shutdown().await;
    std::fs::write(&file, "left over").expect("written");
    Simulator::start(config()).await.expect("a simulator").shutdown().await;
    assert!(!file.exists());
}
