"""Renders a workflow with comfy-cli and keeps the pictures.

Arguments: address of the server, workflow file, folder for the pictures.
Prints one JSON object per line: {"progress": n, "of": m} and {"file": name}.
"""

import json
import os
import pathlib
import subprocess
import sys
import urllib.parse
import urllib.request


def main():
    address, workflow, folder = sys.argv[1:]
    server = urllib.parse.urlsplit(address)
    where = ["--host", server.hostname, "--port", str(server.port)]
    comfy = pathlib.Path(sys.executable).with_name("comfy")
    # It keeps notes in the home folder and would otherwise tell its makers of every run.
    environment = {**os.environ, "HOME": folder, "DO_NOT_TRACK": "1", "COMFY_OUTPUT": "ndjson"}
    command = [comfy, "--skip-prompt", "run", "--workflow", workflow, *where, "--wait"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        last = None
        for line in process.stdout:
            last = json.loads(line)
            if last["type"] == "progress":
                print(json.dumps({"progress": last["completed"], "of": last["total"]}), flush=True)
    if process.returncode != 0 or not last["ok"]:
        sys.exit(f"comfy ended with {process.returncode}: {last}")
    for url in last["data"]["outputs"]:
        name = urllib.parse.parse_qs(urllib.parse.urlsplit(url).query)["filename"][0]
        with urllib.request.urlopen(url, timeout=30) as answer:
            pathlib.Path(folder, name).write_bytes(answer.read())
        print(json.dumps({"file": name}), flush=True)


main()
