"""Reconcilers on a real writer, with machines that are only names: whatever a provider does, no machine is created
twice, none is lost, and failures reach the writer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from fairlead.core.commands import MoveNode
from fairlead.journal import Journal, SqliteJournal, UnknownOutcome
from fairlead.journal.codec import stream_of
from fairlead.pools import pool_service, reconciler
from fairlead.pools.pool_service import Figures, PoolService
from fairlead.pools.provider import Join, PoolKind, Provider, ProviderError
from tests.http.serving import Serving, serving, submit
from tests.pools.memory_provider import MemoryProvider
from tests.until import until

POOL = {"node": {"cpu": 4, "memory": "8Gi"}, "max": 8, "idle_for": "1h", "provider": {"memory": {}}}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let passes follow each other at once, so that tests are short. No result depends on their length."""
    for name, seconds in {"BUSY": 0.02, "QUIET": 0.05, "GONE": 0.1, "FIRST_PAUSE": 0.02, "LONGEST_PAUSE": 0.05}.items():
        monkeypatch.setattr(reconciler, name, seconds)
    monkeypatch.setattr(pool_service, "GRACE", 0.05)


class Story:
    """A server whose pool `w` is a `MemoryProvider`, which outlives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.provider = MemoryProvider()
        self.log: list[tuple[str, str, dict[str, Any]]] = []
        self.registry = CollectorRegistry()
        self.forgotten: list[str] = []
        """Nodes whose credentials were dropped."""

    @contextmanager
    def up(
        self,
        make: Callable[[PoolKind], Provider] | None = None,
        open_journal: Callable[[], Journal] | None = None,
        **pool: Any,
    ) -> Iterator[Serving]:
        self.registry = CollectorRegistry()
        pools = PoolService(
            make or (lambda kind: self.provider),
            Join(
                lambda: "http://127.0.0.1:1",
                lambda partition, pool, names: {},
                lambda partition, names: self.forgotten.extend(names),
            ),
            Figures(self.registry),
            lambda level, event, fields: self.log.append((level, event, fields)),
        )
        partition = {"ready_after": 0, "pool_pause": "50ms", "max_orders": 1000, "pools": {"w": {**POOL, **pool}}}
        config = {"partitions": {"default": partition}}
        with serving(self.folder, config, pools=pools, open_journal=open_journal) as site:
            until(lambda: get(site)["use"] is not None)
            yield site

    def asked(self, what: str) -> list[tuple[str, ...]]:
        return [names for call, names in self.provider.asked if call == what]

    def events(self, event: str) -> list[dict[str, Any]]:
        return [fields for _, each, fields in self.log if each == event]

    def figure(self, name: str) -> float | None:
        return self.registry.get_sample_value(name, {"partition": "default", "pool": "w"})


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def get(site: Serving) -> dict[str, Any]:
    found: dict[str, Any] = site.as_owner.get("/api/v1/pools/w").json()
    return found


def passes(story: Story, many: int = 3) -> None:
    """Wait for `many` more passes over the provider."""
    before = len(story.asked("list"))
    until(lambda: len(story.asked("list")) >= before + many)


def burst(site: Serving, tasks: int) -> str:
    stage = {"count": tasks, "min": 1, "command": ["true"], "resources": {"cpu": 4}, "pool": "w"}
    return submit(site.as_owner, {"stages": [stage]})


def arrive(site: Serving, *names: str) -> None:
    for name in names:
        site.node(name, pool="w")


def test_a_burst_is_brought_once(story: Story) -> None:
    with story.up() as site:
        job = burst(site, 3)
        until(lambda: len(story.provider.machines) == 3)
        (order,) = get(site)["orders"]
        assert (order["cause"], order["tasks"]) == ("demand", 3)
        assert order["jobs"] == [{"job": job, "stage": "main", "tasks": 3}]
        passes(story)
        assert get(site)["orphans"] == []
        arrive(site, *order["nodes"])
        until(lambda: not get(site)["orders"])
        passes(story)
        assert story.asked("create") == [tuple(order["nodes"])]
        assert story.provider.machines == dict.fromkeys(order["nodes"], 1)
        assert get(site)["orphans"] == []
        assert get(site)["use"] == {
            **{"ready": True, "total": 3, "available": 0, "pending": 0, "idle": 0, "ordered": 0, "disabled": 0}
        }
        assert story.figure("fairlead_machines_brought_total") == 3
        assert len(story.events("machines created")) == 1


def test_orders_are_acted_on_at_once(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("BUSY", "QUIET"):
        monkeypatch.setattr(reconciler, name, 3600.0)
    with story.up() as site:
        burst(site, 2)
        until(lambda: len(story.provider.machines) == 2)


def test_a_restart_brings_only_what_is_not_there(story: Story) -> None:
    """The server ends while machines are being created: some exist, others do not, and none was reported."""
    with story.up() as site:
        story.provider.slow["create"] = asyncio.Event()
        burst(site, 4)
        (names,) = until(lambda: story.asked("create"))
    story.provider.slow.clear()
    story.provider.machines = {names[0]: 1, names[2]: 1}
    story.provider.asked.clear()
    with story.up() as site:
        until(lambda: len(story.provider.machines) == 4)
        passes(story)
        assert story.provider.asked[0] == ("list", ())
        assert story.asked("create") == [(names[1], names[3])]
        assert set(story.provider.machines.values()) == {1}
        assert [order["nodes"] for order in get(site)["orders"]] == [list(names)]


def test_a_restart_takes_nothing_away(story: Story) -> None:
    with story.up() as site:
        burst(site, 2)
        until(lambda: len(story.provider.machines) == 2)
        arrive(site, *story.provider.machines)
        until(lambda: not get(site)["orders"])
    for _ in range(2):
        with story.up() as site:
            passes(story)
            assert get(site)["orphans"] == []
    assert story.asked("destroy") == [] and len(story.asked("create")) == 1 and len(story.provider.machines) == 2


@pytest.mark.parametrize("done", [True, False])
def test_without_an_answer_the_list_is_read(story: Story, done: bool) -> None:
    with story.up() as site:
        if done:
            story.provider.doubtful.add("create")
        else:
            story.provider.failing["create"] = ProviderError("no answer", unknown=True)
        burst(site, 2)
        if not done:
            until(lambda: len(story.asked("create")) >= 2)
            story.provider.failing.clear()
        until(lambda: len(story.provider.machines) == 2)
        passes(story)
        assert set(story.provider.machines.values()) == {1}
        assert len(set(story.asked("create"))) == 1
        assert done == (len(story.asked("create")) == 1)
        (order,) = get(site)["orders"]
        assert order["order"] == 1 and story.events("machines failed") == []


def test_a_failed_machine_is_reported_and_ordered_again(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "GONE", 3600.0)
    with story.up() as site:
        story.provider.failing["create"] = ProviderError("no quota" + 1000 * "!", ["w-1-1"])
        story.provider.hidden = {"w-1-0"}  # it is created nevertheless
        burst(site, 2)
        until(lambda: story.events("machines failed"))
        story.provider.failing.clear()
        (failed,) = story.events("machines failed")
        assert (failed["order"], failed["names"]) == (1, ["w-1-1"])
        assert failed["reason"].startswith("no quota!!")
        story.provider.hidden.clear()
        until(lambda: "w-2-0" in story.provider.machines)
        assert sorted(story.provider.machines) == ["w-1-0", "w-2-0"]
        assert story.figure("fairlead_machines_failed_total") == 1


def test_after_a_failed_call_the_list_is_read(story: Story) -> None:
    """The answer does not say which machines were created, so the list is read."""
    with story.up(max=2) as site:
        story.provider.failing["create"] = ProviderError("code 1")
        story.provider.machines["w-1-0"] = 1
        burst(site, 2)
        failed = until(lambda: story.events("machines failed"))[0]
        assert (failed["order"], failed["names"]) == (1, ["w-1-1"])
        assert get(site)["orders"][0]["nodes"] == ["w-1-0"]


def test_a_provider_that_cannot_list_its_machines(story: Story) -> None:
    """Machines that were never requested are given up; requested ones are waited for."""
    with story.up() as site:
        burst(site, 1)
        until(lambda: len(story.provider.machines) == 1)
        passes(story)
        story.provider.failing["list"] = ProviderError("closed today")
        burst(site, 1)
        failed = until(lambda: story.events("machines failed"))
        assert {each["order"] for each in failed}.isdisjoint({1})
        found = get(site)
        assert found["problem"] == "closed today" and "w-1-0" in found["orders"][0]["nodes"]
        assert len(story.asked("create")) == 1
        story.provider.failing.clear()
        until(lambda: len(story.provider.machines) == 2)


def test_a_machine_that_vanishes_before_its_node_came(story: Story) -> None:
    with story.up() as site:
        burst(site, 1)
        until(lambda: len(story.provider.machines) == 1)
        story.provider.machines.clear()
        (failed,) = until(lambda: story.events("machines failed"))
        assert (failed["names"], failed["reason"]) == (["w-1-0"], "w-1-0 went away before its node came")
        until(lambda: list(story.provider.machines) == ["w-2-0"])
        assert get(site)["orders"][0]["order"] == 2


def test_a_machine_that_is_listed_late(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "GONE", 3600.0)
    with story.up() as site:
        story.provider.hidden = {"w-1-0"}
        burst(site, 1)
        until(lambda: story.asked("create"))
        passes(story, 5)
        assert len(story.asked("create")) == 1 and story.events("machines failed") == []
        story.provider.hidden.clear()
        passes(story)
        arrive(site, "w-1-0")
        until(lambda: not get(site)["orders"])
        assert story.events("machines failed") == []


def test_a_destruction_that_failed_is_not_tried_again_at_once(story: Story, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(reconciler, "LONGEST_PAUSE", 3600.0)
    with story.up(idle_for="0s") as site:
        story.provider.machines["w-9-9"] = 1
        story.provider.failing["destroy"] = ProviderError("busy")
        arrive(site, "w-9-9")
        until(lambda: story.asked("destroy"))
        passes(story, 5)
        assert len(story.asked("destroy")) == 1 and get(site)["leaving"] == ["w-9-9"]


def test_nodes_that_are_not_lost_stay(story: Story) -> None:
    """A node without a listed machine may be a user's own: it is forgotten only if it is silent too."""
    with story.up() as site:
        arrive(site, "mine-1", "mine-2", "mine-3")
        site.as_owner.post("/api/v1/nodes/mine-1/disable")
        site.as_owner.post("/api/v1/nodes/mine-2/drain")
        passes(story, 8)
        assert get(site)["use"]["total"] == 3


