"""The command provider with real programs: their input, and how each possible answer is handled."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from fairlead.core.config import parse_config
from fairlead.pools.command import CommandProvider
from fairlead.pools.provider import Join, Machine, PoolKind, ProviderError
from tests.until import until

POOL = {"node": {"cpu": 0.5, "memory": "1Gi"}, "labels": {"zone": "a"}, "taints": ["spot"]}


def invite(partition: str, pool: str, names: Sequence[str]) -> dict[str, str]:
    return {name: f"fj_{partition}-{pool}-{name}" for name in names}


def provider(tmp_path: Path, script: str, timeout: float = 60.0) -> CommandProvider:
    (tmp_path / "cloud.py").write_text(script)
    settings = dict(parse_config({"partitions": {"p": {"pools": {"w": POOL}}}})["p"].pools)["w"]
    kind = PoolKind("p", "w", settings, Join(lambda: "http://127.0.0.1:1", invite, lambda partition, names: None))
    return CommandProvider(kind, [sys.executable, str(tmp_path / "cloud.py")], timeout)


def problem(work: Any) -> ProviderError:
    with pytest.raises(ProviderError) as raised:
        asyncio.run(work)
    return raised.value


def test_what_it_is_given(tmp_path: Path) -> None:
    script = f"import sys; open({str(tmp_path / 'asked')!r}, 'a').write(sys.argv[1] + ' ' + sys.stdin.read() + '\\n')"
    cloud = provider(tmp_path, script + "\nif sys.argv[1] == 'list': print('{\"machines\": []}')")
    asyncio.run(cloud.create(["w-1-0", "w-1-1"]))
    asyncio.run(cloud.destroy(["w-1-0"]))
    assert asyncio.run(cloud.list()) == ()
    said = [line.split(" ", 1) for line in (tmp_path / "asked").read_text().splitlines()]
    assert {what: json.loads(document) for what, document in said} == {
        "create": {
            "partition": "p",
            "pool": "w",
            "names": ["w-1-0", "w-1-1"],
            "node": {"resources": {"cpu": 0.5, "memory": 2**30}, "labels": {"zone": "a"}, "taints": ["spot"]},
            "join": {"url": "http://127.0.0.1:1", "tokens": {"w-1-0": "fj_p-w-w-1-0", "w-1-1": "fj_p-w-w-1-1"}},
        },
        "destroy": {"partition": "p", "pool": "w", "names": ["w-1-0"]},
        "list": {"partition": "p", "pool": "w"},
    }


def test_list(tmp_path: Path) -> None:
    machines = [{"name": "w-1-0", "note": "i-1", "zone": "a"}, {"name": "w-1-1"}]
    cloud = provider(tmp_path, f"print({json.dumps({'machines': machines})!r})")
    assert asyncio.run(cloud.list()) == (Machine("w-1-0", "i-1"), Machine("w-1-1"))


@pytest.mark.parametrize(
    ("script", "names", "unknown", "said"),
    [
        ('print(\'{"failed": {"w-1-1": "no more of them"}}\')', ("w-1-1",), False, "w-1-1: no more of them"),
        ("import sys; sys.exit('the cloud is closed')", (), False, "create ended with code 1: the cloud is closed"),
        ("import os; os.kill(os.getpid(), 9)", (), False, "create ended with code -9"),
        ("print('{')", (), True, "docs/pools.md has the form"),
        ("print('[1]')", (), True, "docs/pools.md has the form"),
        ("print('{\"failed\": [1]}')", (), True, "docs/pools.md has the form"),
        ("import time; time.sleep(600)", (), True, "create took longer than 0.5 s"),
    ],
)
def test_what_it_may_answer(tmp_path: Path, script: str, names: tuple[str, ...], unknown: bool, said: str) -> None:
    slow = "sleep" in script
    raised = problem(provider(tmp_path, script, 0.5 if slow else 60.0).create(["w-1-0", "w-1-1"]))
    assert (raised.names, raised.unknown) == (names, unknown)
    assert said in str(raised)


def test_what_takes_too_long_is_ended(tmp_path: Path) -> None:
    script = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    cloud = provider(tmp_path, script, 5.0)
    assert problem(cloud.create(["w-1-0"])).unknown
    pid = int((tmp_path / "pid").read_text())
    with suppress(psutil.NoSuchProcess):
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_long_complaint_is_cut(tmp_path: Path) -> None:
    raised = problem(provider(tmp_path, "import sys; sys.exit('x' * 100000 + 'the end')").create(["w-1-0"]))
    assert len(str(raised)) < 1000 and "the end" in str(raised)


def test_list_needs_machines(tmp_path: Path) -> None:
    assert problem(provider(tmp_path, "print('{}')").list()).unknown
    assert problem(provider(tmp_path, 'print(\'{"machines": [{"name": "../x"}]}\')').list()).unknown


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    cloud = provider(tmp_path, "")
    cloud._command = ("/nonexistent/cloud",)
    raised = problem(cloud.create(["w-1-0"]))
    assert (raised.names, raised.unknown) == (("w-1-0",), False)
    assert "/nonexistent/cloud: it cannot be run: No such file" in str(raised)


def test_what_it_leaves_running_is_not_waited_for(tmp_path: Path) -> None:
    """A machine that is a child of the program, and keeps its output open."""
    flag = tmp_path / "flag"
    script = f"import subprocess; subprocess.Popen(['sh', '-c', 'while [ ! -e {flag} ]; do sleep 0.05; done'])"
    began = time.monotonic()
    try:
        asyncio.run(provider(tmp_path, script, 600.0).create(["w-1-0"]))
        assert time.monotonic() - began < 300
    finally:
        flag.touch()
