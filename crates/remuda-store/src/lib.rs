//! The durable queue: one trait, SQLite and PostgreSQL behind it, one conformance suite.
