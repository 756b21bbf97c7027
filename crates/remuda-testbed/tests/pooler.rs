//! The pooler shares server connections between clients, and so takes away what belongs to a session.

use remuda_testbed::postgres::{Cluster, Pooler};
use std::collections::HashSet;
use tokio_postgres::NoTls;

#[tokio::test]
async fn clients_share_connections_and_named_statements_get_lost() {
    let server = Cluster::shared().await.unwrap();
    let pooler = Pooler::start(server).await.unwrap();
    let url = pooler.through(&server.database().await.unwrap()).unwrap();

    let mut clients = Vec::new();
    let mut backends = HashSet::new();
    for _ in 0..20 {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let messages = client.simple_query("SELECT pg_backend_pid()").await.unwrap();
        for message in messages {
            if let tokio_postgres::SimpleQueryMessage::Row(row) = message {
                backends.insert(row.get(0).unwrap().to_owned());
            }
        }
        clients.push(client);
    }
    assert!(backends.len() <= 4, "{} server connections for {} clients", backends.len(), clients.len());

    // While one client holds the server connection on which another has prepared, the other gets a stranger.
    let statement = clients[0].prepare("SELECT 1").await.unwrap();
    clients[1].batch_execute("BEGIN").await.unwrap();
    let lost = clients[0].query(&statement, &[]).await;
    let code = lost.unwrap_err().code().cloned();
    assert_eq!(code, Some(tokio_postgres::error::SqlState::INVALID_SQL_STATEMENT_NAME));
    // Unnamed statements, with their types given, are what works.
    let typed = clients[0].query_typed("SELECT $1::int4", &[(&7, tokio_postgres::types::Type::INT4)]).await;
    assert_eq!(typed.unwrap()[0].get::<_, i32>(0), 7);
}
