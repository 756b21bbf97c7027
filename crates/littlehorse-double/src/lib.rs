//! A test double of a LittleHorse server, for tests and measurements only.
