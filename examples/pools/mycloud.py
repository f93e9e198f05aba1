#!/usr/bin/env python3
"""A provider for Fairlead, to start your own from: a cloud whose machines are agents on this one.

    pools:
      burst: {node: {cpu: 1, memory: 256Mi}, max: 4, idle_for: 1min, provider: {command: [./mycloud.py]}}

Fairlead calls it with create, destroy or list, a JSON document on standard input, and reads one from standard output.
It may be killed at any time, and it may be asked for the same machines again: what is there is not made twice. For a
real cloud, make `create` start a machine that is tagged with its name and runs `fairlead agent` with the same options,
`destroy` end those with these tags, and `list` list those with the tags of this partition and pool.
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


def create(asked, folder):
    failed = {}
    for name in asked["names"]:
        home = folder / name
        if processes_of(home):
            continue
        home.mkdir(parents=True, exist_ok=True)
        node, join = asked["node"], asked["join"]
        with open(os.open(home / "join-token", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(join["tokens"][name])  # it admits this machine, once
        command = [FAIRLEAD, "agent", f"--directory={home}", f"--join={join['url']}"]
        # A real machine starts its agent as root without these, and takes all users.
        command += [f"--for={getpass.getuser()}", *["--user=root"] * (os.geteuid() == 0)]
        command += [f"--token-file={home / 'join-token'}", f"--name={name}"]
        command += [f"--partition={asked['partition']}", f"--pool={asked['pool']}"]
        command += [f"--resource={resource}={amount}" for resource, amount in node["resources"].items()]
        command += [f"--label={key}={value}" for key, value in node["labels"].items()]
        command += [f"--taint={taint}" for taint in node["taints"]]
        try:
            with open(home / "agent.log", "ab") as log:
                subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        except OSError as problem:
            failed[name] = f"the agent cannot be started: {problem}"
    return {"failed": failed}


def destroy(asked, folder):
    failed = {}
    for name in asked["names"]:
        deadline = time.monotonic() + 10
        while running := processes_of(folder / name):
            if time.monotonic() > deadline:
                failed[name] = f"processes {running} do not end"
                break
            for process in running:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)  # it is idle: nothing runs there that should end well
            time.sleep(0.05)
    return {"failed": failed}


def list_machines(asked, folder):
    homes = sorted(folder.iterdir()) if folder.is_dir() else []
    return {"machines": [{"name": home.name, "note": str(home)} for home in homes if processes_of(home)]}


def processes_of(home):
    """The processes that have a machine's directory, or something below it, among their arguments."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_text(errors="replace").split("\0")
            except OSError:
                continue  # it has ended
            if any(each == f"--directory={home}" or each.startswith(f"{home}/") for each in arguments):
                found.append(int(entry.name))
    return found


def main():
    asked = json.load(sys.stdin)
    CLOUD.mkdir(parents=True, exist_ok=True)
    with open(CLOUD / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # an earlier call may go on, if its server was killed
        work = {"create": create, "destroy": destroy, "list": list_machines}[sys.argv[1]]
        print(json.dumps(work(asked, CLOUD / asked["partition"] / asked["pool"])))


if __name__ == "__main__":
    main()
