//! The messages and the service, generated from the schema of the crate `littlehorse`. Nothing else is shared with it.
#![allow(missing_docs, unreachable_pub, clippy::all)]

include!("proto/generated.rs");
