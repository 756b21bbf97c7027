//! Calls of the functions with which the releases before write to PostgreSQL.

use std::collections::HashMap;

use tokio_postgres::Client;

/// Calls a function with these arrays, the others empty, as those releases do for what they have nothing of.
/// `parameters`: how many they know it to have.
pub(crate) async fn call(client: &Client, function: &str, parameters: usize, given: &[(&str, String)]) {
    let given: HashMap<&str, &String> = given.iter().map(|(name, value)| (*name, value)).collect();
    let ask = format!(
        "SELECT u.name, format_type(u.kind, NULL) FROM pg_proc p, unnest(p.proargnames[1:p.pronargs], \
         p.proargtypes::oid[]) WITH ORDINALITY AS u(name, kind, n) \
         WHERE p.oid = '{function}'::regproc ORDER BY u.n"
    );
    let rows = client.query(&ask, &[]).await.expect("the function is there");
    assert_eq!(rows.len(), parameters);
    let mut known = 0;
    let values: Vec<String> = rows
        .iter()
        .map(|row| {
            let (name, kind): (String, String) = (row.get(0), row.get(1));
            let value = given.get(name.as_str()).inspect(|_| known += 1);
            let empty = if kind == "smallint" { "0" } else { "'{}'" };
            format!("{}::{kind}", value.map_or(empty, |value| value.as_str()))
        })
        .collect();
    assert_eq!(known, given.len(), "every name is one of its parameters");
    let call = format!("SELECT * FROM {function}({})", values.join(", "));
    client.batch_execute(&call).await.expect("it writes");
}
