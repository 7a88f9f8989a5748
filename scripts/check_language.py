"""Check the language of code and documentation, and that no two classes of the package share a name.

Usage: python -m scripts.check_language [PATH ...]

Reads docstrings, comments and texts of src/penstock, the docstrings and comments of scripts/, benchmarks/ and tests/,
the names of test functions and classes, and the prose of README.md, CONTRIBUTING.md and docs/. Code in backticks and
fenced blocks is not checked. Exits with 1 if something was found.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.measure_code import ROOT, Module, comments_of, docstrings_of, duplicate_classes, modules_of

TEXT_WORDS_MIN = 3  # a string of fewer words is a name or a key, not a text
UNCHECKED = {"scripts/check_language.py", "tests/unit/scripts/test_check_language.py"}  # quote what the rules forbid


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern that plain English does without, and what to write in its place."""

    pattern: str
    instead: str


DOCSTRING_RULES = (
    Rule(r"\A(?:What|Whether|Who|Whoever|Whom|Whose|Where|Of)\b", "begin with a verb (Return ...) or a noun phrase"),
)
RULES = (
    Rule(r"(?i)\b(?:whoever|whomever|whatever is|nobody|somebody)\b", "name the program or the person: worker, caller"),
    Rule(r"\b(?:by itself|by themselves)\b", "automatically, on its own, alone"),
    Rule(r"\b(?:has|have|had) to be there\b", "must exist"),
    Rule(r"\bcomes? to (?:be|an end|its|a)\b", "say what happens"),
    Rule(r"\band the like\b", "such as ..."),
    Rule(r"(?:\A|[.;:] )Of (?:a|an|the|all|any|each|every|several|those|these)\b", "subject first"),
    Rule(
        r"(?<![dD]ead )(?<!dead-)(?<!Dead-)(?<!capital )(?<!lower-case )\bletters?\b(?! case|,? (?:or )?digits?)",
        "dead-lettered message",
    ),
    Rule(r"\b(?:give|gives|gave|given|giving)(?: \w+)? back\b", "release; SQS: make visible again"),
    Rule(r"\bhand-?overs?\b", "delivery"),
    Rule(r"\b(?:first|second) tiers?\b", "DLQ, final DLQ"),
    Rule(r"\b(?:un)?charged\b|\brefund(?:s|ed)?\b", "counted as an attempt, not counted as an attempt"),
    Rule(r"\b(?:errands?|heralds?|caretakers?|verdicts?|tidings?)\b", "the field's word: task, notifier, status"),
    Rule(r"\b(?:is|are|was|were|be|been) told\b(?! apart)", "is reported, receives, learns"),
    Rule(r"\btold (?:of|that|what|whether)\b", "reported"),
    Rule(r"\bthere is (?:looked|asked|waited)\b", "name the actor"),
    Rule(r"\bdead objects?\b", "failed object"),
    Rule(r"\bstate folders?\b", "data directory"),
    Rule(r"\bat rest\b", "stable, idle"),
    Rule(r"\bso (?:long|many|much|often) (?:ago|before|after)\b", "that long, N"),
)

NAME_RULES = (
    Rule(r"(?i)(?<![a-z])(?:what|who|whoever|nobody|somebody)(?![a-z])", "subject, verb, object or condition"),
    Rule(r"(?i)(?<![a-z])(?:told|tells)(?![a-z])", "reports, emits, receives"),
    Rule(r"(?i)(?<![a-z])(?<!dead_)letters?(?![a-z])", "dead_letter"),
)

