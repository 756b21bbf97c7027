//! `/ws`, as ComfyUI's clients use it.

mod manners;
mod many;
mod peer;
mod trouble;
mod whole;
