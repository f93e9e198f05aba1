#!/usr/bin/env python3
"""A template for your own provider: a "cloud" of machines that are agents on this machine.

    pools:
      burst: {node: {cpu: 1, memory: 256Mi}, max: 4, idle_for: 1min, provider: {command: [./mycloud.py]}}

Fairlead calls the script with the argument create, destroy or list and a JSON document on standard input, and reads a
JSON document from standard output. The script may be killed at any time, and may be asked for the same machines again:
existing machines are not created twice. For a real cloud, `create` starts a machine that is tagged with its name and
runs `fairlead agent` with the same options, `destroy` ends the machines with these tags, and `list` lists the machines
with the tags of this partition and pool.
"""

import fcntl
import getpass
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

CLOUD = Path(os.environ.get("MYCLOUD") or Path.home() / ".mycloud")
FAIRLEAD = os.environ.get("MYCLOUD_FAIRLEAD", "fairlead")


def create(request, folder):
    failed = {}
    for name in request["names"]:
        home = folder / name
        if processes_of(home):
            continue
        home.mkdir(parents=True, exist_ok=True)
        node, join = request["node"], request["join"]
        with open(os.open(home / "join-token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(join["tokens"][name])  # admits this machine once
        command = [FAIRLEAD, "agent", f"--directory={home}", f"--join={join['url']}"]
        # On a real machine the agent starts as root without these options, and accepts tasks of all users.
        command += [f"--for={getpass.getuser()}", *["--user=root"] * (os.geteuid() == 0)]
        command += [f"--token-file={home / 'join-token'}", f"--name={name}"]
        command += [f"--partition={request['partition']}", f"--pool={request['pool']}"]
        command += [f"--resource={resource}={amount}" for resource, amount in node["resources"].items()]
        command += [f"--label={key}={value}" for key, value in node["labels"].items()]
        command += [f"--taint={taint}" for taint in node["taints"]]
        try:
            with open(home / "agent.log", "ab") as log:
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        except OSError as problem:
            failed[name] = f"the agent cannot be started: {problem}"
    return {"failed": failed}


def destroy(request, folder):
    failed = {}
    for name in request["names"]:
        deadline = time.monotonic() + 10
        while running := processes_of(folder / name):
            if time.monotonic() > deadline:
                failed[name] = f"processes {running} do not end"
                break
            for process in running:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)  # the machine is idle: no task needs a clean end
            time.sleep(0.05)
    return {"failed": failed}


def list_machines(request, folder):
    homes = sorted(folder.iterdir()) if folder.is_dir() else []
    return {"machines": [{"name": home.name, "note": str(home)} for home in homes if processes_of(home)]}


def processes_of(home):
    """Return the processes that have a machine's directory, or a path below it, among their arguments."""
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_text(errors="replace").split("\0")
            except OSError:
                continue  # the process has ended
            if any(word == f"--directory={home}" or word.startswith(f"{home}/") for word in arguments):
                processes.append(int(entry.name))
    return processes


def main():
    request = json.load(sys.stdin)
    CLOUD.mkdir(parents=True, exist_ok=True)
    with open(CLOUD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an earlier call may still run if its server was killed
        operation = {"create": create, "destroy": destroy, "list": list_machines}[sys.argv[1]]
        print(json.dumps(operation(request, CLOUD / request["partition"] / request["pool"])))


if __name__ == "__main__":
    main()
