//! A server that answers, whoever runs it.

use super::error::Error;
use tokio_postgres::{Client, NoTls};
use url::Url;
use uuid::Uuid;

/// A PostgreSQL server that makes databases for tests.
#[derive(Debug, Clone)]
pub struct Server {
    url: Url,
}

impl Server {
    /// A server by the address of one of its databases, with a user who may create others.
    pub fn at(url: &str) -> Result<Server, Error> {
        let wrong = |why: String| Error::Address { url: url.to_owned(), why };
        let parsed = Url::parse(url).map_err(|error| wrong(error.to_string()))?;
        if !matches!(parsed.scheme(), "postgres" | "postgresql") {
            return Err(wrong("it does not begin with postgres://".to_owned()));
        }
        Ok(Server { url: parsed })
    }

    /// The address of its maintenance database.
    pub fn url(&self) -> String {
        self.url.to_string()
    }

    /// Creates an empty database with a name that nobody else has, and returns its address.
    pub async fn database(&self) -> Result<String, Error> {
        // By time, so that a list of what is left over somewhere is in order.
        let name = format!("remuda_test_{}", Uuid::now_v7().simple());
        // `template0` has no connections that would refuse to be copied, and nobody's additions.
        self.execute("create a database", &format!("CREATE DATABASE {name} TEMPLATE template0")).await?;
        let mut url = self.url.clone();
        url.set_path(&name);
        Ok(url.to_string())
    }

    /// Runs statements on the maintenance database.
    pub(super) async fn execute(&self, what: &'static str, statements: &str) -> Result<(), Error> {
        let refused = |source| Error::Refused { what, url: self.url(), source };
        let (client, connection) =
            tokio_postgres::connect(self.url.as_str(), NoTls).await.map_err(refused)?;
        let work = async {
            let done = run(&client, statements).await;
            // The connection ends when its client is gone.
            drop(client);
            done
        };
        let (done, _) = tokio::join!(work, connection);
        done.map_err(refused)
    }
}

async fn run(client: &Client, statements: &str) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(statements).await
}
