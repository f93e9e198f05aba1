from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.serving import Serving
from tests.web import browser as browsers
from tests.web import fleet


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium, for the tests of a module: while it runs, Playwright's event loop runs in this thread."""
    if browsers.missing():
        pytest.skip(browsers.missing())
    with browsers.running() as found:
        yield found


@pytest.fixture(scope="module")
def cluster(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A server with 2,000 virtual nodes that have work. It asks for the browser first, without which it is not used."""
    site = fleet.start(tmp_path_factory.mktemp("cluster"))
    fleet.fill(site)
    yield site
    site.close()
    assert not site.faults
