//! Which source wins, what is said when one is wrong, and that the documents are those of the table.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use clap::{CommandFactory, Parser};

use super::flags::Given;
use super::sections::QueueLink;
use super::setting::{Program, Stage};
use super::settings::{Settings, table};
use super::sources::Sources;
use super::values::StoreUrl;
use super::{ClientFlags, ServeFlags, WorkerFlags, describe, file};

#[derive(Debug, Parser)]
struct Serve {
    #[command(flatten)]
    flags: ServeFlags,
}

#[derive(Debug, Parser)]
struct Worker {
    #[command(flatten)]
    flags: WorkerFlags,
}

#[derive(Debug, Parser)]
struct Client {
    #[command(flatten)]
    flags: ClientFlags,
}

/// Loads settings as `remuda serve` would: flags and variables as on a command line, and the text of a file.
fn serve(flags: &str, env: &str, toml: &str) -> Result<Settings, String> {
    let arguments = std::iter::once("serve").chain(flags.split_whitespace());
    load(&Serve::try_parse_from(arguments).map_err(|error| error.to_string())?.flags.0, env, toml)
}

fn worker(flags: &str, env: &str, toml: &str) -> Result<Settings, String> {
    let arguments = std::iter::once("worker").chain(flags.split_whitespace());
    load(&Worker::try_parse_from(arguments).map_err(|error| error.to_string())?.flags.0, env, toml)
}

fn load(flags: &Given, env: &str, toml: &str) -> Result<Settings, String> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    if !toml.is_empty() {
        std::fs::write(dir.path().join("remuda.toml"), toml).expect("a file in it");
    }
    let env: BTreeMap<&str, &str> =
        env.split_whitespace().map(|pair| pair.split_once('=').expect("NAME=VALUE")).collect();
    let sources = Sources { flags, env: &env, dir: dir.path().to_owned() };
    Settings::load(&sources).map_err(|error| error.to_string())
}

/// The value and the origin of a setting, as `remuda config` shows them.
fn shown(settings: &Settings, name: &str) -> (String, String) {
    let entry = settings.found.entries.iter().find(|entry| entry.setting.name == name).expect(name);
    (entry.shown(), entry.origin.to_string())
}

