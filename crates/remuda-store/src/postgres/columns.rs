//! Many rows as one statement: each column is one array, which `unnest` turns into rows again.

use std::error::Error;

use bytes::BytesMut;
use postgres_types::{IsNull, ToSql, Type, accepts, to_sql_checked};
use serde::Serialize;

use super::session::Param;

/// The parameters of one statement.
#[derive(Debug, Default)]
pub(super) struct Columns<'a> {
    columns: Vec<(Box<dyn ToSql + Sync + Send + 'a>, Type)>,
}

impl<'a> Columns<'a> {
    /// Adds a column, or a single value.
    pub(super) fn with<T: ToSql + Sync + Send + 'a>(mut self, kind: Type, value: T) -> Self {
        self.columns.push((Box::new(value), kind));
        self
    }

    /// As the driver wants them.
    pub(super) fn params(&self) -> Vec<Param<'_>> {
        self.columns
            .iter()
            .map(|(value, kind)| -> Param<'_> { (&**value as &(dyn ToSql + Sync), kind.clone()) })
            .collect()
    }
}

/// Collects one value of each row.
pub(super) fn each<'a, R: 'a, T>(
    rows: impl IntoIterator<Item = &'a R>,
    value: impl Fn(&'a R) -> T,
) -> Vec<T> {
    rows.into_iter().map(value).collect()
}

/// JSON in a column of text: kept byte for byte, and not looked at by the server.
#[derive(Debug)]
pub(super) struct JsonText<T>(pub(super) T);

impl<T: Serialize + std::fmt::Debug> ToSql for JsonText<T> {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        serde_json::to_string(&self.0)?.to_sql(kind, out)
    }

    accepts!(TEXT);

    to_sql_checked!();
}
