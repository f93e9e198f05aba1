"""The agent that `fairlead up` runs beside its server. It is restarted if it ends."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from fairlead.cli.agent import FINAL

if TYPE_CHECKING:
    import asyncio

JOIN_TOKEN = "agent-token"
"""File with the join token of the agent. The token can be used once."""
AGENT_NOTE = "the agent that `up` starts"
"""Note of that token, shown by `fairlead token list`."""
ROTATION = 60.0
"""Seconds between two checks of the size of the agent's log."""


async def keep_agent(directory: Path, url: str, options: list[str], joined: asyncio.Event) -> None:
    """Run an agent on this machine until the server stops, and restart it if it ends.

    If the agent can never join, it is not restarted, and `joined` is set so that nothing waits for it.
    """
    import asyncio

    command = [sys.executable, "-P", "-c", "from fairlead.cli import main; main()", "agent", "--join", url]
    command += ["--directory", str(directory / "agent"), "--token-file", str(directory / JOIN_TOKEN), *options]
    pause = 0.1
    while True:
        with (directory / "agent.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=_end_with_parent
            )
        rotating = asyncio.create_task(_rotate(str(directory / "agent.log")))
        try:
            code = await process.wait()
            if code == FINAL:
                cause = (directory / "agent.log").read_text(errors="replace").splitlines()[-1]
                typer.echo(f"{cause}\nfairlead: this machine runs no tasks; mend that and start it again", err=True)
                joined.set()
                return
            said = f"the agent ended with code {code} and is restarted; its log is {directory / 'agent.log'}"
            typer.echo(f"fairlead: {said}", err=True)
        finally:
            rotating.cancel()
            if process.returncode is None:
                with suppress(ProcessLookupError):
                    process.terminate()
                await process.wait()
        await asyncio.sleep(pause)
        pause = min(2 * pause, 5.0)


async def _rotate(path: str) -> None:
    """Limit the size of the agent's log."""
    import asyncio

    from fairlead.agent.spawner.files import rotate

    while True:
        await asyncio.to_thread(rotate, path)
        await asyncio.sleep(ROTATION)


def _end_with_parent() -> None:
    import ctypes

    os.setsid()  # Ctrl-C must reach only the server, which ends the agent itself
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)
