"""`python -m bench [--scale 0.1] [NAME …]`: run benchmarks and print their table."""

from __future__ import annotations

import argparse
import sys

from bench.catalogue import CATALOGUE
from bench.harness import HEAD, line


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="Benchmarks of the state and its journal.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(CATALOGUE)}; without any, all")
    parser.add_argument("--scale", type=float, default=1.0, help="multiply all sizes by this; goals are scaled too")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in CATALOGUE]
    if unknown:
        parser.error(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(CATALOGUE)}")
    print(HEAD, flush=True)
    for name in options.names or CATALOGUE:
        for row in CATALOGUE[name](options.scale):
            print(line(row), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
