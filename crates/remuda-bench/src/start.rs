//! From the start of the process until `/ready` says yes.

use std::path::Path;

use anyhow::Result;

use crate::programs::Server;
use crate::store::{Kind, Place};
use crate::table::{Row, Sample};

const GROUP: &str = "start of remuda serve until ready";

pub(crate) async fn measure(folder: &Path, times: usize) -> Result<Vec<Row>> {
    let (mut first, mut again) = (Vec::new(), Vec::new());
    for time in 0..times {
        let data = folder.join(format!("start-{time}"));
        for starts in [&mut first, &mut again] {
            let server = Server::start(&data, None, &[]).await?;
            starts.push(server.ready.as_secs_f64() * 1e3);
            server.stop().await?;
        }
    }
    let Place::Server(cluster) = Place::new(Kind::Postgres, folder, false).await? else {
        anyhow::bail!("PostgreSQL is a server")
    };
    let (mut first_postgres, mut again_postgres) = (Vec::new(), Vec::new());
    for time in 0..times.div_ceil(3) {
        let data = folder.join(format!("start-postgres-{time}"));
        let store = cluster.database().await?;
        for starts in [&mut first_postgres, &mut again_postgres] {
            let server = Server::start(&data, Some(&store), &[]).await?;
            starts.push(server.ready.as_secs_f64() * 1e3);
            server.stop().await?;
        }
    }
    let (first, again) = (Sample::new(first), Sample::new(again));
    let (first_postgres, again_postgres) = (Sample::new(first_postgres), Sample::new(again_postgres));
    Ok(vec![
        Row::at_most(GROUP, "SQLite, new data directory, median", first.median(), "ms", 300.0),
        Row::fact(GROUP, "SQLite, new data directory, slowest", first.largest(), "ms"),
        Row::at_most(GROUP, "SQLite, again, median", again.median(), "ms", 300.0),
        Row::fact(GROUP, "SQLite, again, slowest", again.largest(), "ms"),
        Row::at_most(GROUP, "PostgreSQL, again, median", again_postgres.median(), "ms", 300.0),
        Row::fact(
            GROUP,
            "PostgreSQL, first start on an empty database, median",
            first_postgres.median(),
            "ms",
        ),
    ])
}
