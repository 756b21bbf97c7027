//! LittleHorse as a source of tasks.
