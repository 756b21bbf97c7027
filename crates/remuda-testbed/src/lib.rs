//! For tests: private PostgreSQL clusters, processes that are killed with their test, conditions with a deadline.
