"""Benchmarks: `python -m bench` runs all of them, `python -m bench NAME …` some.

`harness` measures and prints, `worlds` builds the commands and states, the other modules have a benchmark each and are
listed in `catalogue`. RESULTS.md has the last figures and conclusions.
"""
