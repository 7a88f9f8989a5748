"""Measure the shape and the language of a source tree.

Usage: python -m scripts.measure_code [--tree PATH ...] [--trace] [--json] [--before FILE]

Reads PATH/src/penstock without importing it. Several trees make several columns; `--before` adds the column of a file
that `--json` wrote for one tree. `--trace` also counts the files and classes that one Redis message passes from the
receive call to the ack; see scripts/trace_message.py.
"""

import argparse
import ast
import io
import json
import re
import statistics
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TRACE = Path(__file__).resolve().with_name("trace_message.py")
SHORT_FILE_LINES = 50  # files below this are counted
LONG_FUNCTION_LINES = 80  # functions above this are counted

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
Measures = Mapping[str, Any]  # JSON values by label, in the order of the table

# Occurrences per 1,000 words of docstrings and comments.
PROSE = {
    '"what"': r"\bwhat\b",
    "who, whoever, whom": r"\bwho(?:ever|m)?\b",
    "nobody, somebody": r"\b(?:no|some)body\b",
    "tell, told": r"\b(?:tells?|told)\b",
    "came, comes to": r"\b(?:came|comes? to)\b",
    '"answers"': r"\banswers\b",
    '"returns"': r"\breturns\b",
}
FIRST_WORDS = ("What", "Whether", "Whoever", "Of")  # of docstrings


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One parsed Python file. ``name`` is dotted; a package has the name of its folder."""

    name: str
    path: str  # relative to the tree
    text: str
    tree: ast.Module

    @property
    def lines(self) -> int:
        return self.text.count("\n")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the shape and the language of a source tree.")
    parser.add_argument("--tree", type=Path, action="append", help="a checkout; default: this one")
    parser.add_argument("--trace", action="store_true", help="also run one Redis message and count what it passes")
    parser.add_argument("--json", action="store_true", help="print JSON, with names; takes one tree")
    parser.add_argument("--before", type=Path, metavar="FILE", help="JSON of another tree, for the first column")
    arguments = parser.parse_args()
    trees: Sequence[Path] = arguments.tree or [ROOT]
    found = [measured(tree.resolve(), trace=arguments.trace) for tree in trees]
    if arguments.json:
        if len(found) != 1:
            parser.error("--json takes one tree")
        print(json.dumps(found[0], indent=2))
        return
    titles = [tree.resolve().name for tree in trees]
    if arguments.before is not None:
        found.insert(0, json.loads(arguments.before.read_text(encoding="utf-8")))
        titles.insert(0, arguments.before.stem)
    print(table(titles, found), end="")


def measured(tree: Path, *, trace: bool) -> Measures:
    """Return every measure of a checkout."""
    modules = list(modules_of(tree))
    measures = {**shape(modules), **prose(modules)}
    return {**measures, **traced(tree)} if trace else measures


def modules_of(tree: Path) -> Iterator[Module]:
    """Parse the Python files of the package."""
    source = tree / "src"
    for path in sorted((source / "penstock").rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        text = path.read_text(encoding="utf-8")
        yield Module(
            name=".".join(parts[:-1] if parts[-1] == "__init__" else parts),
            path=str(path.relative_to(tree)),
            text=text,
            tree=ast.parse(text),
        )


def shape(modules: Sequence[Module]) -> Measures:
    """Return the measures of files, functions, classes and imports."""
    lines = [module.lines for module in modules]
    importers = Counter(imported for module in modules for imported in imports_of(module, modules))
    duplicates = duplicate_classes(modules)
    return {
        "files": len(modules),
        "lines": sum(lines),
        "median lines of a file": statistics.median(lines),
        "max lines of a file": max(lines),
        f"files under {SHORT_FILE_LINES} lines": sum(count < SHORT_FILE_LINES for count in lines),
        "modules with one importer": sum(importers[module.name] == 1 for module in modules),
        "function-level imports": sum(map(function_level_imports, modules)),
        "duplicate class names": len(duplicates),
        f"functions over {LONG_FUNCTION_LINES} lines": sum(map(long_functions, modules)),
        "duplicates": duplicates,
    }


def imports_of(module: Module, modules: Sequence[Module]) -> set[str]:
    """Return the names of the package's modules that a module imports, at any level of its code."""
    names = {each.name for each in modules}
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            # `from package import module` imports the module; any other name is the package's own.
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= full & names or {node.module}
    return (found & names) - {module.name}


def function_level_imports(module: Module) -> int:
    """Count the import statements inside functions; one in a nested function counts once."""
    inside = {
        id(node)
        for function in functions_of(module)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return len(inside)


def long_functions(module: Module) -> int:
    return sum((node.end_lineno or 0) - node.lineno + 1 > LONG_FUNCTION_LINES for node in functions_of(module))


def functions_of(module: Module) -> Iterator[FunctionNode]:
    return (node for node in ast.walk(module.tree) if isinstance(node, FunctionNode))


def duplicate_classes(modules: Sequence[Module]) -> Mapping[str, Sequence[str]]:
    """Return the class names that are defined more than once, with the files that define them."""
    found = defaultdict(list)
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(module.path)
    return {name: paths for name, paths in sorted(found.items()) if len(paths) > 1}


def prose(modules: Sequence[Module]) -> Measures:
    """Return the measures of docstrings and comments."""
    docstrings = [text for module in modules for text in docstrings_of(module)]
    comments = [text for module in modules for text in comments_of(module)]
    text = "\n".join([*docstrings, *comments])
    words = len(re.findall(r"[A-Za-z][\w'-]*", text))
    rates = {
        f"{label} per 1,000 words": round(1_000 * len(re.findall(pattern, text, re.IGNORECASE)) / words, 1)
        for label, pattern in PROSE.items()
    }
    begins = re.compile(rf"(?:{'|'.join(FIRST_WORDS)})\b")
    return {
        "words of docstrings and comments": words,
        **rates,
        "docstrings": len(docstrings),
        f"docstrings that begin with {'/'.join(FIRST_WORDS)}": sum(bool(begins.match(each)) for each in docstrings),
    }


def docstrings_of(module: Module) -> Iterator[str]:
    for node in ast.walk(module.tree):
        if isinstance(node, FunctionNode | ast.ClassDef | ast.Module):
            text = ast.get_docstring(node)
            if text:
                yield text


def comments_of(module: Module) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string.lstrip("# ")


def traced(tree: Path) -> Measures:
    """Run one message with the code of a checkout and return what it passed."""
    done = subprocess.run([sys.executable, TRACE, tree], check=True, capture_output=True, text=True)
    passed = json.loads(done.stdout)
    return {
        "files that one Redis message passes": len(passed["files"]),
        "classes that one Redis message passes": len(passed["classes"]),
        "functions that one Redis message passes": len(passed["functions"]),
        "passed": passed,
    }


def table(titles: Sequence[str], columns: Sequence[Measures]) -> str:
    """Return an aligned table of the numbers. Lists and names are for `--json`."""
    labels = [label for label, value in columns[-1].items() if isinstance(value, int | float)]
    rows = [("", *titles), *((label, *(_cell(column.get(label)) for column in columns)) for label in labels)]
    widths = [max(len(row[at]) for row in rows) for at in range(len(titles) + 1)]
    lines = [
        "  ".join(
            [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        )
        for row in rows
    ]
    return "".join(f"{line}\n" for line in lines)


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


if __name__ == "__main__":
    main()
