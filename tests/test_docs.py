"""The documentation is true: settings have their rows and defaults, code runs and prints what is shown, links work,
and the paths that pages name exist.

    python tests/test_docs.py     writes the output of the demo into docs/tour.md
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.core.changes import NodeSpec
from fairlead.core.config import parse_config
from fairlead.core.documents import parse_job, parse_node
from fairlead.core.errors import Refused
from fairlead.core.model import JobSpec, Limits, PoolSettings, QueueSettings, StageSpec
from fairlead.core.resources import format_duration, parse_duration
from fairlead.core.settings import PartitionConfig, PartitionSettings, Requestor

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from docs.pages import FENCE, broken_links, gather  # noqa: E402

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TOUR = ROOT / "docs" / "tour.md"
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
REFERENCE = ("reference/api.md", "reference/commands.md", "reference/python.md")
"""Pages that `make docs` generates."""
DEMO = re.compile(r"(<!-- demo: [^\n]* -->\n\n```text\n)(.*?)(^```$)", re.MULTILINE | re.DOTALL)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


# -- settings ----------------------------------------------------------------------------------------------------


def rows_of(page: str, section: str) -> dict[str, list[str]]:
    """The rows of the table of a section, by key, as cells."""
    found = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert found, f"docs/settings.md has no section {section}"
    table: dict[str, list[str]] = {}
    for line in found[1].splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `"):
            assert len(cells) == 4, f"{section}: {line}"
            assert cells[0].strip("`") not in table, f"{section}: {cells[0]} is listed twice"
            table[cells[0].strip("`")] = cells[1:]
    return table


def shown(value: object) -> str:
    """A default as the page writes it."""
    if value is None:
        return "none"
    if value in ((), ""):
        return "empty"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def is_duration(kind: type[Any], key: str) -> bool:
    return "Micros" in str(kind.__annotations__.get(key))


PARTITION = parse_config({"partitions": {"p": {"queues": {"root": {}}, "pools": {"p": {"node": {"cpu": 1}}}}}})["p"]
JOB = parse_job({"stages": [{}]})

# section → the struct, what a document without the key gives, and rows whose default is said in words.
SECTIONS: dict[str, tuple[type[Any], Any, dict[str, str]]] = {
    "Partition": (
        PartitionSettings,
        PARTITION.settings,
        {
            "queues": "`{root: {default: {share: 100, order: fair}}}`",
            "pools": "empty",
            "min_runtime": "`rebalance_after`, at most `1min`",
        },
    ),
    "Requestor": (Requestor, None, {"match": "required", "queue": "required"}),
    "Queue": (QueueSettings, dict(PARTITION.queues)["root"], {}),
    "Limits": (Limits, Limits(), {}),
    "Pool": (PoolSettings, dict(PARTITION.pools)["p"], {"node": "required"}),
    "Job": (JobSpec, JOB, {"stages": "required"}),
    "Stage": (
        StageSpec,
        JOB.stages[0],
        {
            "array": "none",
            "throttle": "none",
            "min": "`count`",
            "resources": "`cpu: 1`",
            "on_failure": "`restart` for a strict gang, else `replace`",
            "on_loss": "`restart` for a strict gang, else `replace`",
        },
    ),
    "Node": (NodeSpec, parse_node({"name": "n"})[1], {"name": "required", "resources": "required"}),
}
# Fields that no document has under that name.
NOT_A_KEY = {("Job", "manager"), ("Job", "matched"), ("Job", "shape_user"), ("Node", "capacity"), ("Stage", "indices")}


@pytest.fixture(scope="module")
def settings() -> str:
    return (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("section", SECTIONS)
def test_every_key_has_a_row_and_every_row_a_key(settings: str, section: str) -> None:
    kind, _, in_words = SECTIONS[section]
    fields = {field for field in kind.__struct_fields__ if (section, field) not in NOT_A_KEY}
    assert set(rows_of(settings, section)) == fields | set(in_words)


@pytest.mark.parametrize("section", SECTIONS)
def test_defaults_are_those_of_the_code(settings: str, section: str) -> None:
    kind, read, in_words = SECTIONS[section]
    for key, (default, *_) in rows_of(settings, section).items():
        value = None if key in in_words else getattr(read, key)
        if is_duration(kind, key) and value is not None:
            # Many texts stand for one duration, and the shortest (600s) is not always the plainest (10min).
            assert parse_duration(default.strip("`"), key) == value, format_duration(value)
        else:
            assert default == (in_words.get(key) or shown(value)), key


@pytest.mark.parametrize("section", SECTIONS)
def test_rows_are_complete(settings: str, section: str) -> None:
    kind = SECTIONS[section][0]
    for key, (_, unit, meaning) in rows_of(settings, section).items():
        assert meaning, key
        assert (unit == "duration") == is_duration(kind, key), f"{section} {key}: {unit}"


def partition_with(document: dict[str, Any]) -> PartitionConfig:
    return parse_config({"partitions": {"p": document}})["p"]


# One document a section with an unknown key, so that the sections are what the readers read.
READERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "Partition": partition_with,
    "Requestor": lambda doc: partition_with({"requestors": [{"match": "", "queue": "root.default", **doc}]}),
    "Queue": lambda doc: partition_with({"queues": {"root": doc}}),
    "Limits": lambda doc: partition_with({"queues": {"root": {"users": {"*": doc}}}}),
    "Pool": lambda doc: partition_with({"pools": {"p": {"node": {"cpu": 1}, **doc}}}),
    "Job": lambda doc: parse_job({"stages": [{}], **doc}),
    "Stage": lambda doc: parse_job({"stages": [doc]}),
    "Node": lambda doc: parse_node({"name": "n", **doc}),
}


@pytest.mark.parametrize("section", SECTIONS)
def test_the_reader_names_the_same_keys(settings: str, section: str) -> None:
    with pytest.raises(Refused) as refusal:
        READERS[section]({"zzz": 1})
    named = refusal.value.problem.partition("; it has ")[2].removesuffix(", and other queues as mappings")
    assert set(named.split(", ")) == set(rows_of(settings, section))


# -- code and output ---------------------------------------------------------------------------------------------


def code_of(page: Path) -> list[tuple[str, str | None]]:
    """The python blocks of a page, each with the text block that follows it at once, if one does."""
    text = page.read_text(encoding="utf-8")
    blocks = list(FENCE.finditer(text))
    found: list[tuple[str, str | None]] = []
    for at, block in enumerate(blocks):
        if block[1].split()[:1] == ["python"]:
            after = blocks[at + 1] if at + 1 < len(blocks) else None
            follows = after is not None and after[1] == "text" and not text[block.end() : after.start()].strip()
            found.append((block[2], after[2] if after is not None and follows else None))
    return found


def printed_by(code: str, names: dict[str, Any]) -> str:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "example", "exec"), names)
    return out.getvalue()


@pytest.mark.usefixtures("own_policies")
@pytest.mark.parametrize("page", [page for page in PAGES if code_of(page)], ids=name_of)
def test_code_runs_and_prints_what_is_shown(page: Path) -> None:
    names: dict[str, Any] = {}
    for code, expected in code_of(page):
        printed = printed_by(code, names)
        assert printed == (expected or ""), code


@pytest.mark.parametrize("example", EXAMPLES, ids=name_of)
def test_an_example_prints_what_it_says(example: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(example)])  # without the arguments of pytest
    source = example.read_text(encoding="utf-8")
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = printed_by(source, names)
    documented = names["__doc__"].partition("Prints:\n")[2]
    assert [line.strip() for line in documented.strip().splitlines()] == printed.splitlines()


def demo_output() -> str:
    colours = ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE")
    environment = {name: value for name, value in os.environ.items() if name not in colours}
    done = subprocess.run(
        [sys.executable, "-c", "from fairlead.cli import main; main()", "demo"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines())


def test_the_tour_shows_the_demo() -> None:
    shown_there = DEMO.search(TOUR.read_text(encoding="utf-8"))
    assert shown_there, "docs/tour.md has no block for the demo"
    assert shown_there[2] == demo_output(), "run `python tests/test_docs.py` to write the new output"


def test_each_attack_names_its_tests() -> None:
    """Every row of the tables of attacks has its test, which exists."""
    page = (ROOT / "docs/security.md").read_text()
    tables = [
        table
        for table in page.split("\n\n")
        if table.startswith("| an attack") and table.split("\n")[0].endswith("test |")
    ]
    assert len(tables) == 2
    rows = [row.split("|")[1:-1] for table in tables for row in table.strip().split("\n")[2:]]
    without = [row[0].strip() for row in rows if "tests/" not in row[-1] and "`test_" not in row[-1]]
    assert without == ["fill the disk"]  # not protected
    for file in re.findall(r"`(tests/[a-z_/]+\.py)`", page):
        assert (ROOT / file).exists(), file
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for name in re.findall(r"`(test_[a-z_]+)`", page):
        assert f"def {name}" in tests, name


def test_what_make_does_is_a_target() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = set(re.findall(r"^make ([a-z-]+)", text, re.MULTILINE)) | set(re.findall(r"`make ([a-z-]+)`", text))
        assert named <= targets, name_of(page)


# -- links and paths ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gathered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as `make docs` gathers them, with the files that they link to."""
    folder = tmp_path_factory.mktemp("pages") / "pages"
    gather(folder)
    return folder


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(gathered: Path, page: Path) -> None:
    assert broken_links(gathered / name_of(page)) == []


