//! `/prompt`, `/queue`, `/history`, `/interrupt`, `/free`, `/api/jobs`.

mod renders;
mod submit;