def test_idle_nodes_go_when_their_machines_are_gone(story: Story) -> None:
    with story.up(idle_for="0s") as site:
        site.as_owner.post("/api/v1/pools/w/pause")
        story.provider.lingering = {"w-1-0"}
        story.provider.failing["destroy"] = ProviderError("busy")
        site.as_owner.post("/api/v1/pools/w/scale", json={"nodes": 2})
        until(lambda: len(story.provider.machines) == 2)
        arrive(site, "w-1-0", "w-1-1")
        passes(story)
        assert story.asked("destroy") == []
        site.as_owner.post("/api/v1/pools/w/resume")
        until(lambda: len(story.asked("destroy")) >= 2)  # it is tried again
        assert sorted(get(site)["leaving"]) == ["w-1-0", "w-1-1"]
        story.provider.failing.clear()
        until(lambda: get(site)["use"]["total"] == 1)
        passes(story)
        # The other one is still listed: its agent could come back, so its node stays.
        assert get(site)["leaving"] == ["w-1-0"] and story.forgotten == ["w-1-1"]
        story.provider.machines.clear()
        until(lambda: get(site)["use"]["total"] == 0)
        assert story.forgotten == ["w-1-1", "w-1-0"]
        assert story.figure("fairlead_machines_destroyed_total") == 2
        assert get(site)["orphans"] == [] and story.events("orphan machine") == []


