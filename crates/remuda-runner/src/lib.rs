//! The loop that drives one ComfyUI: claim, place, submit, watch, collect, report.
