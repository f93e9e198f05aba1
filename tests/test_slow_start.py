"""A server that starts while its database is slow."""

import json
import os
import subprocess
import sys
from pathlib import Path

LEASE = 1
# The first reconcile pass is over and no later one has begun: to the server, its database does not answer.
SLOW = f"""
import time
from fairlead.control.supervisor import Supervisor
start = Supervisor.start
async def slow(self):
    await start(self)
    time.sleep({2 * LEASE})
Supervisor.start = slow
from fairlead.cli import main; main()
"""


def test_a_server_starts_although_its_first_look_took_longer_than_a_lease(tmp_path: Path, database: str) -> None:
    config = tmp_path / "first.yaml"
    config.write_text(json.dumps({"partitions": {"default": {}}}))
    options = ["--data", tmp_path / "data", "--port", "0", "--json", "--config", config, "--lease", f"{LEASE}s"]
    with (tmp_path / "errors").open("wb") as errors:
        server = subprocess.Popen(
            [sys.executable, "-P", "-c", SLOW, "server", "--database", database, *map(str, options)],
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        )
    try:
        assert server.stdout is not None
        line = server.stdout.readline()
        assert line, (tmp_path / "errors").read_text()
        assert json.loads(line)["url"]
    finally:
        server.kill()
        server.wait(60)