def test_broken_links_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "folder").mkdir()
    (tmp_path / "a.png").touch()
    good = "[1](page.md) [2](#a-b) ![3](a.png)"
    page.write_text(f"# A b\n{good} [4](no.md) [5](#c) [6](page.md#d) [7](folder/) ![8](b.png)\n", encoding="utf-8")
    assert broken_links(page) == ["no.md", "#c", "page.md#d", "folder/", "b.png"]


def test_a_broken_link_ends_make_docs(tmp_path: Path) -> None:
    """`make docs` stops at the first program that fails, which is this one."""
    for name in ("docs", "src"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "docs" / "pages.py", tmp_path / "docs")
    (tmp_path / "README.md").write_text("![a picture](docs/none.png)\n", encoding="utf-8")
    words = [sys.executable, str(tmp_path / "docs" / "pages.py"), str(tmp_path / "pages")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (1, "error: broken links\nREADME.md: no such place: docs/none.png\n")


def paths_in(text: str) -> set[str]:
    """What is written as code and looks like a path of a file or folder."""
    return {found for found in re.findall(r"`([\w./-]+)`", text) if re.search(r"\.(py|md)$|/$", found)}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "settings.md"], ids=name_of)
def test_paths_exist(page: Path) -> None:
    missing = {
        path
        for path in paths_in(page.read_text(encoding="utf-8"))
        if not (ROOT / path).exists() and not (ROOT / "src" / "fairlead" / path).exists()
    }
    assert not missing


