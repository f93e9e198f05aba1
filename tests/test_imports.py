"""Imports go downward only, the core stays pure, and the public names are pinned.

First the rules as tables, then the checker (`violations` of one source text), then the tests: the checker on
snippets it must flag or accept, so that it is seen to fail, and then on every file of the package.
An import counts wherever it stands: inside functions and under `if TYPE_CHECKING` too.
"""

import ast
import importlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = "fairlead"
SOURCE = Path(__file__).parent.parent / "src" / PACKAGE
ANYTHING = ("",)

# What the writer may import, and what stands on it too: protocols, never a concrete journal, engine or pool.
BELOW_WRITER = ("core", "views", "journal.journal", "journal.codec", "engines.engine", "pools.provider")

# package or module of ours → what of ours it may import, besides itself. The most specific row counts.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "": (),  # fairlead/__init__.py itself
    "core": (),
    "core.policy": ("core.resources", "core.ranges", "core.why.reasons"),
    "wire": (),
    "journal": ("core", "wire"),
    "history": ("core", "wire", "journal"),
    "views": ("core", "wire"),
    "engines": ("core", "wire"),
    "pools": ("core", "wire"),
    "writer": BELOW_WRITER,
    "control": ("writer", "wire", "identity.smallfile", "journal.disk_space", "journal.roster", "pools", *BELOW_WRITER),
    "identity": ("core", "wire", "engines.engine", "journal.journal", "writer.clock"),
    "http": (
        "control",
        "identity",
        "wire",
        "history",
        "journal.roster",
        "pools",
        "writer",
        *BELOW_WRITER,
    ),
    "sim": ("writer", "journal.in_memory", "engines", "pools", "wire", *BELOW_WRITER),
    "forecast": ("sim", "writer", "policies", "journal", "history", "wire", *BELOW_WRITER),
    "shadow": ("sim", "forecast", "writer", "core"),
    "agent": ("wire",),
    "kubernetes": ("wire", "client.async_pool"),
    "client": ("wire",),
    "slurm": ("client", "wire"),
    "assistants": ("client", "wire"),
    "cli": ("client", "wire"),
    "policies": ("core",),
    "testing": ("writer", "core", "views", "journal", "sim", "policies"),
    "demo": ("testing", "journal"),
    "gang": (),
    "server": ANYTHING,
}

# The same, for imports inside a function only.
MAY_IMPORT_LAZILY: dict[str, tuple[str, ...]] = {
    "": ("client",),
    "cli": tuple("http control identity agent sim shadow server demo kubernetes slurm assistants".split()),
}

# Names of fairlead/__init__.py that every package except the pure ones may read.
ROOT_NAMES = ("__version__",)

# Packages that compute only: what they may import from outside, and the builtins they may not call.
PURE = ("core",)
PURE_IMPORTS = frozenset(
    "__future__ abc array bisect collections contextlib copy dataclasses decimal difflib enum fractions functools "
    "hashlib heapq itertools math numbers operator re string struct types typing msgspec numpy".split()
)
IMPURE_PARTS = ("numpy.random",)
IMPURE_CALLS = frozenset("__import__ breakpoint eval exec input open print".split())

PUBLIC_NAMES = {
    "fairlead": ["AsyncClient", "Client", "Executor", "NeverRuns", "Problem", "__version__"],
    "fairlead.client": [
        "AsyncClient",
        "Client",
        "Endpoint",
        "Executor",
        "NeverRuns",
        "NotFound",
        "Problem",
        "find_endpoint",
    ],
    "fairlead.testing": ["World"],
}


class Import(NamedTuple):
    """`from module import name`, or `import module` with an empty name; `lazy` means inside a function."""

    module: str
    name: str
    line: int
    lazy: bool

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def within(name: str, prefix: str) -> bool:
    return prefix in ("", name) or name.startswith(prefix + ".")


def row_of(module: str, table: Collection[str]) -> str | None:
    rows = [row for row in table if row and within(module, row)]
    return max(rows, key=len, default="" if module == "" else None)