#[test]
fn the_strongest_source_wins() {
    let listen = "[server]\nlisten = \"127.0.0.2:7000\"";
    let store = "[store]\nurl = \"sqlite:file.db\"";
    for (flags, env, toml, name, value, origin) in [
        // The address to listen on, with the names that other systems have for its parts.
        ("", "", "", "server.listen", "127.0.0.1:8080", "default"),
        ("", "", listen, "server.listen", "127.0.0.2:7000", "remuda.toml:2"),
        ("", "PORT=9000", "", "server.listen", "127.0.0.1:9000", "env PORT"),
        ("", "PORT=9000", listen, "server.listen", "127.0.0.2:9000", "env PORT"),
        ("", "PORT=9000 SERVER_PORT=18188", "", "server.listen", "127.0.0.1:18188", "env SERVER_PORT"),
        ("", "SERVER_HOST=0.0.0.0 PORT=9000", "", "server.listen", "0.0.0.0:9000", "env SERVER_HOST, PORT"),
        ("", "SERVER_HOST=::1", listen, "server.listen", "[::1]:7000", "env SERVER_HOST"),
        (
            "",
            "SERVER_HOST=0.0.0.0 SERVER_PORT=1 PORT=2",
            listen,
            "server.listen",
            "0.0.0.0:1",
            "env SERVER_HOST, SERVER_PORT",
        ),
        (
            "",
            "REMUDA_LISTEN=127.0.0.1:5 SERVER_HOST=0.0.0.0 SERVER_PORT=1 PORT=2",
            listen,
            "server.listen",
            "127.0.0.1:5",
            "env REMUDA_LISTEN",
        ),
        (
            "--listen [::1]:6",
            "REMUDA_LISTEN=127.0.0.1:5 PORT=2",
            listen,
            "server.listen",
            "[::1]:6",
            "--listen",
        ),
        // An empty variable is none.
        ("", "PORT= SERVER_HOST=", "", "server.listen", "127.0.0.1:8080", "default"),
        // The rest goes one way.
        ("", "", "", "store.url", "sqlite:remuda-data/remuda.db", "default"),
        ("--data d", "", "", "store.url", "sqlite:d/remuda.db", "default"),
        ("", "", "[server]\ndata = \"d\"", "files.url", "file:d/files", "default"),
        ("", "", store, "store.url", "sqlite:file.db", "remuda.toml:2"),
        ("", "REMUDA_STORE=sqlite:env.db", store, "store.url", "sqlite:env.db", "env REMUDA_STORE"),
        (
            "--store sqlite:flag.db",
            "REMUDA_STORE=sqlite:env.db",
            store,
            "store.url",
            "sqlite:flag.db",
            "--store",
        ),
        ("--output-dir out", "REMUDA_FILES=file:env", "", "files.url", "file:out", "--output-dir"),
        ("--insecure", "REMUDA_INSECURE=0", "", "server.insecure", "true", "--insecure"),
        ("", "REMUDA_INSECURE=yes", "", "server.insecure", "true", "env REMUDA_INSECURE"),
        ("", "LOG_LEVEL=INFO", "[log]\nlevel = \"debug\"", "log.level", "info", "env LOG_LEVEL"),
        ("", "LOG_LEVEL=INFO REMUDA_LOG_LEVEL=trace", "", "log.level", "trace", "env REMUDA_LOG_LEVEL"),
        // What the synchronous handler was told by the names it had elsewhere.
        ("", "DEFAULT_TIMEOUT=300", "", "sync.timeout", "5m", "env DEFAULT_TIMEOUT"),
        (
            "",
            "COMFYUI_SERVER_ADDRESS=127.0.0.1:8188",
            "",
            "workers.comfyui",
            "127.0.0.1:8188",
            "env COMFYUI_SERVER_ADDRESS",
        ),
        ("--sync-limit 7", "REMUDA_SYNC_LIMIT=8", "", "sync.limit", "7", "--sync-limit"),
        (
            "--comfyui http://a:1 --comfyui http://b:2",
            "REMUDA_COMFYUI=http://c:3",
            "",
            "workers.comfyui",
            "http://a:1, http://b:2",
            "--comfyui",
        ),
        (
            "",
            "COMFYUI_SERVER_ADDRESS=gpu:8188",
            "",
            "workers.comfyui",
            "gpu:8188",
            "env COMFYUI_SERVER_ADDRESS",
        ),
        ("", "", "[tasks]\ntimeout = 90", "tasks.timeout", "1m30s", "remuda.toml:2"),
        // Understood before it works.
        ("", "MAX_WORKERS=4", "", "fleet.max_workers", "4", "env MAX_WORKERS"),
        ("", "NOVITA_API_KEY=secret", "", "fleet.novita_api_key", "***", "env NOVITA_API_KEY"),
    ] {
        let settings =
            serve(flags, env, toml).unwrap_or_else(|error| panic!("{flags} {env} {toml}: {error}"));
        let found = shown(&settings, name);
        assert_eq!((found.0.as_str(), found.1.as_str()), (value, origin), "{flags} {env} {toml}");
    }
}

#[test]
fn values_arrive_typed() {
    let toml = "[workers]\ncomfyui = [{ url = \"http://a:1\", labels = [\"gpu=4090\"] }]\nsim = 2\n\
                [server]\ncors_origins = [\"https://example.org/\"]\nbody_limit = \"1MiB\"\n[client]\nkey = \"k-1\"";
    let settings = serve("--retention 1d --drain 0", "", toml).expect("settings that hold");
    assert_eq!(settings.workers.comfyui[0].labels, ["gpu=4090"]);
    assert_eq!(settings.workers.sim, 2);
    assert_eq!(settings.server.cors_origins, ["https://example.org"]);
    assert_eq!(settings.server.body_limit, 1 << 20);
    assert_eq!(settings.store.retention, Duration::from_secs(86_400));
    assert_eq!(settings.tasks.drain, Duration::ZERO);
    assert_eq!(
        (settings.tasks.timeout.as_secs(), settings.tasks.max_retries, settings.tasks.priority),
        (1800, 3, 5)
    );
    assert_eq!(settings.client.key.as_ref().expect("a key").reveal(), "k-1");
    assert!(settings.server.listen.is_loopback());
    let debug = format!("{settings:?}");
    assert!(!debug.contains("k-1"), "a secret in {debug}");
}

