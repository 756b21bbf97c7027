//! Finding the page in what somebody names.

use std::path::{Path, PathBuf};

/// Where the page is within a folder that is named: the files themselves, the Python package, or where it is installed.
const WITHIN: [&str; 3] = ["", "static", "comfyui_frontend_package/static"];

/// There is no page in the folder.
#[derive(Debug, thiserror::Error)]
#[error(
    "there is no ComfyUI frontend in {}: neither it nor its folder `static` has an index.html; \
     name the folder of the Python package comfyui-frontend-package", .0.display()
)]
pub struct NoFrontend(PathBuf);

/// The folder with `index.html` in or below the one that is named.
///
/// # Errors
/// When there is none.
pub fn frontend_folder(named: &Path) -> Result<PathBuf, NoFrontend> {
    let folders = WITHIN.iter().map(|within| named.join(within));
    folders
        .into_iter()
        .find(|folder| folder.join("index.html").is_file())
        .ok_or_else(|| NoFrontend(named.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_found_in_its_folder_its_package_and_where_it_is_installed() {
        let dir = tempfile::tempdir().unwrap();
        let static_files = dir.path().join("comfyui_frontend_package/static");
        std::fs::create_dir_all(&static_files).unwrap();
        let error = frontend_folder(dir.path()).unwrap_err().to_string();
        assert!(error.contains("index.html") && error.contains(&dir.path().display().to_string()), "{error}");
        std::fs::write(static_files.join("index.html"), "page").unwrap();
        for named in [dir.path(), &dir.path().join("comfyui_frontend_package"), &static_files] {
            assert_eq!(
                frontend_folder(named).unwrap().canonicalize().unwrap(),
                static_files.canonicalize().unwrap()
            );
        }
    }
}