def test_the_map_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    source = ROOT / "src" / "fairlead"
    wanted = {f"src/fairlead/{path.parent.name}/" for path in source.glob("*/__init__.py")}
    wanted |= {f"src/fairlead/{path.name}" for path in source.glob("*.py") if path.name != "__init__.py"}
    assert wanted <= paths_in(text.partition("## Map")[2])


def test_the_architecture_is_one_page() -> None:
    assert len((ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").splitlines()) < 130


def test_commands_that_pages_name_exist() -> None:
    for page in PAGES:
        for group, command in re.findall(r"fairlead (config|journal) ([a-z]+)", page.read_text(encoding="utf-8")):
            words = [sys.executable, "-c", "from fairlead.cli import main; main()", group, command, "--help"]
            assert subprocess.run(words, capture_output=True, timeout=60, check=False).returncode == 0, (group, command)


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text(encoding="utf-8"))
    assert listed == sorted(path.name for path in folder.glob("0*.md"))


# -- the site ----------------------------------------------------------------------------------------------------


def test_the_site_names_every_page() -> None:
    """Otherwise `make docs` fails, but later than this test."""
    sections = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named: list[str] = []
    for section in sections:
        for content in section.values():
            named += [content] if isinstance(content, str) else [path for page in content for path in page.values()]
    pages = {name_of(page) for page in PAGES if not re.match(r"\d{4}-", page.name)}
    assert sorted(named) == sorted(pages | {"bench/RESULTS.md", *REFERENCE})


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lists_are_lists_on_the_site(page: Path) -> None:
    """A list begins after an empty line, and one within another is indented by four spaces."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    item = re.compile(r"( *)([-*]|\d+\.) ")
    for before, line in pairwise(text.splitlines()):
        if found := item.match(line):
            assert len(found[1]) % 4 == 0, line
            assert not before or before.startswith("#") or before.startswith("  ") or item.match(before), line


if __name__ == "__main__":
    output = demo_output()
    page = TOUR.read_text(encoding="utf-8")
    TOUR.write_text(DEMO.sub(lambda found: found[1] + output + found[3], page), encoding="utf-8")
