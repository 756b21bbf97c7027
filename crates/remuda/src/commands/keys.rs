//! `remuda keys`: make, list and revoke API keys.
//!
//! Through the socket of the server that runs on the data directory, so that a change counts at once; without such a
//! server, in the store itself.

use std::process::ExitCode;

use anyhow::bail;
use jiff::Timestamp;
use remuda_core::{KeyId, KeyRecord, Scope, Tenant};
use remuda_server::keys_socket::{self, CallError, KeyReply, KeyRequest};
use serde_json::json;

use crate::config::{ServeFlags, Settings, StoreUrl};
use crate::instance::{Owner, open_store};
use crate::ui::{self, Table};

/// What can be set on the command line.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a key; it is shown once. From the first key on, every request needs one.
    Make {
        /// What it is for, in your words
        #[arg(long, default_value = "")]
        name: String,
        /// The tenant whose tasks it sees
        #[arg(long, default_value = "default")]
        tenant: Tenant,
        /// What it allows: submit, read, worker or admin; may be given several times
        #[arg(long = "scope", value_name = "SCOPE", default_values = ["submit", "read"])]
        scopes: Vec<Scope>,
        #[command(flatten)]
        common: Common,
    },
    /// List all keys, including revoked ones; the keys themselves are not stored.
    List {
        #[command(flatten)]
        common: Common,
    },
    /// Revoke a key: it stops working at once.
    Revoke {
        /// The key's id, as `remuda keys list` shows it
        #[arg(value_name = "ID")]
        id: uuid::Uuid,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(Debug, clap::Args)]
struct Common {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: ServeFlags,
}

/// Runs the command.
pub(crate) async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let (request, common) = match args.command {
        Command::Make { name, tenant, scopes, common } => {
            (KeyRequest::Make { name, tenant, scopes: scopes.into_iter().collect() }, common)
        }
        Command::List { common } => (KeyRequest::List, common),
        Command::Revoke { id, common } => (KeyRequest::Revoke { id: KeyId(id) }, common),
    };
    let settings = Settings::load(&common.flags.sources())?;
    match perform(&settings, &request).await? {
        KeyReply::Made { key, record } => made(&key, &record, common.json)?,
        KeyReply::Keys { keys } => list(&keys, common.json)?,
        KeyReply::Revoked { record } if common.json => ui::json(&record)?,
        KeyReply::Revoked { record } => ui::line(format_args!("{} is revoked", record.id))?,
        KeyReply::Refused { error } => bail!(error),
    }
    Ok(ExitCode::SUCCESS)
}

async fn perform(settings: &Settings, request: &KeyRequest) -> anyhow::Result<KeyReply> {
    match keys_socket::call(&settings.server.data, request).await {
        Ok(reply) => return Ok(reply),
        Err(CallError::NotRunning(_)) => {}
        Err(error) => return Err(error.into()),
    }
    // SQLite takes one process; PostgreSQL any number, so there a server elsewhere does not matter.
    let owner = match &settings.store.url {
        StoreUrl::Sqlite(_) => Some(Owner::take(&settings.server.data)?),
        StoreUrl::Postgres(_) => None,
    };
    let id = owner.as_ref().map_or_else(|| remuda_core::OwnerId(uuid::Uuid::new_v4()), |owner| owner.id);
    let store = open_store(settings, id).await?;
    let reply = keys_socket::perform(&*store, request.clone()).await;
    store.close().await;
    Ok(reply?)
}

fn made(key: &str, record: &KeyRecord, json: bool) -> anyhow::Result<()> {
    if json {
        return ui::json(&json!({"key": key, "record": record}));
    }
    ui::line(key)?;
    ui::note(format_args!(
        "Keep it: it is not shown again. Tenant {}, allows {}; revoke it with: remuda keys revoke {}",
        record.tenant,
        scopes(record),
        record.id
    ));
    Ok(())
}

fn list(keys: &[KeyRecord], json: bool) -> anyhow::Result<()> {
    if json {
        return ui::json(&keys);
    }
    if keys.is_empty() {
        ui::note("no keys: only this machine is served; make one with: remuda keys make");
        return Ok(());
    }
    let now = Timestamp::now();
    let mut table = Table::new(&["key", "name", "tenant", "allows", "made", "revoked"]);
    for key in keys {
        table.row(vec![
            key.id.to_string(),
            key.name.clone(),
            key.tenant.to_string(),
            scopes(key),
            ui::ago(key.created_at, now),
            key.revoked_at.map(|moment| ui::ago(moment, now)).unwrap_or_default(),
        ]);
    }
    table.print()
}

fn scopes(key: &KeyRecord) -> String {
    let names: Vec<&str> = key.scopes.iter().map(|scope| scope.as_str()).collect();
    names.join(",")
}
