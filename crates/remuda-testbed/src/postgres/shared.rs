//! One server for all tests of a process.

use super::cluster::{Cluster, Options};
use super::error::Error;
use super::server::Server;
use tokio::sync::OnceCell;

/// The environment variable that names a server to use instead of a private cluster.
///
/// Databases made there, all called `remuda_test_…`, stay when the tests have ended.
pub const GIVEN: &str = "REMUDA_TEST_POSTGRES";

enum Shared {
    Given(Server),
    Own(Cluster),
}

static SHARED: OnceCell<Shared> = OnceCell::const_new();

impl Cluster {
    /// The server that all tests of this process share: the one that [`GIVEN`] names, else a cluster that is
    /// started by the first who asks and removed when the process ends.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), remuda_testbed::postgres::Error> {
    /// let url = remuda_testbed::postgres::Cluster::shared().await?.database().await?;
    /// # Ok(()) }
    /// ```
    pub async fn shared() -> Result<&'static Server, Error> {
        // A static is never dropped: the cluster's keeper removes it when the process is gone.
        let shared = SHARED.get_or_try_init(async || match std::env::var(GIVEN) {
            Ok(url) if !url.is_empty() => Server::at(&url).map(Shared::Given),
            _ => Cluster::start(Options::default()).await.map(Shared::Own),
        });
        Ok(match shared.await? {
            Shared::Given(server) => server,
            Shared::Own(cluster) => cluster.server(),
        })
    }
}

/// The address of a fresh, empty database on the [shared](Cluster::shared) server.
pub async fn database() -> Result<String, Error> {
    Cluster::shared().await?.database().await
}
