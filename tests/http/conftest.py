from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http.serving import Serving, serving


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Serving]:
    with serving(tmp_path) as found:
        yield found
