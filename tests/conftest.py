"""Settings of the whole suite: in CI Hypothesis draws the same examples every time, elsewhere fresh ones."""

import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from fairlead.core.admission import CHECKS
from fairlead.core.policy.order import ORDERS
from fairlead.core.policy.placement import PLACEMENTS
from fairlead.core.policy.registry import Registry

settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")


@pytest.fixture
def own_policies() -> Iterator[None]:
    """Forget the policies that a test adds."""
    registries: list[Registry[object]] = [PLACEMENTS, ORDERS, CHECKS]  # type: ignore[list-item]
    before = [dict(registry) for registry in registries]
    yield
    for registry, policies in zip(registries, before, strict=True):
        registry.clear()
        registry.update(policies)
