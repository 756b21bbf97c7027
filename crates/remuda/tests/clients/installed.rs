//! Where the clients are, and how one is started.

use remuda_testbed::process::Program;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The workflow that all of them render.
const WORKFLOW: &str = "workflow.json";

/// A script of ours that calls a client of others.
pub(crate) struct Client {
    command: Command,
    more: Vec<OsString>,
}

impl Client {
    /// `drive.py` of this folder, in the environment of the same name.
    pub(crate) fn python(name: &str, more: &[&str]) -> Client {
        let environment = installation(name, include_requirements(name));
        let mut command = Command::new(environment.join("bin/python"));
        command.arg(scripts().join(name).join("drive.py"));
        Client { command, more: more.iter().map(OsString::from).collect() }
    }

    /// This script of the folder `javascript`.
    pub(crate) fn javascript(name: &str) -> Client {
        Client::node(&scripts().join("javascript").join(format!("{name}.cjs")))
    }

    /// The script that uses ComfyUI's own page.
    pub(crate) fn frontend() -> Client {
        let mut client = Client::node(&scripts().join("frontend/drive.cjs"));
        client.command.env("CHROMIUM", chromium());
        client
    }

    fn node(script: &Path) -> Client {
        let packages = installation("javascript", include_str!("javascript/package-lock.json"));
        let mut command = Command::new("node");
        command.arg(script).env("NODE_PATH", packages.join("node_modules"));
        Client { command, more: Vec::new() }
    }

    /// Runs it against a server; its files go into the folder.
    pub(crate) fn start(mut self, url: &str, out: &Path) -> Program {
        self.command.arg(url).arg(scripts().join(WORKFLOW)).arg(out).args(self.more);
        Program::spawn(self.command).expect("the client starts")
    }
}

/// ComfyUI's page as files.
pub(crate) fn frontend() -> PathBuf {
    let environment = installation("frontend", include_requirements("frontend"));
    let versions = std::fs::read_dir(environment.join("lib")).expect("the environment's libraries").flatten();
    let pages = versions.map(|version| version.path().join("site-packages/comfyui_frontend_package/static"));
    pages.into_iter().find(|page| page.is_dir()).expect("the folder with the page")
}

fn include_requirements(name: &str) -> &'static str {
    match name {
        "comfy-api-simplified" => include_str!("comfy-api-simplified/requirements.txt"),
        "comfykit" => include_str!("comfykit/requirements.txt"),
        "comfy-cli" => include_str!("comfy-cli/requirements.txt"),
        "frontend" => include_str!("frontend/requirements.txt"),
        _ => panic!("there is no list of {name}"),
    }
}

/// The folder of an installation of exactly this list.
fn installation(name: &str, list: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let folder = target.join("clients").join(name);
    let installed = std::fs::read_to_string(folder.join("installed.txt")).unwrap_or_default();
    assert!(installed == list, "{name} is not installed as listed; run `cargo xtask test --only needs`");
    folder
}

fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

fn chromium() -> PathBuf {
    let path = std::env::var_os("PATH").expect("a PATH");
    let mut places = std::env::split_paths(&path).map(|folder| folder.join("chromium"));
    places.find(|file| file.is_file()).expect("chromium; run `cargo xtask test --only needs`")
}
