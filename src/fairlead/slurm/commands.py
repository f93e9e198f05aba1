"""The commands by name, and the program that the files of `fairlead slurm install` run."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NAMES = (
    "sbatch", "srun", "salloc", "squeue", "scancel", "sinfo", "sacct", "scontrol", "sacctmgr", "sshare", "sprio",
    "sstat",
)  # fmt: skip
"""Each is a module of this package with a function `main`."""


def run(name: str) -> None:
    """Run a command with the words of this process, and exit with its status."""
    try:
        code = _run(name)
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stderr.close()
        code = 141
    except KeyboardInterrupt:
        code = 130
    except OSError as problem:
        print(f"{name}: error: {problem}", file=sys.stderr)
        code = 1
    sys.exit(code)


def _run(name: str) -> int:
    if name == "srun":
        import os

        from fairlead.slurm.launch import run_here

        code = run_here(sys.argv[1:], os.environ)
        if code is not None:
            return code
    from importlib import import_module

    module: Any = import_module(f"fairlead.slurm.{name}")
    code = module.main(sys.argv[1:])
    assert isinstance(code, int)
    return code
