"""Renders a workflow with comfy-api-simplified and keeps the pictures.

Arguments: address of the server, workflow file, folder for the pictures.
Prints one JSON object per line: {"progress": n, "of": m} and {"file": name}.
"""

import asyncio
import json
import logging
import pathlib
import sys

from comfy_api_simplified import ComfyApiWrapper, ComfyWorkflowWrapper


class Progress(logging.Handler):
    """The client tells of what it receives only in its log."""

    def emit(self, record):
        message = record.msg
        if isinstance(message, dict) and message.get("type") == "progress":
            data = message["data"]
            print(json.dumps({"progress": data["value"], "of": data["max"]}), flush=True)


def main():
    address, workflow, folder = sys.argv[1:]
    log = logging.getLogger("comfy_api_simplified")
    log.setLevel(logging.DEBUG)
    log.addHandler(Progress())
    api = ComfyApiWrapper(address)
    workflow = ComfyWorkflowWrapper(workflow)
    # Its one-call way would give us the previews for pictures when the server sends any.
    prompt_id, previews = asyncio.run(api.queue_prompt_and_wait(workflow))
    print(json.dumps({"previews": len(previews)}), flush=True)
    outputs = api.get_history(prompt_id)[prompt_id]["outputs"]
    for image in outputs[workflow.get_node_id("Save Image")]["images"]:
        name = image["filename"]
        content = api.get_image(name, image["subfolder"], image["type"])
        pathlib.Path(folder, name).write_bytes(content)
        print(json.dumps({"file": name}), flush=True)


main()
