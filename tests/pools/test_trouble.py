"""Random trouble between a real writer and a provider: machines that come late or not at all, answers that get lost,
lists that fail, servers that end at any time. Whatever happens, no machine is created twice, and all work is placed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from fairlead.pools import pool_service, reconciler
from fairlead.pools.provider import ProviderError
from tests.http.serving import Serving
from tests.pools.test_reconciler import Story, arrive, burst, get, passes, until

STEPS = 25


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 40))])
def test_trouble(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    for name, seconds in {"BUSY": 0.01, "QUIET": 0.02, "GONE": 0.05}.items():
        monkeypatch.setattr(reconciler, name, seconds)
    monkeypatch.setattr(pool_service, "GRACE", 0.01)
    dice = random.Random(seed)
    story, tasks = Story(tmp_path), 0
    steps = dice.choices(["burst", "trouble", "peace", "come", "vanish", "restart"], [4, 5, 4, 6, 1, 1], k=STEPS)
    while steps:
        with story.up(max=None) as site:
            while steps:
                what = steps.pop()
                if what == "burst":
                    tasks += (many := dice.randint(1, 4))
                    burst(site, many)
                elif what == "trouble":
                    trouble(story, dice)
                elif what == "peace":
                    story.provider.failing.clear()
                elif what == "come":
                    come(story, site, dice.randint(1, 5))
                elif what == "vanish":
                    for name in [name for name in coming(site) if name in story.provider.machines][:1]:
                        del story.provider.machines[name]
                elif what == "restart":
                    break
                site.as_owner.get("/api/v1/usage")
    story.provider.failing.clear()
    story.provider.doubtful.clear()
    with story.up(max=None) as site:
        until(lambda: come(story, site, 1000) or placed(site) == tasks)
        passes(story)
        found = get(site)
        assert (found["orders"], found["use"]["pending"]) == ([], 0)
        # Every machine that came is a node, and none was created twice or destroyed.
        assert set(story.provider.machines.values()) <= {1}
        assert story.asked("destroy") == []
        nodes = {node["name"] for node in site.as_owner.get("/api/v1/nodes").json()["nodes"]}
        assert nodes == story.provider.machines.keys() - {orphan["name"] for orphan in found["orphans"]}


def trouble(story: Story, dice: random.Random) -> None:
    what = dice.choice(["create", "create", "list"])
    kind = dice.randrange(4)
    if what == "create" and kind == 0:
        story.provider.doubtful.add("create")
    elif what == "create" and kind == 1:
        names = [f"w-{order}-{at}" for order in range(100) for at in range(0, 4, 2)]
        story.provider.failing["create"] = ProviderError("some failed", names)
    else:
        story.provider.failing[what] = ProviderError("trouble", unknown=kind == 2)


def coming(site: Serving) -> list[str]:
    return [name for order in get(site)["orders"] for name in order["nodes"]]


def come(story: Story, site: Serving, most: int) -> None:
    """Let the agents of some machines join."""
    machines = list(story.provider.machines)
    arrive(site, *[name for name in coming(site) if name in machines][:most])


def placed(site: Serving) -> int:
    jobs = site.as_owner.get("/api/v1/jobs", params={"limit": 1000}).json()["jobs"]
    return sum(job["stages"][0]["assigned"] + job["stages"][0]["running"] for job in jobs)
