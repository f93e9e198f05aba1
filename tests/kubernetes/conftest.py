"""Fixtures of tests with a real cluster. They are marked `kubernetes`, and only `make test-kubernetes` runs them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.cluster.control_plane import ControlPlane, control_plane
from tests.kubernetes.scene import Scene, scenes


@pytest.fixture(scope="session")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane for all tests of the session, with KWOK as kubelets."""
    with control_plane(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture
def scene(plane: ControlPlane, tmp_path: Path) -> Iterator[Scene]:
    """A clean cluster and a server, without an adapter."""
    yield from scenes(plane, tmp_path)
