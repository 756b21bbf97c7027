//! The words of Remuda as types, and every decision about tasks as plain functions.
