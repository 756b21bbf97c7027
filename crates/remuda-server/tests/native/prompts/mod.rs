//! `/prompt`, `/queue`, `/history`, `/interrupt`, `/free`, `/api/jobs`.

mod lists;
mod renders;
mod submit;
