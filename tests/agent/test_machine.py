"""Detection of a machine's resources by an agent."""

from __future__ import annotations

import os

import pytest

from fairlead.agent import machine
from fairlead.core.documents import parse_node


def test_this_machine_is_a_node() -> None:
    found = machine.this_machine()
    assert 0 < found.cpus <= (os.cpu_count() or 1)
    assert 2**20 < found.memory <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    name, spec = parse_node({"name": machine.host_name(), "resources": found.resources, "labels": dict(found.labels)})
    assert name and dict(spec.capacity)["cpu"] == found.cpus * 1000


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("box", "box"),
        ("box.example.org", "box"),
        ("my box!", "my-box-"),
        ("-box", "box"),
        ("", "node"),
        ("ö" * 70, "node"),
    ],
)
def test_a_host_has_a_name_that_a_node_may_have(monkeypatch: pytest.MonkeyPatch, host: str, name: str) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: host)
    assert machine.host_name() == name


@pytest.mark.parametrize(
    ("visible", "names"),
    [(None, ("0", "1", "2", "3")), ("2,3", ("2", "3")), ("", ()), ("-1", ()), ("GPU-7f, GPU-aa", ("GPU-7f", "GPU-aa"))],
)
def test_only_gpus_that_were_given_to_the_agent_are_passed_on(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, names: tuple[str, ...]
) -> None:
    monkeypatch.setattr(machine, "_by_nvml", lambda: (("0", "1", "2", "3"), "H200"))
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert machine._gpus()[0] == names
