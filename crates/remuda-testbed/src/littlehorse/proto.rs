//! The messages as they go over the wire, generated from `proto/workflows.proto`.
#![allow(missing_docs, unreachable_pub, dead_code, clippy::all)]

include!("proto/generated.rs");