def imports_of(tree: ast.AST, package: str, lazy: bool = False) -> Iterator[Import]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.Import(names=names):
                yield from (Import(alias.name, "", node.lineno, lazy) for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                if level:
                    parents = package.split(".")
                    base = ".".join(parents[: len(parents) - level + 1] + ([base] if base else []))
                yield from (Import(base or "", alias.name, node.lineno, lazy) for alias in names)
            case ast.Call(
                func=ast.Name(id="import_module" | "__import__") | ast.Attribute(attr="import_module"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield Import(name, "", node.lineno, lazy)
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        yield from imports_of(node, package, lazy or inside)


def our_violation(module: str, found: Import, modules: Collection[str]) -> str | None:
    """Why `module` (named below our package) may not import `found`, or None."""
    row = row_of(module, MAY_IMPORT)
    if row is None:
        return f"{PACKAGE}.{module} has no row in MAY_IMPORT: add one"
    target = found.dotted if found.dotted in modules else found.module
    target = target.removeprefix(PACKAGE).removeprefix(".")
    if target == "" and row:
        if found.name in ROOT_NAMES and row_of(module, PURE) is None:
            return None
        return f"{row} may not import {found.dotted}: import it where it is defined"
    own = (row,) if row else ()
    lazily = MAY_IMPORT_LAZILY.get(row, ())
    if any(within(target, allowed) for allowed in (*own, *MAY_IMPORT[row])):
        return None
    if any(within(target, allowed) for allowed in lazily):
        return None if found.lazy else f"{row} may import {target} only inside a function"
    return f"{row or PACKAGE} may not import {target or PACKAGE}"


def purity_violations(tree: ast.AST, found: list[Import]) -> Iterator[tuple[int, str]]:
    for each in found:
        top = each.module.partition(".")[0]
        if top != PACKAGE and top not in PURE_IMPORTS:
            yield each.line, f"{top} is not on the list of what pure code may import"
        elif any(within(each.dotted, part) for part in IMPURE_PARTS):
            yield each.line, f"{each.dotted} is not pure"
    modules_by_alias = {
        alias.asname or alias.name: alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in IMPURE_CALLS:
                yield node.lineno, f"pure code may not call {name}()"
            case ast.Attribute(value=ast.Name(id=alias), attr=attr):
                dotted = f"{modules_by_alias.get(alias, '')}.{attr}"
                if dotted in IMPURE_PARTS:
                    yield node.lineno, f"{dotted} is not pure"


def violations(
    module: str, source: str, modules: Collection[str], *, is_package: bool = False
) -> list[tuple[int, str]]:
    """The broken rules of one source text as (line, message); `module` is its full dotted name."""
    tree = ast.parse(source)
    package = module if is_package else module.rpartition(".")[0]
    found = list(imports_of(tree, package))
    below = module.removeprefix(PACKAGE).removeprefix(".")
    broken = [
        (each.line, message)
        for each in found
        if within(each.module, PACKAGE) and (message := our_violation(below, each, modules))
    ]
    if row_of(below, MAY_IMPORT) is None:
        broken.append((1, f"{module} has no row in MAY_IMPORT: add one"))
    if row_of(below, PURE):
        broken.extend(purity_violations(tree, found))
    return sorted(set(broken))


def module_name(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(SOURCE.rglob("*.py"))
MODULES = frozenset(map(module_name, FILES))

# A package as it could be, for the snippets: they must not depend on which files exist today.
IMAGINED = frozenset(
    f"fairlead.{name}".rstrip(".")
    for name in (
        "",
        *"core core.resources core.ranges core.why core.why.reasons core.state core.policy core.policy.fit".split(),
        *"core.match core.match.match journal journal.journal journal.codec journal.sql wire".split(),
        *"wire.messages views writer writer.loop engines engines.engine engines.agents pools".split(),
        *"pools.provider pools.local http agent client cli cli.main sim testing demo server".split(),
    )
)

ACCEPTED = [
    ("core.state", "from fairlead.core.policy.fit import fits"),
    ("core.state", "from fairlead.core import resources, reasons"),
    ("core.state", "from . import resources\nfrom .policy import fit"),
    ("core.match.match", "from ..state import State"),
    ("core.state", "import numpy as np\nx = np.zeros(3)"),
    ("core.state", "from collections.abc import Iterable\nimport heapq, msgspec"),
    ("core.state", "open = []\nopen.append(1)\nfile.open()"),
    ("core.policy.fit", "from fairlead.core.resources import Resources"),
    ("core.policy.fit", "from fairlead.core import ranges"),
    ("core.policy.fit", "from ..why.reasons import Reason\nfrom . import order"),
    ("journal.sql", "import sqlite3, time\nfrom fairlead.core.state import State\nfrom .journal import Journal"),
    ("views", "from fairlead.wire import messages"),
    ("writer.loop", "from fairlead.journal.journal import Journal\nfrom fairlead.journal import codec"),
    ("writer.loop", "import fairlead.pools.provider, asyncio"),
    ("http", "from fairlead.writer.writer import Writer\nfrom fairlead.wire import messages"),
    ("http", "from fairlead.pools.provider import Machine"),
    ("pools.local", "from fairlead.core.state import State\nfrom .provider import Machine"),
    ("sim", "from fairlead.engines import engine"),
    ("cli.main", "from fairlead import __version__\nfrom fairlead.client import Client"),
    ("cli.main", "def demo():\n    from fairlead import demo\n    demo.run()"),
    ("cli.main", "async def up():\n    if True:\n        import fairlead.server.compose"),
    ("testing", "from fairlead.journal.sql import SqlJournal"),
    ("demo", "from fairlead.testing import World"),
    ("server", "from fairlead.pools.local import LocalPool\nimport fairlead.cli"),
    ("core.policy.fit", "text = 'import os'  # import os"),
]

FLAGGED = [
    ("core.state", "from fairlead.wire import messages"),
    ("core.state", "from ..wire.messages import Launch"),
    ("core.state", "from fairlead import __version__"),
    ("core.state", "import fairlead"),
    ("core.state", "def late():\n    from fairlead.writer import loop"),
    ("core.state", "if TYPE_CHECKING:\n    from fairlead.views import jobs"),
    ("core.state", "class A:\n    def f(self):\n        import fairlead.journal.journal"),
    ("core.state", "import time"),
    ("core.state", "from datetime import datetime"),
    ("core.state", "def f():\n    import random"),
    ("core.state", "import os.path"),
    ("core.state", "import sys"),
    ("core.state", "import logging"),
    ("core.state", "import asyncio"),
    ("core.state", "import numpy.random"),
    ("core.state", "from numpy import random"),
    ("core.state", "from numpy.random import default_rng"),
    ("core.state", "import numpy as np\nx = np.random.rand()"),
    ("core.state", "import typer"),
    ("core.state", "open('x')"),
    ("core.state", "def f(x):\n    print(x)"),
    ("core.state", "__import__('ti' + 'me')"),
    ("core.policy.fit", "from fairlead.core.state import State"),
    ("core.policy.fit", "from ..state import State"),
    ("core.policy.fit", "from fairlead.core import state"),
    ("core.policy.fit", "from fairlead.core import State"),
    ("core.policy.fit", "from .. import State"),
    ("core.policy.fit", "import fairlead.core"),
    ("core.policy.fit", "import time"),
    ("wire.messages", "from fairlead.core.why.reasons import Reason"),
    ("journal.sql", "from fairlead.writer import loop"),
    ("journal.sql", "from fairlead.views import jobs"),
    ("writer.loop", "from fairlead.journal.sql import SqlJournal"),
    ("writer.loop", "from fairlead.journal import sql"),
    ("writer.loop", "from fairlead.journal import SqlJournal"),
    ("writer.loop", "from fairlead import journal"),
    ("writer.loop", "from ..engines.agents import Agents"),
    ("writer.loop", "def f():\n    import fairlead.pools.local"),
    ("writer.loop", "importlib.import_module('fairlead.journal.sql')"),
    ("writer.loop", "from fairlead.wire import messages"),
    ("http", "from fairlead.journal import sql"),
    ("pools.local", "from fairlead.engines.engine import Busy"),
    ("pools.local", "from fairlead.writer.writer import Writer"),
    ("sim", "from fairlead.journal.sql import SqlJournal"),
    ("agent", "from fairlead.core import resources"),
    ("client", "from fairlead import http"),
    ("cli.main", "from fairlead import demo"),
    ("cli.main", "import fairlead.http"),
    ("cli.main", "if TYPE_CHECKING:\n    from fairlead.sim import World"),
    ("cli.main", "def f():\n    from fairlead.core import state"),
    ("demo", "from fairlead.core import state"),
    ("testing", "from fairlead import http"),
    ("", "from fairlead.core import state"),
    ("newcomer", "x = 1"),
]


def snippet_violations(module: str, source: str) -> list[tuple[int, str]]:
    full = f"{PACKAGE}.{module}".rstrip(".")
    below = [name for name in IMAGINED if name.startswith(full + ".")]
    return violations(full, source, IMAGINED, is_package=bool(below) or module.count(".") == 0)


@pytest.mark.parametrize(("module", "source"), ACCEPTED)
def test_checker_accepts(module: str, source: str) -> None:
    assert snippet_violations(module, source) == []


@pytest.mark.parametrize(("module", "source"), FLAGGED)
def test_checker_flags(module: str, source: str) -> None:
    assert snippet_violations(module, source) != []


def test_checker_names_the_line_and_the_rule() -> None:
    source = "import math\n\ndef f():\n    from fairlead.views import jobs\n"
    assert snippet_violations("core.state", source) == [(4, "core may not import views")]


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_file_keeps_the_rules(path: Path) -> None:
    broken = violations(
        module_name(path), path.read_text(encoding="utf-8"), MODULES, is_package=path.name == "__init__.py"
    )
    assert not broken, "\n".join(f"{path.relative_to(SOURCE.parent)}:{line}: {text}" for line, text in broken)


def test_files_were_found() -> None:
    assert {"fairlead", "fairlead.cli.main"} <= MODULES


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_public_names(module: str) -> None:
    package = importlib.import_module(module)
    assert package.__all__ == PUBLIC_NAMES[module]
    assert all(hasattr(package, name) for name in package.__all__)