#[test]
fn a_wrong_value_names_where_it_stands() {
    for (flags, env, toml, error) in [
        ("", "PORT=http", "", "PORT=http: this is not a port; write a number up to 65535"),
        (
            "",
            "SERVER_HOST=0.0.0.0:80",
            "",
            "SERVER_HOST=0.0.0.0:80: this is not a host; write a name or a number, without a port",
        ),
        (
            "",
            "REMUDA_LEASE=30x",
            "",
            "REMUDA_LEASE=30x: `30x` is not a duration; write one such as 30s, 5m, 1h30m or 7d, or seconds",
        ),
        ("", "REMUDA_PRIORITY=10", "", "REMUDA_PRIORITY=10: 10 is more than 9"),
        ("--task-timeout 0s", "", "", "--task-timeout: 0s is less than 1s"),
        ("--sim many", "", "", "--sim: `many` is not a whole number"),
        (
            "",
            "REMUDA_STORE=mysql://me:pw@host/db",
            "",
            "REMUDA_STORE=mysql://me:***@host/db: `mysql://me:***@host/db` is not a store; write sqlite:PATH or postgres://USER:PASSWORD@HOST/DATABASE",
        ),
        ("", "LOG_FORMAT=xml", "", "LOG_FORMAT=xml: `xml` is none of text, json"),
        (
            "",
            "LOG_LEVEL=loud",
            "",
            "LOG_LEVEL=loud: `loud` is not a log level; write error, warn, info, debug or trace, or info,remuda=debug",
        ),
        ("--comfyui http://a:1 --comfyui http://a:1/", "", "", "--comfyui: http://a:1 is there twice"),
        (
            "--cors-origin example.org",
            "",
            "",
            "--cors-origin: `example.org` is not an origin; write one such as https://example.org, or *",
        ),
        (
            "",
            "REMUDA_SERVER=http://me:pw@host",
            "",
            "REMUDA_SERVER=http://me:***@host: the address has a user or a password in it; give the API key with --key or REMUDA_API_KEY",
        ),
        (
            "",
            "REMUDA_LEASE=x PORT=x",
            "[tasks]\ndrain = \"x\"",
            "remuda.toml:2:9: `tasks.drain`: `x` is not a duration",
        ),
    ] {
        let found = serve(flags, env, toml).expect_err("an error");
        let found =
            found.rsplit_once("/remuda.toml").map_or(found.clone(), |(_, rest)| format!("remuda.toml{rest}"));
        assert!(found.starts_with(error), "{flags} {env} {toml}: {found}");
    }
    let all = serve("", "REMUDA_LEASE=x PORT=x", "[tasks]\ndrain = \"x\"").expect_err("three errors");
    assert!(
        all.contains("REMUDA_LEASE=x: ") && all.contains("PORT=x: ") && all.contains("tasks.drain"),
        "{all}"
    );
    let both = serve("--files file:a --output-dir b", "", "").expect_err("two flags for one thing");
    assert!(both.contains("cannot be used with"), "{both}");
}

#[test]
fn a_file_that_is_named_must_be_there() {
    let error = serve("--config missing.toml", "", "").expect_err("no such file");
    assert!(error.contains("missing.toml (named by --config): "), "{error}");
    let error = serve("", "REMUDA_CONFIG=missing.toml", "").expect_err("no such file");
    assert!(error.contains("missing.toml (named by REMUDA_CONFIG): "), "{error}");
    let settings =
        serve("--config remuda.toml", "REMUDA_CONFIG=missing.toml", "[tasks]\nlease = 5").expect("one file");
    assert_eq!(settings.file.as_deref(), Some(Path::new("remuda.toml")));
    assert_eq!(serve("", "", "").expect("no file").file, None);
}

#[test]
fn what_is_not_for_this_program_does_not_stop_it() {
    let client = load(&Given::none(Program::Client), "PORT=http LOG_LEVEL=warn", "").expect("a client");
    assert_eq!(
        client.warnings,
        ["PORT=http: this is not a port; write a number up to 65535 (not used here)"]
    );
    assert!(load(&Given::none(Program::Client), "REMUDA_SERVER=ftp://x", "").is_err());
    let later = serve("", "MAX_WORKERS=many IMAGE=comfyui", "").expect("what has no effect stops nothing");
    assert_eq!(later.warnings.len(), 2, "{:?}", later.warnings);
    let typo = serve("", "REMUDA_LISTN=127.0.0.1:1 REMUDA_PORT=tcp://10.0.0.1:80 REMUDA_OTHER=1", "")
        .expect("a warning");
    assert_eq!(typo.warnings, ["REMUDA_LISTN is not a variable of Remuda; did you mean REMUDA_LISTEN?"]);
}

