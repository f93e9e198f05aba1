"""Gather the pages of the site in a folder: `python docs/pages.py FOLDER`, which `make docs` does.

Files keep the places that they have in the repository, so that links between them lead to the same files on the site.
The reference is made anew every time: commands from the command line, Python from docstrings, the API from its rows.
A link that leads nowhere is an error here, because Zensical looks only at links between pages, not at those to files.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from fairlead.wire.operation import JSON, Parameter, Row
from fairlead.wire.operations import rows

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of code on a page: its first line, and its text."""
PATTERNS = ["*.md", "LICENSE", "bench/*.md", "docs/**/*.md", "docs/*.svg", "docs/*.png", "examples/**/*.py"]

PYTHON = """# Python

The names on this page are the public interface. Others may change from one commit to the next.

::: fairlead
    options: {members: false}
::: fairlead.client
    options: {inherited_members: true}
::: fairlead.gang
    options: {members: [wait]}
::: fairlead.testing.World
::: fairlead.policies
::: fairlead.core.policy.shares
    options: {show_if_no_docstring: false}
"""

API = """Types of bodies and answers are in the OpenAPI description, `/api/v1/openapi.json`, with an example of each
operation. The page about the API has what is common to all.
"""


def commands() -> str:
    """Return the page of all commands, as Typer writes it."""
    words = [sys.executable, "-m", "typer", "fairlead.cli.main", "utils", "docs", "--name", "fairlead"]
    done = subprocess.run([*words, "--title", "Commands"], stdout=subprocess.PIPE, text=True, timeout=60, check=True)
    return done.stdout


def api() -> str:
    """Return the page of all operations of the API."""
    return "\n".join(["# Operations of the API", "", API, *map(_operation, rows())])


def _operation(row: Row) -> str:
    route = row.route
    lines = [f"## {row.operation_id}", "", f"`{route.method} {route.path}`", "", row.description, ""]
    facts = [f"Role: {route.role}." if route.role else "No token is needed."]
    if row.document is not None:
        facts.append(f"Body: `{row.document.type.__name__}`.")
    answer = f"`{getattr(row.answer, '__name__', 'object')}`" if route.media == JSON else route.media
    facts.append(f"Answer: {answer}.")
    if row.follows:
        facts.append("A server that follows the partition may answer.")
    lines += [" ".join(facts), ""]
    if row.parameters:
        lines += ["| parameter | in | default | |", "|---|---|---|---|", *map(_parameter, row.parameters), ""]
    return "\n".join(lines)


def _parameter(parameter: Parameter) -> str:
    default = "required" if parameter.required else "" if parameter.default in ("", None, []) else parameter.default
    choices = f"one of {', '.join(parameter.choices)}" if parameter.choices else ""
    return f"| `{parameter.sent}` | {parameter.place} | {default} | {parameter.description or choices} |"


def titled(page: str) -> str:
    """Return a page on which blocks of code with a file's name, as ```python policy.py, have it as their title."""
    return re.sub(r"^```(\w+) ([\w./-]+)$", r'```\1 title="\2"', page, flags=re.MULTILINE)


def gather(folder: Path) -> None:
    """Fill a folder, which is made anew, with the pages."""
    shutil.rmtree(folder, ignore_errors=True)
    for pattern in PATTERNS:
        for source in ROOT.glob(pattern):
            target = folder / source.relative_to(ROOT)
            target.parent.mkdir(parents=True, exist_ok=True)
            if source.suffix == ".md":
                target.write_text(titled(source.read_text(encoding="utf-8")), encoding="utf-8")
            else:
                shutil.copyfile(source, target)
    reference = folder / "reference"
    reference.mkdir()
    (reference / "commands.md").write_text(commands(), encoding="utf-8")
    (reference / "api.md").write_text(api(), encoding="utf-8")
    (reference / "python.md").write_text(PYTHON, encoding="utf-8")


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_links(page: Path) -> list[str]:
    """Return the links of a gathered page that lead to no file or to no heading.

    A folder is no page of the site, and pages link to no other host, so such links are broken too.
    """
    broken: list[str] = []
    for link in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        path, _, anchor = link.partition("#")
        target = (page.parent / path) if path else page
        if "://" in link or not target.is_file() or (anchor and anchor not in anchors_of(target)):
            broken.append(link)
    return broken


def main() -> None:
    folder = Path(sys.argv[1])
    gather(folder)
    problems = [
        f"{page.relative_to(folder)}: no such place: {link}"
        for page in sorted(folder.rglob("*.md"))
        for link in broken_links(page)
    ]
    if problems:
        sys.exit("\n".join(["error: broken links", *problems]))


if __name__ == "__main__":
    main()
