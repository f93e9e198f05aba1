"""docs/environment.md names every variable that the source reads or sets for a task, and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import fairlead
from fairlead.agent.launch_data import KEPT, THREADS, gang_variables, rank_variables, surroundings
from fairlead.agent.spawner.users import Person
from fairlead.wire.agent_messages import Gang

SOURCE = Path(fairlead.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "environment.md"


def page_names(*sections: str) -> set[str]:
    """Return the variables in the first column of the tables of the sections; of the whole page without sections."""
    page = PAGE.read_text(encoding="utf-8")
    parts = [part for part in page.split("\n## ")[1:] if not sections or part.splitlines()[0] in sections]
    assert len(parts) == len(sections) or not sections
    rows = [line for part in parts for line in part.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def constants(tree: ast.AST) -> dict[str, str]:
    """Return the texts that a module assigns to names."""
    values: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = target.elts if isinstance(target, ast.Tuple) else [target]
                texts = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                for name, text in zip(names, texts, strict=False):
                    if isinstance(name, ast.Name) and isinstance(text, ast.Constant) and isinstance(text.value, str):
                        values[name.id] = text.value
    return values


def is_environment(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "environ"


def variables_read(source: str) -> set[str]:
    """Return the variables that a module reads from `os.environ`, or names as the source of an option."""
    tree = ast.parse(source)
    known_texts = constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairlead."):
            file = SOURCE.parent.joinpath(*(node.module or "").split(".")).with_suffix(".py")
            found = constants(ast.parse(file.read_text(encoding="utf-8"))) if file.exists() else {}
            known_texts |= {each.name: found[each.name] for each in node.names if each.name in found}
    keys: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and is_environment(node.value):
            keys.append(node.slice)
        elif isinstance(node, ast.Compare) and any(is_environment(right) for right in node.comparators):
            keys.append(node.left)
        elif isinstance(node, ast.keyword) and node.arg == "envvar":
            keys.append(node.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if is_environment(node.func.value) and node.func.attr in ("get", "pop"):
                keys.append(node.args[0])
            assert node.func.attr != "getenv", "read os.environ, so that this test sees it"
    return {name_of(key, known_texts) for key in keys}


def name_of(key: ast.AST, known_texts: dict[str, str]) -> str:
    """Return the name of a variable; a computed part of it is `N`."""
    if isinstance(key, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "N" for part in key.values)
    return str(key.value) if isinstance(key, ast.Constant) else known_texts[key.id]  # type: ignore[attr-defined]


def test_every_variable_that_is_read_is_on_the_page() -> None:
    read = {name for file in SOURCE.rglob("*.py") for name in variables_read(file.read_text(encoding="utf-8"))}
    read -= {
        "_FAIRLEAD_COMPLETE",
        "_TYPER_COMPLETE_ARGS",
        "COMP_WORDS",
        "COMP_CWORD",
    }  # of completion
    own = page_names("Read by commands and by the Python client")
    assert read - (page_names() - own) == own  # programs in tasks read the variables of tasks


def test_every_variable_of_fairlead_is_on_the_page() -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py"))
    named = set(re.findall(r"\bFAIRLEAD_[A-Z_]*[A-Z]\b", text))
    named.add("FAIRLEAD_PARAM_name")  # stands for a variable of each parameter
    assert named == {name for name in page_names() if name.startswith("FAIRLEAD_")}


def test_every_variable_of_a_task_is_on_the_page() -> None:
    person = Person("ann", 1000, 1000, [], "/home/ann", "/bin/sh").environment
    inherited = surroundings("n1", (), {**dict.fromkeys(KEPT, ""), "FAIRLEAD_TOKEN": "x", "LC_ALL": "C"}, False)
    everywhere = page_names("Of every task")
    assert {*person, *inherited.environment, *THREADS} - {"LC_ALL"} == {
        name for name in everywhere if not name.startswith("FAIRLEAD_")
    }


def test_every_variable_of_a_gang_is_on_the_page() -> None:
    gang = Gang(key="", first=0, size=2, port=1, places=(), generation=1)
    assert {*gang_variables(gang), *rank_variables(gang, 0, "n1", False)} == page_names("Of a task in a gang")
