//! The table of all functions over workflows, descriptions of nodes and results: each is run with the input that would
//! cost it most, and must grow with it. tidy (in `cargo xtask test`) refuses a public one that is in no such table.

mod graphs;
mod results;

#[test]
fn everything_over_a_graph_grows_with_it() {
    remuda_testbed::growth::check(&graphs::table());
}

#[test]
fn everything_over_a_result_grows_with_it() {
    remuda_testbed::growth::check(&results::table());
}
