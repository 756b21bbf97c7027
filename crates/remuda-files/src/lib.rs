#![doc = include_str!("../README.md")]

mod bucket;
mod content;
mod directory;
mod error;
mod files;
mod installation;
mod key;
mod location;
mod trouble;
mod upload;

pub use content::{Content, NotSha256, Sha256, Stored};
pub use error::{BoxError, Error, Result};
pub use files::{Aside, Files, Staged};
pub use key::FileKey;
pub use location::Location;
