//! `/prompt`, `/queue`, `/history`, `/interrupt`, `/free`, `/api/jobs`.