def test_a_lost_node_whose_machine_is_gone_is_forgotten(story: Story) -> None:
    with story.up() as site:
        burst(site, 2)
        until(lambda: len(story.provider.machines) == 2)
        arrive(site, *story.provider.machines)
        for name in ("w-1-0", "w-1-1"):
            site.tell(MoveNode(name=name, action="lose", operator=True))
        passes(story)
        assert site.as_owner.get("/api/v1/nodes/w-1-0").json()["state"] == "lost"
        del story.provider.machines["w-1-0"]
        until(lambda: site.as_owner.get("/api/v1/nodes/w-1-0").status_code == 404)
        assert site.as_owner.get("/api/v1/nodes/w-1-1").json()["state"] == "lost"


def test_orphans_are_named_and_left_alone(story: Story) -> None:
    story.provider.machines = {"w-77-0": 1, "foreign": 1}
    with story.up(idle_for="0s") as site:
        until(lambda: len(get(site)["orphans"]) == 2)
        passes(story)
        assert get(site)["orphans"] == [{"name": "foreign", "note": ""}, {"name": "w-77-0", "note": ""}]
        assert [event["name"] for event in story.events("orphan machine")] == ["foreign", "w-77-0"]
        assert story.figure("fairlead_orphan_machines") == 2 and story.figure("fairlead_machines") == 2
        # An agent on one of them makes it a node.
        arrive(site, "w-77-0")
        until(lambda: len(get(site)["orphans"]) == 1)
        until(lambda: "w-77-0" not in story.provider.machines)
        assert list(story.provider.machines) == ["foreign"]
        assert {name for names in story.asked("destroy") for name in names} == {"w-77-0"}


