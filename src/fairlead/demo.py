"""A short story of the core at work, told through the scenario harness."""

from __future__ import annotations

from fairlead.testing import World


def run() -> None:
    """Print what the core decides for a small cluster."""
    w = World()
    w.nodes(4, cpu=2)
    job = w.submit(name="train", stages=[{"name": "w", "count": 8, "resources": {"cpu": 1}, "duration": 60}])
    w.cycle()
    print(f"{job}: {w.job(job).state}, {len(w.placements(job))} tasks placed at once")
    w.advance(61)
    print(f"{job}: {w.job(job).state}")
