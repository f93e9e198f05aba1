"""Jobs that a resource manager asks to spare are not stopped for others."""

from __future__ import annotations

from fairlead.testing import World


def test_a_job_that_its_manager_spares_is_not_stopped() -> None:
    w = World()
    rm = w.rm("k8s")
    rm.register()
    rm.update(nodes=[{"name": "n1", "resources": {"cpu": 4}}])
    for name in ("old", "young"):
        rm.update(jobs=[{"job": name}], asks=[{"job": name, "ask": "a", "count": 1, "resources": {"cpu": 2}}])
        w.advance(1)
    rm.update(spare=["young"])
    urgent = {"job": "urgent", "priority": 100}
    rm.update(jobs=[urgent], asks=[{"job": "urgent", "ask": "a", "count": 1, "resources": {"cpu": 2}}])
    rm.events()
    w.advance(1)
    assert [event.job for event in rm.events() if event.what == "release"] == ["old"]


def test_nothing_is_stopped_if_all_is_spared_and_later_it_is() -> None:
    w = World()
    rm = w.rm("k8s")
    rm.register()
    rm.update(nodes=[{"name": "n1", "resources": {"cpu": 2}}])
    rm.update(jobs=[{"job": "a"}], asks=[{"job": "a", "ask": "a", "count": 1, "resources": {"cpu": 2}}], spare=["a"])
    w.advance(1)
    urgent = {"job": "urgent", "priority": 100}
    rm.update(jobs=[urgent], asks=[{"job": "urgent", "ask": "a", "count": 1, "resources": {"cpu": 2}}])
    rm.events()
    w.advance(1)
    assert not [event for event in rm.events() if event.what == "release"]
    rm.update(spare=[])
    w.advance(1)
    assert [event.job for event in rm.events() if event.what == "release"] == ["a"]
