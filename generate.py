"""Writes the files that follow from the operations of the API (`wire/operations.py`): the methods of both Python
clients that are one operation each, and the types of the web page; and the page of options of Slurm's commands.
`make generate` runs it. A test compares the files.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec

from fairlead.client.shortcuts import Shortcuts
from fairlead.slurm.tables import TABLES
from fairlead.wire import api as wire
from fairlead.wire.operation import JSON, Moment, Parameter, Row, bare
from fairlead.wire.operations import rows

ROOT = Path(__file__).parent
CLIENT = ROOT / "src" / "fairlead" / "client"

BY_HAND = set(
    "submit submit_many dry_run tasks eta etas what_if attempts results partitions lanes holds pools move_pool "
    "usage_report store_content content".split()
)
"""Operations with a method by hand, in `client/shortcuts.py`, or in `client/sync.py` and `client/aio.py`."""
NOT_IN_PYTHON = set("login logout map map_tasks past_map past_queues openapi healthz readyz".split())
"""Operations for the web page and for probes."""
WHOLE = (wire.ConfigDocument, wire.PartitionDocument, wire.UpdateDocument)
"""Documents that a method takes as one value. The keys of others are parameters."""
FILLED_IN = ("partition", "min_revision", "cursor", "key", "confirm")
"""Parameters that the client fills in, or leaves out."""
ONLY = {"operator": "Only for operators.", "admin": "Only for administrators."}

MODULE = '''"""The methods of `Client` that are one operation each. `make generate` writes this file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Literal, cast

from fairlead.client.calls import Document, Moment, Page, given, listed, seconds_of
from fairlead.wire import api as wire
from fairlead.wire import operations as op
from fairlead.wire.operation import Answer, Operation


class Methods(ABC):
    """The operations of the API as methods."""

    @abstractmethod
    def send(self, operation: Operation[Answer]) -> Answer:
        """Send an operation and return its answer."""

    @abstractmethod
    def pages(self, operation: Operation[Page]) -> Iterator[Page]:
        """Yield the pages of a list."""
'''
ASYNC_MODULE = '''"""The methods of `AsyncClient` made from those of `Client`. `make generate` writes this file."""

from __future__ import annotations

from fairlead.client.adapters import AsyncSender, awaited, iterated
from fairlead.client.shortcuts import Shortcuts


class AsyncMethods(AsyncSender):
    """The methods of `Client` with one operation each, as coroutines and asynchronous iterators."""
