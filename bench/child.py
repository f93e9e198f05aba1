"""The fresh process of `harness.in_child`: runs one function of a bench module and prints its result as JSON."""

from __future__ import annotations

import json
import sys
from importlib import import_module


def main(name: str, arguments: str) -> None:
    module, _, function = name.partition(":")
    print(json.dumps(getattr(import_module(module), function)(*json.loads(arguments))))


if __name__ == "__main__":
    main(*sys.argv[1:])
