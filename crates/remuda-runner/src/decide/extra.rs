//! What a client sent beside the graph, on its way to ComfyUI.

use std::collections::BTreeMap;

use comfyui::PromptRequest;
use remuda_core::PromptExtra;
use serde_json::value::RawValue;

/// How many bytes it is.
pub(crate) fn size(extra: &PromptExtra) -> usize {
    extra.extra_data.as_ref().map_or(0, |data| data.get().len())
}

/// Adds it as it came. What is no object is left out: ComfyUI itself answers it with a 500.
pub(crate) fn add(request: PromptRequest, extra: Option<&PromptExtra>) -> PromptRequest {
    let Some(extra) = extra else { return request };
    let data = extra.extra_data.as_ref().map(|data| data.get()).unwrap_or_default();
    let mut data: BTreeMap<String, Box<RawValue>> = serde_json::from_str(data).unwrap_or_default();
    // With anything else ComfyUI's list of jobs fails for everybody as long as it remembers the prompt.
    data.retain(|key, value| key != "extra_pnginfo" || value.get().starts_with('{'));
    let request = request.extra_data(data);
    match &extra.targets {
        Some(targets) => request.targets(targets),
        None => request,
    }
}
