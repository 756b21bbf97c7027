"""Renders a workflow with comfykit and keeps the pictures.

Arguments: address of the server, workflow file, folder for the pictures, "http" or "websocket".
Prints one JSON object per line: {"progress": n, "of": m} and {"file": name}.
"""

import asyncio
import json
import logging
import pathlib
import sys
import urllib.parse
import urllib.request

from comfykit import ComfyKit
from comfykit.logger import logger


class Progress(logging.Handler):
    """The client tells of what it receives only in its log."""

    def emit(self, record):
        text = record.getMessage()
        start = text.find('{"type": "progress",')
        if start >= 0:
            data = json.loads(text[start:])["data"]
            print(json.dumps({"progress": data["value"], "of": data["max"]}), flush=True)


def main():
    address, workflow, folder, way = sys.argv[1:]
    logger.setLevel(logging.DEBUG)
    logger.addHandler(Progress(logging.DEBUG))
    kit = ComfyKit(comfyui_url=address, executor_type=way)
    result = asyncio.run(kit.execute(workflow, {}))
    if result.status != "completed":
        sys.exit(f"comfykit says {result.status}: {result.msg}")
    for url in result.images:
        name = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["filename"][0]
        with urllib.request.urlopen(url, timeout=30) as answer:
            pathlib.Path(folder, name).write_bytes(answer.read())
        print(json.dumps({"file": name}), flush=True)


main()
