"""The `fairlead` command line. `main` is the entry point; each group of commands has a module."""

from fairlead.cli.main import main

__all__ = ["main"]