# Where a phrase is right all the same, as (path, phrase): the reason.
EXCEPTIONS: dict[tuple[str, str], str] = {
    ("docs/learn/messages.md", "charged"): "money",
    ("docs/run/redis.md", "letters"): "of the alphabet",
    ("docs/run/s3.md", "letter"): "of the alphabet",
    ("src/penstock/ledger/migrations/versions/v0007_views.py", "charged"): "a column of the ledger",
    ("src/penstock/ledger/migrations/versions/v0007_views.py", "refunds"): "a column of the ledger",
    ("src/penstock/operations/dead_letters/files.py", "letters"): "an example of a file's name",
    ("benchmarks/dead_letters.py", "letters"): "an option",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A piece of prose: a docstring, a comment, a text in the code, a paragraph of a page, or the name of a test."""

    path: str
    text: str
    is_docstring: bool = False
    is_name: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A phrase that breaks a rule, with the words around it."""

    path: str
    phrase: str
    around: str
    instead: str

    def __str__(self) -> str:
        return f"{self.path}: {self.phrase!r} in {self.around!r}: write {self.instead}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Check the language of code and documentation.")
    parser.add_argument("paths", nargs="*", metavar="PATH", help="only files whose path begins so")
    arguments = parser.parse_args()
    modules = list(modules_of(ROOT))
    texts = [text for text in texts_of(ROOT, modules) if text.path.startswith(tuple(arguments.paths) or "")]
    findings = [str(finding) for text in texts for finding in findings_in(text)]
    findings += [
        f"{name} is the name of {len(paths)} classes: {', '.join(paths)}" for name, paths in duplicates(modules)
    ]
    print("\n".join(findings) if findings else f"{len(texts)} texts, nothing found")
    sys.exit(bool(findings))


def duplicates(modules: Sequence[Module]) -> Sequence[tuple[str, Sequence[str]]]:
    """Return the class names that are defined more than once, each with its files."""
    return list(duplicate_classes(modules).items())


def texts_of(root: Path, modules: Sequence[Module]) -> Iterator[Text]:
    """Yield every piece of prose of a checkout, and the names of its tests."""
    for module in modules:
        yield from prose_of(module)
        for text in strings_of(module.tree):
            yield Text(path=module.path, text=text)
    for folder in ("scripts", "benchmarks", "tests"):
        for path in sorted((root / folder).rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            name = str(path.relative_to(root))
            if name in UNCHECKED:
                continue
            module = Module(name=path.stem, path=name, text=text, tree=ast.parse(text))
            yield from prose_of(module)
            if folder == "tests":
                yield from names_of(module)
    for path in [root / "README.md", root / "CONTRIBUTING.md", *sorted((root / "docs").rglob("*.md"))]:
        for paragraph in paragraphs_of(path.read_text(encoding="utf-8")):
            yield Text(path=str(path.relative_to(root)), text=paragraph)


def prose_of(module: Module) -> Iterator[Text]:
    for text in docstrings_of(module):
        yield Text(path=module.path, text=text, is_docstring=True)
    for text in comments_of(module):
        yield Text(path=module.path, text=text)


def names_of(module: Module) -> Iterator[Text]:
    """Yield the names of the test functions and test classes of a module."""
    for node in ast.walk(module.tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test_"):
                yield Text(path=module.path, text=name, is_name=True)
            case ast.ClassDef(name=name) if name.startswith("Test"):
                yield Text(path=module.path, text=name, is_name=True)


def strings_of(tree: ast.Module) -> Iterator[str]:
    """Yield the texts in the code: help, log lines and errors, with a blank for each value in them."""
    docstrings = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "_" for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings | parts:
            text = node.value
        else:
            continue
        if len(text.split()) >= TEXT_WORDS_MIN:
            yield text


def paragraphs_of(page: str) -> Iterator[str]:
    """Yield the paragraphs of a Markdown page without its fenced blocks."""
    prose = re.sub(r"^( *)(```|~~~).*?^\1\2", "", page, flags=re.MULTILINE | re.DOTALL)
    yield from (paragraph for paragraph in re.split(r"\n\s*\n", prose) if paragraph.strip())


def findings_in(text: Text) -> Iterator[Finding]:
    """Yield the phrases of a text that break a rule and are no exception."""
    words = re.sub(r"(`+)[^`]*\1", "`_`", " ".join(text.text.split()))
    for rule in rules_for(text):
        for match in re.finditer(rule.pattern, words):
            phrase = match[0].strip(" .;:")
            if (text.path, phrase) not in EXCEPTIONS:
                around = words[max(0, match.start() - 40) : match.end() + 40]
                yield Finding(path=text.path, phrase=phrase, around=around, instead=rule.instead)


def rules_for(text: Text) -> Sequence[Rule]:
    if text.is_name:
        return NAME_RULES
    return (*DOCSTRING_RULES, *RULES) if text.is_docstring else RULES


if __name__ == "__main__":
    main()