#[test]
fn a_worker_reaches_the_queue_by_the_stronger_way() {
    let postgres = "[store]\nurl = \"postgres://h/d\"";
    let store =
        |settings: &Settings| matches!(settings.worker.queue(), Ok(QueueLink::Store(StoreUrl::Postgres(_))));
    for (flags, env, toml, direct) in [
        ("", "", "", false),
        ("", "", postgres, true),
        ("--server http://s:1", "", postgres, false),
        ("", "REMUDA_SERVER=http://s:1", postgres, false),
        ("--store postgres://h/d", "REMUDA_SERVER=http://s:1", "", true),
        ("", "", "[store]\nurl = \"sqlite:a.db\"", false),
    ] {
        let settings = worker(flags, env, toml).expect("settings that hold");
        assert_eq!(store(&settings), direct, "{flags} {env} {toml}: {:?}", settings.worker);
    }
    let settings = worker("--store sqlite:a.db", "", "").expect("only a worker minds");
    let error = settings.worker.queue().expect_err("a file that belongs to the server").to_string();
    assert!(error.contains("--server URL"), "{error}");
    assert!(worker("--source runpod", "", "").expect_err("later").contains("not in this version yet"));
}

#[test]
fn the_table_is_sound() {
    let mut names = BTreeSet::new();
    for setting in table() {
        assert!(names.insert(setting.name), "{} is there twice", setting.name);
        assert!(setting.name.matches('.').count() == 1 && !setting.help.ends_with('.'), "{}", setting.name);
        assert!(setting.env.first().is_some_and(|name| name.starts_with("REMUDA_")), "{}", setting.name);
        for name in setting.env {
            assert!(names.insert(name), "{name} is there twice");
            // Kubernetes makes variables like that for a service named remuda.
            assert!(!name.starts_with("REMUDA_SERVICE_") && !name.starts_with("REMUDA_PORT_8"), "{name}");
        }
        let default = setting.default.replace("{data}", "d");
        assert_eq!(super::resolve::check(setting, &default), Ok(()), "{}", setting.name);
    }
    Serve::command().debug_assert();
    Worker::command().debug_assert();
    Client::command().debug_assert();
}

#[test]
fn a_log_in_a_file_is_for_machines_unless_somebody_says_otherwise() {
    use super::{LogFormat, LogOutput};
    let log = |env: &str| serve("", env, "").map(|settings| (settings.log.output, settings.log.format));
    assert_eq!(log("LOG_OUTPUT=console"), Ok((LogOutput::Stderr, LogFormat::Text)));
    assert_eq!(log("LOG_OUTPUT=a.log"), Ok((LogOutput::File("a.log".into()), LogFormat::Json)));
    assert_eq!(
        log("LOG_OUTPUT=a.log LOG_FORMAT=text"),
        Ok((LogOutput::File("a.log".into()), LogFormat::Text))
    );
    assert_eq!(log("LOG_FORMAT=json"), Ok((LogOutput::Stderr, LogFormat::Json)));
}

#[test]
fn the_example_is_a_file_of_settings() {
    let example = describe::example();
    let read = |text: &str| {
        let mut problems = Vec::new();
        let found = file::parse(Path::new("example.toml"), text, &mut problems);
        assert!(problems.is_empty(), "{problems:?}");
        found.values
    };
    assert!(read(&example).is_empty(), "something is not commented out");
    // A line of help has blanks before its first `=`, a setting has not.
    let setting = |line: &str| line.split_once(" = ").is_some_and(|(key, _)| !key.contains(' '));
    let awake: String = example
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if setting(rest) => format!("{rest}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let found = read(&awake);
    for setting in table().filter(|setting| setting.stage == Stage::Now) {
        assert!(found.contains_key(setting.name), "{} is not in the example", setting.name);
        let default = setting.default.replace("{data}", "remuda-data");
        if !default.is_empty() {
            assert_eq!(found[setting.name].0, default, "{}", setting.name);
        }
    }
    serve("", "", &awake).expect("an example that holds");
}

#[test]
fn the_page_has_the_table() {
    let page = include_str!("../../../../docs/configuration.md");
    let begin = page.find("| setting |").expect("a table");
    let rest = &page[begin..];
    let table = &rest[..rest.find("\n\n").map_or(rest.len(), |end| end + 1)];
    for (number, (there, here)) in table.lines().zip(describe::markdown().lines()).enumerate() {
        assert_eq!(
            there, here,
            "row {number} of docs/configuration.md; `remuda config --markdown` prints the table"
        );
    }
    assert_eq!(
        table,
        describe::markdown(),
        "`remuda config --markdown` prints the table for docs/configuration.md"
    );
}
