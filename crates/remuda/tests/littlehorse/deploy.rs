//! The examples in `deploy/littlehorse`, as far as they can be checked without a cluster.

use std::path::{Path, PathBuf};
use std::process::Command;

use yaml_rust2::{Yaml, YamlLoader};

use crate::support::text;

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/littlehorse")
}

fn read(name: &str) -> Vec<Yaml> {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    YamlLoader::load_from_str(&text).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every variable that the program knows, from its own table.
fn known() -> String {
    let table = Command::new(env!("CARGO_BIN_EXE_remuda")).args(["config", "--markdown"]).output().unwrap();
    text(&table.stdout)
}

fn names(env: &Yaml) -> Vec<(String, String)> {
    let value = |value: &Yaml| value.as_str().unwrap_or_default().to_owned();
    match env {
        Yaml::Hash(pairs) => {
            pairs.iter().map(|(name, of)| (name.as_str().expect("a name").to_owned(), value(of))).collect()
        }
        Yaml::Array(list) => {
            let name = |item: &Yaml| item["name"].as_str().expect("a name").to_owned();
            list.iter().map(|item| (name(item), value(&item["value"]))).collect()
        }
        other => panic!("{other:?}"),
    }
}

/// The worker accepts these variables: no unknown one among them, and none with a value that makes no sense.
fn check(env: &[(String, String)]) {
    let known = known();
    for (name, _) in env {
        assert!(known.contains(&format!("`{name}`")), "{name} is no setting");
    }
    for needed in ["LHC_API_HOST", "COMFYUI_BASE_URL", "COMFYUI_OUTPUT_DIR"] {
        assert!(env.iter().any(|(name, _)| name == needed), "{needed} is missing");
    }
    // Started with them, the program gets as far as looking for ComfyUI.
    let data = tempfile::tempdir().unwrap();
    let started = Command::new(env!("CARGO_BIN_EXE_remuda"))
        .args(["worker", "--source", "littlehorse", "--data", data.path().to_str().unwrap()])
        .args(["--comfyui", "http://127.0.0.1:1"])
        .envs(env.iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| (name, value)))
        .env("COMFYUI_HEALTH_CHECK_TIMEOUT_SEC", "0")
        .output()
        .unwrap();
    assert!(text(&started.stderr).contains("no ComfyUI answered"), "{}", text(&started.stderr));
}

#[test]
fn the_compose_file_is_sound() {
    let [compose] = read("compose.yaml").try_into().unwrap();
    let services = &compose["services"];
    let worker = &services["worker"];
    check(&names(&worker["environment"]));
    // What the worker calls is advertised under the name of the service.
    let server = names(&services["littlehorse"]["environment"]);
    let advertised = &server.iter().find(|(name, _)| name == "LHS_ADVERTISED_LISTENERS").unwrap().1;
    let worker_env = names(&worker["environment"]);
    let of = |wanted: &str| &worker_env.iter().find(|(name, _)| name == wanted).unwrap().1;
    let called = format!("{}:{}", of("LHC_API_HOST"), of("LHC_API_PORT"));
    assert!(advertised.contains(&called), "{advertised} has no {called}");
    for name in worker["depends_on"].as_vec().unwrap() {
        assert!(!services[name.as_str().unwrap()].is_badvalue(), "{name:?} is no service");
    }
    let volumes = compose["volumes"].as_hash().unwrap();
    for service in ["worker", "comfyui"] {
        for mount in services[service]["volumes"].as_vec().unwrap() {
            let volume = mount.as_str().unwrap().split(':').next().unwrap();
            assert!(volumes.contains_key(&Yaml::String(volume.to_owned())), "{volume} is no volume");
        }
    }
    let dockerfile = worker["build"]["dockerfile"].as_str().unwrap();
    let context = folder().join(worker["build"]["context"].as_str().unwrap());
    assert!(context.join(dockerfile).is_file(), "{dockerfile}");
}

#[test]
fn the_pod_is_sound() {
    let documents = read("kubernetes.yaml");
    let claims: Vec<&str> = documents
        .iter()
        .filter(|document| document["kind"].as_str() == Some("PersistentVolumeClaim"))
        .map(|document| document["metadata"]["name"].as_str().unwrap())
        .collect();
    let set = documents.iter().find(|document| document["kind"].as_str() == Some("StatefulSet")).unwrap();
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(set["spec"]["selector"]["matchLabels"], set["spec"]["template"]["metadata"]["labels"]);
    let mut volumes: Vec<&str> = Vec::new();
    for volume in pod["volumes"].as_vec().unwrap() {
        assert!(
            claims.contains(&volume["persistentVolumeClaim"]["claimName"].as_str().unwrap()),
            "{volume:?}"
        );
        volumes.push(volume["name"].as_str().unwrap());
    }
    let templates = set["spec"]["volumeClaimTemplates"].as_vec().unwrap();
    volumes.extend(templates.iter().map(|template| template["metadata"]["name"].as_str().unwrap()));
    for container in pod["containers"].as_vec().unwrap() {
        for mount in container["volumeMounts"].as_vec().unwrap() {
            assert!(volumes.contains(&mount["name"].as_str().unwrap()), "{mount:?}");
        }
    }
    let worker = pod["containers"]
        .as_vec()
        .unwrap()
        .iter()
        .find(|one| one["name"].as_str() == Some("worker"))
        .unwrap();
    let env: Vec<_> = names(&worker["env"]).into_iter().filter(|(name, _)| name != "REMUDA_DATA").collect();
    check(&env);
    let grace = pod["terminationGracePeriodSeconds"].as_i64().unwrap();
    assert!(grace > 25 + 20, "a drain of 25 s and its last words take longer than {grace} s");
}
