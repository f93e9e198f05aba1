"""Programs for tests that Go builds once from its module registry, kept in a cache outside the tree.

A folder with go.mod and go.sum pins everything. Their hash names the folder in the cache, so that new pins build anew.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic


class NotBuilt(Exception):
    """The programs are not in the cache and cannot be built. The text says why."""


def cache() -> Path:
    """Return the folder of all programs, which may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fairlead"


@dataclass(frozen=True)
class Programs:
    """Programs of one project, with the pins of all modules that they need."""

    project: str
    version: str
    pins: Path
    """The folder with go.mod and go.sum."""
    packages: Mapping[str, str]
    """Program → its package."""
    flags: str = "-s -w"
    """Flags of the linker."""
    tags: str = ""

    def folder(self) -> Path:
        """Return the folder of the programs, which may not exist yet."""
        pinned = (self.pins / "go.sum").read_bytes() + (self.pins / "go.mod").read_bytes()
        return cache() / f"{self.project.lower()}-{hashlib.sha256(pinned).hexdigest()[:16]}"

    def build(self, names: Iterable[str] | None = None, within: float | None = None) -> Path:
        """Build the programs that are not in the cache, and return their folder. `None` is all of them.

        Raise `NotBuilt` if that is not possible in `within` seconds. Each program is put into the cache when it is
        complete, and Go keeps what it has compiled, so that a build which was cut short goes on where it was.
        """
        done = self.folder()
        missing = [name for name in self.packages if (names is None or name in names) and not (done / name).exists()]
        if not missing:
            return done
        go = shutil.which("go")
        if go is None:
            raise NotBuilt(f"the programs of {self.project} are not in the cache, and there is no Go to build them")
        print(f"building {', '.join(missing)} {self.version} into {done}; this takes minutes", file=sys.stderr)
        done.mkdir(parents=True, exist_ok=True)
        deadline = None if within is None else monotonic() + within
        for name in missing:
            left = None if deadline is None else max(0.0, deadline - monotonic())
            new = done / f"{name}.new"
            options = ["-trimpath", "-tags", self.tags, "-ldflags", self.flags, "-o", str(new)]
            command = ["nice", go, "build", *options, self.packages[name]]
            try:
                subprocess.run(command, cwd=self.pins, env=_environment(), check=True, timeout=left)
            except subprocess.TimeoutExpired:
                raise NotBuilt(f"the programs of {self.project} were not built within {within:g} s") from None
            except subprocess.CalledProcessError:
                raise NotBuilt(f"{name} cannot be built; the lines above say why") from None
            new.rename(done / name)
        return done

    def build_for(self, tests: str, short: bool, brief: Iterable[str], within: float) -> None:
        """Build what a target of make needs, and end with an error if that is not possible.

        If it has to be `short`, only the programs of `brief` are built, for at most `within` seconds.
        """
        try:
            print(self.build(brief, within) if short else self.build())
        except NotBuilt as problem:
            sys.exit(f"{tests} left out: {problem}" if short else f"error: {problem}; see CONTRIBUTING.md")


def _environment() -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false -mod=readonly"}