def test_a_provider_that_cannot_be_made(story: Story) -> None:
    with serving(story.folder, {"partitions": {"default": {"ready_after": 0, "pools": {"w": POOL}}}}) as site:
        until(lambda: get(site)["use"] is not None)
        burst(site, 1)
        until(lambda: "this server brings no machines" in get(site)["problem"])


def test_a_provider_that_breaks_its_word_is_asked_again(story: Story) -> None:
    with story.up() as site:
        story.provider.failing["list"] = ValueError("not what it may raise")  # type: ignore[assignment]
        until(lambda: story.events("pool pass failed"))
        story.provider.failing.clear()
        burst(site, 1)
        until(lambda: len(story.provider.machines) == 1)


def test_pools_come_and_go_with_the_configuration(story: Story) -> None:
    made: list[PoolKind] = []

    def make(kind: PoolKind) -> Provider:
        made.append(kind)
        return story.provider

    with story.up(make) as site:
        (kind,) = made
        assert (kind.partition, kind.pool) == ("default", "w")
        document = {"ready_after": 0, "pools": {"w": {**POOL, "max": 3, "provider": {"local": {}}}}}
        assert site.as_owner.put("/api/v1/partitions/default", json=document).status_code == 200
        until(lambda: len(made) == 2)
        assert made[1].settings.max == 3
        until(lambda: ("close", ()) in story.provider.asked)
        assert site.as_owner.put("/api/v1/partitions/default", json={"ready_after": 0}).status_code == 200
        until(lambda: story.provider.asked.count(("close", ())) == 2)
        assert story.figure("fairlead_machines") is None
        assert site.as_owner.get("/api/v1/pools/w").status_code == 404


def test_one_call_at_a_time_also_over_reigns(story: Story) -> None:
    """A call that the last reign began is finished before the next reign reads the list."""
    with story.up() as site:
        gate = story.provider.slow["create"] = asyncio.Event()
        burst(site, 2)
        until(lambda: story.asked("create"))
        before = len(story.provider.asked)
        site.control._streams.fail(site.control._streams.threads[stream_of("default")], "for a test")
        until(lambda: site.notes)
        until(lambda: site.as_owner.get("/api/v1/pools/w").status_code == 200)
        time.sleep(0.1)
        assert story.provider.asked[before:] in ([], [("close", ())])
        site._loop.call_soon_threadsafe(gate.set)
        until(lambda: len(story.provider.machines) == 2)
        passes(story)
        assert set(story.provider.machines.values()) == {1} and len(story.asked("create")) == 1


def test_nothing_is_brought_that_the_journal_may_not_have(story: Story) -> None:
    """A writer with an order of unknown outcome ends, and the order is not acted on before its outcome is known."""
    journals: list[Doubtful] = []

    def open_journal() -> SqliteJournal:
        journals.append(Doubtful(story.folder / "journal", synchronous="off"))
        return journals[-1]

    with story.up(open_journal=open_journal) as site:
        passes(story)
        for journal in journals:
            journal.meanwhile = lambda: passes(story, 1)  # a pass has read the list, and waits for the state
        before = len(journals)
        answer = site.as_owner.post("/api/v1/pools/w/scale", json={"nodes": 2})
        assert answer.status_code == 503
        until(lambda: len(journals) > before)
        until(lambda: site.as_owner.get("/api/v1/pools/w").status_code == 200)
        passes(story)
        assert get(site)["orders"] == [] and story.asked("create") == []


class Doubtful(SqliteJournal):
    """A journal that stops writing at some time, with an unknown outcome."""

    meanwhile: Callable[[], None] | None = None

    def append(self, stream: str, epoch: int, seq: int, payload: bytes) -> None:
        if self.meanwhile is not None:
            self.meanwhile()
            time.sleep(0.1)
            raise UnknownOutcome("the disk is gone")
        super().append(stream, epoch, seq, payload)


def test_a_deposed_leader_changes_no_machines(story: Story, tmp_path: Path) -> None:
    """Before each order the journal is asked for the newest epoch: the lease of a paused server may have ended."""

    class Later(SqliteJournal):
        later = 0

        def epoch(self, stream: str) -> int:
            return super().epoch(stream) + self.later

    with story.up(open_journal=lambda: Later(tmp_path / "journal", synchronous="off")) as site:
        Later.later = 1
        burst(site, 2)
        until(lambda: get(site)["orders"])
        passes(story)
        assert story.asked("create") == []
        Later.later = 0
        until(lambda: len(story.provider.machines) == 2)
