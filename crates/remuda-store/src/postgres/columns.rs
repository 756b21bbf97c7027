//! Many rows as one statement: each column is one array, which `unnest` turns into rows again.

use postgres_types::{ToSql, Type};

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
