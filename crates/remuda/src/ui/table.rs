//! Columns for people.

use console::{measure_text_width, truncate_str};

use super::line;

/// A table that is as wide as its cells, and no wider than the terminal.
#[derive(Debug)]
pub(crate) struct Table {
    head: Vec<&'static str>,
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&'static str]) -> Self {
        Self { head: head.to_vec(), rows: Vec::new() }
    }

    /// Cells may be coloured; one is missing at most at the end.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The lines, for a terminal of this width.
    fn lines(&self, width: Option<usize>) -> Vec<String> {
        let columns = self.head.len();
        let mut widths: Vec<usize> = self.head.iter().map(|name| measure_text_width(name)).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(measure_text_width(cell));
            }
        }
        let head: Vec<String> =
            self.head.iter().map(|name| console::style(name.to_uppercase()).dim().to_string()).collect();
        let lay = |row: &Vec<String>| {
            let mut text = String::new();
            for (n, cell) in row.iter().enumerate() {
                text.push_str(cell);
                if n + 1 < columns {
                    let gap = widths[n].saturating_sub(measure_text_width(cell)) + 2;
                    text.extend(std::iter::repeat_n(' ', gap));
                }
            }
            let text = text.trim_end();
            width.map_or_else(|| text.to_owned(), |width| truncate_str(text, width, "…").into_owned())
        };
        std::iter::once(&head).chain(&self.rows).map(lay).collect()
    }

    /// Prints it. Lines are cut at the edge of a terminal, and left whole in a pipe.
    pub(crate) fn print(&self) -> anyhow::Result<()> {
        let terminal = console::Term::stdout();
        let width = terminal.is_term().then(|| usize::from(terminal.size().1));
        self.lines(width).iter().try_for_each(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_long_lines_are_cut_only_on_terminals() {
        let mut table = Table::new(&["id", "status", "note"]);
        table.row(vec!["1".into(), "pending".into(), "a note that is rather long".into()]);
        table.row(vec!["22".into(), "ok".into(), String::new()]);
        assert_eq!(
            table.lines(None),
            ["ID  STATUS   NOTE", "1   pending  a note that is rather long", "22  ok"]
        );
        assert_eq!(table.lines(Some(16))[1], "1   pending  a …");
    }
}
