"""A conversation of an assistant with a real server, by the protocol's own client. docs/assistants.md shows it.

python tests/assistants/test_conversation.py     writes it into docs/assistants.md
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.live import PROGRAM, Up  # noqa: E402
from tests.test_stranger import plain  # noqa: E402

PAGE = ROOT / "docs" / "assistants.md"
BLOCK = re.compile(r"(<!-- conversation: [^\n]* -->\n\n```text\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)
STAGE: dict[str, Any] = {"command": ["sleep", "600"], "resources": {"cpu": 2}, "time_limit": "1h"}

# What the user says, then the calls of the assistant. CODE is the code of the answer before.
TURNS: tuple[tuple[str, tuple[tuple[str, dict[str, Any]], ...]], ...] = (
    ("May you submit jobs for me?", (("whoami", {}),)),
    (
        "Train on two CPUs for at most an hour. When would that start?",
        (
            ("dry_run", {"name": "train", "stages": [STAGE]}),
            ("submit", {"name": "train", "stages": [STAGE]}),
        ),
    ),
    (
        "And the same once more, please. Why does it not start?",
        (("submit", {"name": "again", "stages": [STAGE]}), ("explain", {"job": "3"})),
    ),
    ("Then stop bob's job, which is older.", (("kill", {"job": "1"}), ("kill", {"job": "1", "confirm": "CODE"}))),
    ("What happened to it?", (("story", {"job": "1"}),)),
)


async def converse(up: Up, token: str) -> str:
    """Have the conversation, and return it as the page shows it."""
    environment = {**up.environment, "FAIRLEAD_URL": up.url, "FAIRLEAD_TOKEN": token}
    shown, code = [], ""
    async with (
        stdio_client(StdioServerParameters(command=PROGRAM, args=["mcp"], env=environment)) as (source, sink),
        ClientSession(source, sink) as session,
    ):
        await session.initialize()
        for wish, calls in TURNS:
            shown.append(f"user       {wish}")
            for name, arguments in calls:
                given = {key: code if value == "CODE" else value for key, value in arguments.items()}
                result = await session.call_tool(name, given)
                answer = result.structured_content
                assert not result.is_error, answer
                shown += [f"assistant  {name} {json.dumps(arguments)}", f"fairlead   {answer['sentence']}"]
                if "confirm" in answer:
                    code = answer["confirm"]
                    shown[-1] = shown[-1].replace(code, "CODE")
            shown.append("")
    return "\n".join(shown[:-1]) + "\n"


def walk(folder: Path) -> str:
    up = Up(folder, "--name", "box", "--resource", "cpu=2", "--resource", "memory=4Gi")
    try:
        up.until("node", "list", said="box")
        bob = {
            **up.environment,
            "FAIRLEAD_TOKEN": up.run("token", "create", "--role", "user", "--user", "bob").split()[0],
        }
        words = [PROGRAM, "submit", "--name", "old", "--cpu", "2", "--", "sleep", "600"]
        subprocess.run(words, env={**bob, "FAIRLEAD_URL": up.url}, check=True, capture_output=True)
        token = up.run("token", "create", "--role", "operator", "--user", "ann", "--confirm").split()[0]
        return anyio.run(converse, up, token)
    finally:
        up.close()


def test_the_page_shows_the_conversation(tmp_path: Path) -> None:
    found = BLOCK.search(PAGE.read_text(encoding="utf-8"))
    assert found, "docs/assistants.md has no conversation"
    assert plain(walk(tmp_path / "data")) == plain(found[2])


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        text = walk(Path(temporary) / "data")
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(BLOCK.sub(lambda found: found[1] + text + found[3], page), encoding="utf-8")
