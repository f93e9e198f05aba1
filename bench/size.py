"""Measures how large and how plain the source is: `python -m bench.size [TREE]`, for this tree or another checkout.

The last figures are of a running `fairlead up`: which files and functions of server, agent and command line run while
one job is submitted and ends.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from time import sleep

from bench.harness import ROOT

Function = ast.FunctionDef | ast.AsyncFunctionDef
PLAIN_WORDS = frozenset(("pending", "rating"))
"""Names that end like a gerund and are none."""


def branches(node: ast.AST) -> int:
    """Return the decisions below a node, without those of functions inside it."""
    found = 0
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.If() | ast.IfExp() | ast.For() | ast.AsyncFor() | ast.While() | ast.ExceptHandler() | ast.Assert():
                found += 1
            case ast.comprehension(ifs=ifs):
                found += 1 + len(ifs)
            case ast.BoolOp(values=values):
                found += len(values) - 1
            case ast.match_case():
                found += 1
        if not isinstance(child, Function):
            found += branches(child)
    return found


def longest_function(files: list[Path]) -> tuple[int, str]:
    """Return the lines and the place of the longest function, which may contain others."""
    lengths = [
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{path.name}:{node.name}")
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, Function)
    ]
    return max(lengths)


def measure(tree: Path) -> dict[str, object]:
    """Return the figures of the source in a tree."""
    source = tree / "src" / "fairlead"
    files = sorted(source.rglob("*.py"))
    names = [path.stem for path in files if path.name != "__init__.py"]
    repeated = sorted(name for name, times in Counter(names).items() if times > 1)
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in files]
    found = [1 + branches(node) for tree in trees for node in ast.walk(tree) if isinstance(node, Function)]
    longest, where = longest_function(files)
    return {
        "lines": sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files),
        "files": len(files),
        "functions above complexity 15": sum(each > 15 for each in found),
        "functions above complexity 25": sum(each > 25 for each in found),
        "longest function": f"{longest} lines, {where}",
        "files named by a gerund": sum(name.endswith("ing") and name not in PLAIN_WORDS for name in names),
        "names of two or more files": f"{len(repeated)}: {', '.join(repeated)}",
    }


RECORDER = """
import inspect, os, sys, threading, time
from pathlib import Path

folder = Path(os.environ["FAIRLEAD_CALLS"])
seen, recording = set(), False

def hook(frame, event, _):
    code = frame.f_code
    if recording and event == "call" and "/src/fairlead/" in code.co_filename and code.co_flags & inspect.CO_OPTIMIZED:
        if not code.co_name.startswith("<"):
            seen.add((code.co_filename.partition("/src/fairlead/")[2], code.co_qualname))

def watch():
    global recording
    recording = (folder / "on").exists()
    while not (folder / "off").exists():
        recording = recording or (folder / "on").exists()
        time.sleep(0.005)
    recording = False
    write()

def write():
    (folder / f"{os.getpid()}.calls").write_text("".join(f"{file} {name}\\n" for file, name in seen))

import atexit
atexit.register(write)
threading.Thread(target=watch, daemon=True).start()
threading.setprofile(hook)
sys.setprofile(hook)
"""
"""Loaded as `sitecustomize` by each Python process; notes functions that are called between two marks."""
SETTLING = 3.0
"""Seconds after which a server that is up does only what it does all the time."""


def calls_of_a_submission(tree: Path) -> set[tuple[str, str]]:
    """Return the files and functions that run while one job is submitted, runs and ends."""
    with TemporaryDirectory(prefix="fairlead-calls-") as name:
        folder = Path(name)
        (folder / "sitecustomize.py").write_text(RECORDER, encoding="utf-8")
        environment = os.environ | {
            "PYTHONPATH": f"{folder}:{tree / 'src'}:{os.environ.get('PYTHONPATH', '')}",
            "FAIRLEAD_CALLS": name,
            "FAIRLEAD_DATA": str(folder / "data"),
        }
        program = [sys.executable, "-c", "import sys, fairlead.cli; sys.exit(fairlead.cli.main())"]
        with subprocess.Popen(
            [*program, "up", "--port", "0"], env=environment, stdout=subprocess.PIPE, cwd=folder
        ) as server:
            assert server.stdout is not None
            while b" is up at " not in server.stdout.readline():
                pass
            sleep(SETTLING)
            (folder / "on").touch()
            subprocess.run([*program, "run", "--", "true"], env=environment, check=True, cwd=folder, timeout=60)
            (folder / "off").touch()
            server.terminate()
            server.communicate(timeout=60)
        lines = [line for path in folder.glob("*.calls") for line in path.read_text(encoding="utf-8").splitlines()]
    return {(file, function) for file, _, function in (line.partition(" ") for line in lines)}


def main() -> int:
    tree = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    figures = measure(tree)
    calls = calls_of_a_submission(tree)
    figures["files run by one submission"] = len({file for file, _ in calls})
    figures["functions run by one submission"] = len(calls)
    for name, figure in figures.items():
        print(f"{name}: {figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
