"""Settings of the whole suite: in CI Hypothesis draws the same examples every time, elsewhere fresh ones."""

import os

from hypothesis import settings

settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") == "true" else "dev")
