"""A kubeconfig file whose user gets tokens from a program, as for clusters of clouds."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.kubernetes.kubeconfig import ConfigProblem, read_kubeconfig

PLUGIN = """
import json, os, sys
asked = json.loads(os.environ["KUBERNETES_EXEC_INFO"])
count = open(sys.argv[1], "a+"); count.write("."); count.flush(); count.seek(0)
status = {"token": f"{os.environ['WHO']}-{len(count.read())}", "expirationTimestamp": sys.argv[2]}
print(json.dumps({"apiVersion": asked["apiVersion"], "kind": "ExecCredential", "status": status}))
"""


def written(folder: Path, **plugin: Any) -> Path:
    """Write a kubeconfig file with an `exec` plugin."""
    file = folder / "config"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
        "users": [{"name": "u", "user": {"exec": plugin}}],
    }
    file.write_text(yaml.safe_dump(document))
    return file


def token_of(folder: Path, lasts: timedelta) -> Any:
    (folder / "plugin.py").write_text(PLUGIN)
    until = (datetime.now(UTC) + lasts).isoformat()
    arguments = [str(folder / "plugin.py"), str(folder / "count"), until]
    file = written(folder, command=sys.executable, args=arguments, env=[{"name": "WHO", "value": "ann"}])
    return read_kubeconfig(file)[0].token


def test_a_token_is_used_until_it_expires(tmp_path: Path) -> None:
    token = token_of(tmp_path, timedelta(hours=1))
    assert [token(), token()] == ["ann-1", "ann-1"]


def test_an_expired_token_is_not_used(tmp_path: Path) -> None:
    token = token_of(tmp_path, timedelta(seconds=-1))
    assert [token(), token()] == ["ann-1", "ann-2"]


@pytest.mark.parametrize(
    ("plugin", "problem"),
    [
        ({"args": ["x"]}, "command: missing"),
        ({"command": "no-such-program", "installHint": "get it from the cloud"}, "get it from the cloud"),
        ({"command": sys.executable, "args": ["-c", "import sys; sys.exit('log in first')"]}, "log in first"),
        ({"command": sys.executable, "args": ["-c", "print(1)"]}, "no ExecCredential"),
        ({"command": sys.executable, "args": ["-c", f"print({json.dumps(json.dumps({'status': {}}))})"]}, "no token"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, plugin: Any, problem: str) -> None:
    with pytest.raises(ConfigProblem, match=problem):
        read_kubeconfig(written(tmp_path, **plugin))[0].token()
