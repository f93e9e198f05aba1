"""An operation that only this file knows: one row and one handler make its route, its checks, its description and its
methods. `generate.py` made every generated file anew after the last change.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import pytest
from msgspec import Meta

from fairlead.client import AsyncClient, Client, Problem
from fairlead.core.commands import HoldJob
from fairlead.http.context import Request
from fairlead.http.dispatch import HANDLERS, serves
from fairlead.http.routes.jobs import change_job
from fairlead.wire import api as wire
from fairlead.wire.operation import Change, Name, row_of
from fairlead.wire.operations import rows
from tests.http.serving import serving, submit

sys.path.insert(0, str(Path(__file__).parent.parent))

import generate


class Pause(Change[wire.Done], POST="jobs/{job}/pause", role="operator"):
    """Pause a job: hold it back for a while."""

    job: Name
    minutes: Annotated[int, Meta(ge=1, le=60, description="How long.")] = 5


async def pause(request: Request, asked: Pause) -> wire.Done:
    done = await change_job(request, asked, HoldJob(job=asked.job))
    return wire.Done(note=done.note or f"for {asked.minutes} minutes")


def test_one_row_and_one_handler_are_an_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(HANDLERS, Pause, None)  # it is taken out again afterwards
    serves(Pause)(pause)
    with serving(tmp_path) as site:
        job = submit(site.as_owner)
        path = f"/api/v1/jobs/{job}/pause"
        answers = [site.as_owner.post(path, headers={"Idempotency-Key": "once"}).json() for _ in range(2)]
        assert answers == [{"note": "for 5 minutes"}] * 2
        assert site.as_owner.get(f"/api/v1/jobs/{job}").json()["held_by"] == "owner"

        long = site.as_owner.post(path, params={"minutes": 61})
        assert (long.status_code, long.json()["field"]) == (400, "minutes")
        assert long.json()["detail"] == '"61" is not accepted; write a whole number from 1 to 60'
        assert site.as_owner.post(path, params={"minute": 1}).status_code == 422
        assert site.as_owner.get(path).headers["allow"] == "POST"
        assert site.as_user("ann").post(path).status_code == 403

        described = site.as_owner.get("/api/v1/openapi.json").json()["paths"]["/api/v1/jobs/{job}/pause"]["post"]
        assert (described["operationId"], described["summary"]) == ("pause", "Pause a job")
        sent = [each["name"] for each in described["parameters"]]
        assert sent == ["job", "partition", "Idempotency-Key", "Fairlead-Confirm", "minutes"]

        with Client(site.url, site.owner) as client:
            assert client.send(Pause(job=job, minutes=7)) == wire.Done(note="it is already held by owner")
            with pytest.raises(Problem, match="write a whole number from 1 to 60"):
                client.send(Pause(job=job, minutes=0))

        async def the_same() -> wire.Done:
            async with AsyncClient(site.url, site.owner) as other:
                return await other.send(Pause(job=job))

        assert asyncio.run(the_same()).note == "it is already held by owner"
    assert generate.method(row_of(Pause)).splitlines() == [
        "    def pause(self, job: str, minutes: int = 5) -> str:",
        '        """Pause a job: hold it back for a while. Only for operators."""',
        "        return self.send(op.Pause(job=job, minutes=minutes)).note",
    ]


def test_every_operation_has_a_handler() -> None:
    assert {row.operation for row in rows()} == HANDLERS.keys()


@pytest.mark.parametrize("path", generate.FILES, ids=lambda path: path.name)
def test_generated_files_are_up_to_date(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == generate.FILES[path](), "run `make generate`"
