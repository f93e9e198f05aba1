"""Measures how large and how plain the source is: `python -m bench.size [TREE]`, for this tree or another checkout."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

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


def main() -> int:
    for name, figure in measure(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT).items():
        print(f"{name}: {figure}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
