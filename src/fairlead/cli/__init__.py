"""The `fairlead` command line: `main` is the entry point, one module a group of commands."""

from fairlead.cli.main import main

__all__ = ["main"]
