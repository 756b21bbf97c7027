//! Where outputs and uploads live: a local directory or an object store, streamed both ways.
