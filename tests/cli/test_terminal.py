"""Text of other users on a terminal: no command prints control sequences."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from fairlead.cli.output import plain
from tests.http.serving import JOB, Serving, serving, submit
from tests.live import PROGRAM, SECONDS

EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202eb\rc\nd"


def said(site: Serving, *arguments: str) -> bytes:
    environment = {**os.environ, "FAIRLEAD_URL": site.url, "FAIRLEAD_TOKEN": site.owner}
    done = subprocess.run([PROGRAM, *arguments], env=environment, capture_output=True, timeout=SECONDS, check=False)
    return done.stdout + done.stderr


def test_plain() -> None:
    assert plain(EVIL) == "a?]0;owned??[2J?31m??b?c\nd"
    assert plain("Zoë – 東京 ✓") == "Zoë – 東京 ✓"


def test_no_command_prints_escape_sequences(tmp_path_factory: pytest.TempPathFactory) -> None:
    with serving(tmp_path_factory.mktemp("data")) as site:
        site.node("n1", labels={"rack": EVIL}, taints=[EVIL])
        stage: dict[str, Any] = {**JOB["stages"][0], "command": [EVIL], "environment": {"A": EVIL}}
        job = submit(site.as_owner, {"labels": {"l": EVIL}, "stages": [{**stage, "selectors": {"rack": EVIL + "x"}}]})
        site.as_owner.post("/api/v1/tokens", json={"role": "user", "user": "ann", "note": EVIL})
        ended = submit(site.as_owner, {"labels": {"l": EVIL}, "stages": [{**stage, "tolerations": [EVIL]}]})
        site.report(ended, "failed", exit_code=1)
        drained = site.as_owner.post("/api/v1/nodes/n1/drain", params={"reason": EVIL})
        assert drained.status_code == 200
        for arguments in (
            ("show", job),
            ("explain", job),
            ("ps",),
            ("lane", "list"),
            ("node", "list"),
            ("node", "show", "n1"),
            ("token", "list"),
            ("history",),
            ("node", "held"),
            ("usage",),
            ("show", EVIL),
        ):
            for form in ((), ("--json",)):
                found = said(site, *arguments, *form)
                assert found.strip(), arguments
                text = found.decode()
                assert not [c for c in text if c != "\n" and not c.isprintable() and c != "\u202e"], (arguments, text)
                if form:
                    json.loads(text)
                else:
                    assert "\u202e" not in text
