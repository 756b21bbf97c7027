//! Remuda over HTTP: tasks, events, files, workers, keys.
