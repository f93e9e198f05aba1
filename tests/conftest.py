"""Settings of the whole suite: Hypothesis draws the same examples every time in CI; PostgreSQL is started if needed."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from fairlead.core.admission import CHECKS
from fairlead.core.policy.fit import HOLD_SCORES
from fairlead.core.policy.order import ORDERS
from fairlead.core.policy.placement import PLACEMENTS
from fairlead.core.policy.registry import Registry
from fairlead.core.policy.victim_sets import VICTIMS
from tests.packages import NO_TORCH, torch_python
from tests.postgres import MISSING, Postgres, programs, running
from tests.web.browser import missing as no_browser
from tests.web.browser import unchecked

settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.register_profile("dev", deadline=None)
IN_CI = os.environ.get("CI") == "true"
settings.load_profile("ci" if IN_CI else "dev")
# Programs that tests start can be interrupted, also if the tests run in the background, where SIGINT is ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if programs() is None:
        terminalreporter.write_line(MISSING)
    if no_browser():
        terminalreporter.write_line(no_browser())
    if unchecked():
        terminalreporter.write_line(unchecked())
    if not torch_python():
        terminalreporter.write_line(NO_TORCH)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """Run one PostgreSQL for all tests of this process."""
    if programs() is None:
        (pytest.fail if IN_CI else pytest.skip)(MISSING)
    with running() as server:
        yield server


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    """Create an empty database and yield its address."""
    url = postgres.create()
    yield url
    postgres.drop(url)


@pytest.fixture
def own_policies() -> Iterator[None]:
    """Forget the policies that a test adds."""
    registries: list[Registry[object]] = [PLACEMENTS, ORDERS, CHECKS, HOLD_SCORES, VICTIMS]  # type: ignore[list-item]
    before = [dict(registry) for registry in registries]
    yield
    for registry, policies in zip(registries, before, strict=True):
        registry.clear()
        registry.update(policies)