'''


def client_methods() -> str:
    """Return the module with the plain methods of `Client`."""
    return _formatted("\n".join([MODULE, *(method(row) for row in rows() if _is_plain(row))]))


def async_methods() -> str:
    """Return the module with the methods of `AsyncClient` that are made from methods of `Client`."""
    by_hand = {name: found for name, found in vars(Shortcuts).items() if inspect.isfunction(found)}
    lists = {name for name, found in by_hand.items() if inspect.isgeneratorfunction(found)}
    names = set(by_hand)
    for row in filter(_is_plain, rows()):
        names.add(row.name)
        if _item(row) is not None:
            lists.add(row.name)
    lines = [f"    {name} = {'iterated' if name in lists else 'awaited'}(Shortcuts.{name})" for name in sorted(names)]
    return _formatted("\n".join([ASYNC_MODULE, *lines]))


def _is_plain(row: Row) -> bool:
    return row.route.media == JSON and row.name not in BY_HAND | NOT_IN_PYTHON


def method(row: Row) -> str:
    """Return the method of an operation."""
    signature, passed = [], []
    for parameter in row.parameters:
        name, place = parameter.name, parameter.place
        if place == "path" or name not in FILLED_IN:
            signature.append(_parameter(parameter))
            reader = "seconds_of" if parameter.type is Moment else "listed" if parameter.many else ""
            passed.append(f"{name}={reader}({name})" if reader else f"{name}={name}")
    if row.document is not None:
        kept = len([parameter for parameter in row.parameters if parameter.place == "path"])
        if row.document.type in WHOLE:
            signature.insert(kept, "document: Document")
            passed.append("document=cast(Any, document)")
        else:
            fields = msgspec.structs.fields(row.document.type)
            signature[kept:kept] = [_field(field) for field in fields]
            keys = ", ".join(f"{field.name}={_sent(field)}" for field in fields)
            passed.append(f"document=given({keys})")
    operation = f"op.{row.operation.__name__}({', '.join(passed)})"
    types = {field.name: field.type for field in msgspec.structs.fields(row.answer)}
    first = next(name for name in types if name != "next")
    if (item := _item(row)) is not None:
        result = f"Iterator[{_python(item)}]"
        body = [f"for page in self.pages({operation}):", f"    yield from page.{first}"]
    elif len(types) == 1:
        result, body = _python(types[first]), [f"return self.send({operation}).{first}"]
    else:
        result, body = f"wire.{row.answer.__name__}", [f"return self.send({operation})"]
    lines = [f"def {row.name}({', '.join(('self', *signature))}) -> {result}:", *_docstring(row), *_indented(body)]
    return textwrap.indent("\n".join(lines), "    ") + "\n"


def _item(row: Row) -> Any:
    """Return the type of an item of a list that has pages; None for other answers."""
    types = {field.name: field.type for field in msgspec.structs.fields(row.answer)}
    pages = types.pop("next", None) is not None and len(types) == 1
    return get_args(next(iter(types.values())))[0] if pages else None


def _docstring(row: Row) -> list[str]:
    text = " ".join(filter(None, (row.description.partition("\n\n")[0].replace("\n", " "), ONLY.get(row.route.role))))
    *lines, last = textwrap.wrap(f'"""{text}', 109, break_long_words=False, break_on_hyphens=False)
    return _indented([*lines, f'{last}"""'])


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _parameter(parameter: Parameter) -> str:
    """Return a parameter of an operation as one of a method."""
    if parameter.type is Moment:
        return f"{parameter.name}: Moment | None = None"
    if parameter.many:
        return f"{parameter.name}: str | Sequence[str] = ()"
    default = "" if parameter.required else f" = {parameter.default!r}"
    return f"{parameter.name}: {_python(parameter.type)}{default}"


def _field(field: Any) -> str:
    """Return a key of a document as a parameter of a method."""
    kind = _python(field.type)
    if field.default is not msgspec.UNSET:
        return f"{field.name}: {kind}"
    return f'{field.name}: {kind} = ""' if kind == "str" else f"{field.name}: {kind} | None = None"


def _sent(field: Any) -> str:
    name: str = field.name
    return f"{name} or None" if field.default is msgspec.UNSET and _python(field.type) == "str" else name


def _python(kind: Any) -> str:
    """Return a type as an annotation, without bounds."""
    kind = bare(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return " | ".join(_python(each) for each in arguments if each is not msgspec.UnsetType)
    if origin is Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]".replace("'", '"')
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_python, arguments))}]"
    if kind in (NoneType, Any):
        return "None" if kind is NoneType else "Any"
    return f"wire.{kind.__name__}" if kind.__module__ == wire.__name__ else str(kind.__name__)


def _formatted(text: str) -> str:
    """Return Python as ruff formats it, without unused imports."""
    command = [sys.executable, "-m", "ruff"]
    for step in (["check", "--fix-only", "--select", "F401,I"], ["format"]):
        done = subprocess.run(
            [*command, *step, "--quiet", "--stdin-filename", str(CLIENT / "generated.py"), "-"],
            cwd=ROOT,
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        )
        text = done.stdout
    return text


# -- types of the web page ---------------------------------------------------------------------------------------

PAGE = (
    *(wire.DryRun, wire.Bill, wire.Waits, wire.PromisedStarts),
    *(wire.Job, wire.Task, wire.PastJob, wire.Waiting, wire.Eta, wire.WhatIf, wire.Timeline, wire.Lane, wire.Hold),
    *(wire.Promise, wire.Loan, wire.Node, wire.NodeTasks, wire.NodeMap, wire.MapChange, wire.PastMap, wire.PastQueues),
    *(wire.Pool, wire.Caller),
)
"""The answers that the page reads. The types in them are added."""
IN_TYPESCRIPT = {"Node": "NodeInfo", "Promise": "Held"}
"""Types whose names browsers use for something else."""
PRIMITIVES: dict[Any, str] = {
    str: "string",
    bool: "boolean",
    int: "number",
    float: "number",
    NoneType: "null",
    Any: "unknown",
}


def page_types() -> str:
    """Return the module with the types of the web page."""
    written: dict[type, str] = {}
    for kind in PAGE:
        _declare(kind, written)
    head = "// The answers of the API that the page reads. `make generate` writes this file.\n"
    return "\n".join([head, *sorted(written.values(), key=lambda text: text.partition("export ")[2])])


def _declare(kind: type, written: dict[type, str]) -> None:
    """Add the declaration of a type, and those of the types in it."""
    if kind in written:
        return
    written[kind] = ""
    fields = [(field.name, _typescript(field.type, written)) for field in msgspec.structs.fields(kind)]
    text = " ".join((kind.__doc__ or "").split())
    lines = textwrap.wrap(text, 117, initial_indent="/** ", subsequent_indent=" * ", break_long_words=False)
    comment = "\n".join(lines) + (" */\n" if len(lines) == 1 else "\n */\n") if text else ""
    name = IN_TYPESCRIPT.get(kind.__name__, kind.__name__)
    if kind.__struct_config__.array_like:  # type: ignore[attr-defined]  # a struct of msgspec
        items = ", ".join(f"{name}: {type_}" for name, type_ in fields)
        written[kind] = f"{comment}export type {name} = [{items}];\n"
    else:
        items = "".join(f"  {name}: {type_};\n" for name, type_ in fields)
        written[kind] = f"{comment}export interface {name} {{\n{items}}}\n"


def _typescript(kind: Any, written: dict[type, str]) -> str:
    kind = bare(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return " | ".join(f'"{each}"' for each in arguments)
    if kind in PRIMITIVES:
        return PRIMITIVES[kind]
    inner = [_typescript(each, written) for each in arguments]
    if origin in (Union, UnionType):
        return " | ".join(dict.fromkeys(inner))
    if origin is list:
        return f"({inner[0]})[]" if "|" in inner[0] else f"{inner[0]}[]"
    if origin is tuple:
        return f"[{', '.join(inner)}]"
    if origin is dict:
        return f"Record<{', '.join(inner)}>"
    _declare(kind, written)
    return str(IN_TYPESCRIPT.get(kind.__name__, kind.__name__))


# -- the options of Slurm's commands -----------------------------------------------------------------------------

OPTIONS_HEAD = """# Options of Slurm's commands

`make generate` writes this page from the tables that also parse the options (`slurm/tables.py`). *Accepted* options
have no effect, and the page says why. *Refused* ones end the command with an error that names them. How the commands
work is in [Slurm's commands](slurm.md).
"""
SUPPORT = {"supported": "", "accepted": "accepted: ", "refused": "**refused**: "}


def options_page() -> str:
    """Return docs/slurm-options.md."""
    parts = [OPTIONS_HEAD]
    for table in TABLES:
        rows = [
            f"| `{_table_cell(option.names)}` | {SUPPORT[option.support]}{_table_cell(option.text)} |"
            for option in table.options
        ]
        parts.append("\n".join([f"\n## {table.name}\n", table.text + "\n", "| option | |", "|---|---|", *rows]) + "\n")
    return "".join(parts)


def _table_cell(text: str) -> str:
    return text.replace("|", "\\|")


FILES: dict[Path, Callable[[], str]] = {
    CLIENT / "methods.py": client_methods,
    CLIENT / "async_methods.py": async_methods,
    ROOT / "web" / "src" / "lib" / "types.ts": page_types,
    ROOT / "docs" / "slurm-options.md": options_page,
}
"""Generated file → its content."""


def main() -> None:
    for path, content in FILES.items():
        path.write_text(content(), encoding="utf-8")


if __name__ == "__main__":
    main()
