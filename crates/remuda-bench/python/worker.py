"""A worker as one writes it with the official SDK: submits, waits on the websocket, reads the history.

With CONNECT=once it has one HTTP session and one websocket for its whole life, with CONNECT=each it opens them for each
task, as a function does that stands alone. Nothing of what makes a worker reliable is in here.
"""

import asyncio
import contextlib
import json
import os
import uuid
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import littlehorse
from littlehorse.config import LHConfig
from littlehorse.worker import LHTaskWorker, WorkerContext

COMFYUI = os.environ["COMFYUI_BASE_URL"]
OUTPUT = os.environ["COMFYUI_OUTPUT_DIR"]
TASK = os.environ["LHW_TASK_NAME"]
ONCE = {"once": True, "each": False}[os.environ["CONNECT"]]

Connection = tuple[str, aiohttp.ClientSession, aiohttp.ClientWebSocketResponse]
kept: Connection


@contextlib.asynccontextmanager
async def connect() -> AsyncIterator[Connection]:
    client = uuid.uuid4().hex
    async with aiohttp.ClientSession() as http:
        async with http.ws_connect(f"{COMFYUI}/ws?clientId={client}") as socket:
            yield client, http, socket


async def submit_and_wait(workflow: dict[str, Any], ctx: WorkerContext, connection: Connection) -> dict[str, Any]:
    client, http, socket = connection
    body = {"prompt": workflow, "client_id": client}
    async with http.post(f"{COMFYUI}/prompt", json=body) as answer:
        answer.raise_for_status()
        prompt_id = (await answer.json())["prompt_id"]
    ctx.log(f"submitted {prompt_id}")
    while True:
        frame = await socket.receive()
        if frame.type != aiohttp.WSMsgType.TEXT:
            continue
        message = json.loads(frame.data)
        if message["type"] == "executing":
            data = message["data"]
            if data["node"] is None and data["prompt_id"] == prompt_id:
                break
    async with http.get(f"{COMFYUI}/history/{prompt_id}") as answer:
        answer.raise_for_status()
        entry = (await answer.json())[prompt_id]
    if entry["status"]["status_str"] != "success":
        raise RuntimeError(f"prompt {prompt_id} failed")
    outputs = [
        os.path.join(OUTPUT, item["subfolder"], item["filename"])
        for node in entry["outputs"].values()
        for items in node.values()
        for item in items
        if isinstance(item, dict) and "filename" in item
    ]
    ctx.log("workflow complete")
    return {"prompt_id": prompt_id, "outputs": outputs}


async def render(workflow: dict[str, Any], ctx: WorkerContext) -> dict[str, Any]:
    if ONCE:
        return await submit_and_wait(workflow, ctx, kept)
    async with connect() as connection:
        return await submit_and_wait(workflow, ctx, connection)


async def main() -> None:
    global kept
    config = LHConfig()
    littlehorse.create_task_def(render, TASK, config)
    async with connect() as kept:
        await littlehorse.start(LHTaskWorker(render, TASK, config))


asyncio.run(main())
