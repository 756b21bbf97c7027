//! The messages as they go over the wire, generated from `proto/littlehorse.proto`.
#![allow(missing_docs, unreachable_pub, clippy::all)]

include!("proto/generated.rs");
