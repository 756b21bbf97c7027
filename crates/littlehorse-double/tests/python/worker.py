"""A worker with the official SDK, doing what it was recorded to do in each scenario."""

import asyncio
import os
import sys
from typing import Any

import littlehorse
import littlehorse.worker
from littlehorse.config import LHConfig
from littlehorse.exceptions import LHTaskException
from littlehorse.worker import LHTaskWorker, WorkerContext

TASK = "execute-comfyui-workflow"


async def render(workflow: dict[str, Any], ctx: WorkerContext) -> dict[str, Any]:
    ctx.log("submit workflow")
    ctx.log("workflow complete")
    return {"prompt_id": "pid-1", "outputs": ["/outputs/a.png"]}


async def silent(workflow: dict[str, Any]) -> dict[str, Any]:
    return {"prompt_id": "pid-1", "outputs": []}


async def nothing(workflow: dict[str, Any]) -> dict[str, Any]:
    return None  # type: ignore


async def refuse(workflow: dict[str, Any], ctx: WorkerContext) -> dict[str, Any]:
    ctx.log("about to refuse")
    content = littlehorse.to_variable_value({"node": "3"})
    raise LHTaskException("invalid-workflow", "node 3 has no class_type", content)


async def refuse_briefly(workflow: dict[str, Any]) -> dict[str, Any]:
    raise LHTaskException("invalid-workflow", "no content given")


async def fail(workflow: dict[str, Any], ctx: WorkerContext) -> dict[str, Any]:
    ctx.log("before failure")
    raise RuntimeError("ComfyUI unreachable")


async def unprintable(workflow: dict[str, Any]) -> dict[str, Any]:
    return {"x": {1, 2}}


async def sleep(workflow: dict[str, Any], ctx: WorkerContext) -> dict[str, Any]:
    seconds = float(workflow["sleep"])
    ctx.log(f"sleep {seconds}")
    await asyncio.sleep(seconds)
    return {"prompt_id": workflow["id"], "outputs": []}


async def identity(workflow: dict[str, Any], ctx: WorkerContext) -> dict[str, Any]:
    return {
        "idempotency_key": ctx.idempotency_key,
        "attempt": ctx.attempt_number,
        "task_def": ctx.task_def_name,
        "wf_run_id": ctx.wf_run_id.id,
        "parent": ctx.wf_run_id.parent_wf_run_id.id,
        "node_run_position": ctx.node_run_id.position,
        "scheduled_time": str(ctx.scheduled_time),
    }


async def checkpoints(workflow: dict[str, Any], ctx: WorkerContext) -> dict[str, Any]:
    def submit(checkpoint: Any) -> dict[str, Any]:
        checkpoint.log("submitted")
        return {"prompt_id": "pid-1"}

    prompt = await ctx.execute_and_checkpoint(submit)
    if ctx.attempt_number == 0:
        raise RuntimeError("lost after checkpoint")
    second = await ctx.execute_and_checkpoint(lambda checkpoint: "second")
    return {"prompt_id": prompt["prompt_id"], "outputs": [second]}


FUNCTIONS = {
    "success-no-log": silent,
    "success-null-output": nothing,
    "business-exception": refuse,
    "business-exception-no-content": refuse_briefly,
    "unexpected-exception": fail,
    "output-not-serialisable": unprintable,
    "one-thread-three-tasks": sleep,
    "two-threads-four-tasks": sleep,
    "rebalance": sleep,
    "server-restart-busy": sleep,
    "shutdown-busy-short": sleep,
    "worker-context-identity": identity,
    "checkpoints": checkpoints,
}


async def main(scenario: str) -> None:
    # The one thing that is not as released: nobody wants to wait for minutes.
    if "HEARTBEAT" in os.environ:
        littlehorse.worker.HEARTBEAT_INTERVAL_SECONDS = float(os.environ["HEARTBEAT"])
    config = LHConfig()
    function = FUNCTIONS.get(scenario, render)
    if scenario != "taskdef-missing":
        littlehorse.create_task_def(function, TASK, config)
    await littlehorse.start(LHTaskWorker(function, TASK, config))


asyncio.run(main(sys.argv[1]))
