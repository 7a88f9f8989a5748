"""Prove the power of the tests: break the source in one place at a time, and see that a test fails.

Usage: python -m scripts.mutants [--list] [--clean] [--only NAME ...] [--area AREA ...] [--json FILE]

A mutant is an entry of scripts/mutants/AREA.toml: a text of the source, its replacement, and the tests that must fail.
The entry names no file: the text must occur exactly once in src/penstock, so that modules may move. White space in it
matches any white space. When the source changes, write the new text into the entry; never drop the entry.

The checkout is not touched: mutants are made in a copy of src on PYTHONPATH. `--clean` runs the tests of the chosen
mutants on the unchanged copy: a mutant counts as killed only if they pass there. Exits with 1 if a mutant survives, if
a text is not found exactly once, or if pytest neither passes nor fails.
"""

import argparse
import atexit
import importlib
import importlib.metadata
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLES = Path(__file__).resolve().with_suffix("")
SUFFIXES = (".py", ".lua", ".sql")
TEST_SECONDS = 120  # of one test, after which it counts as failed
RUN_SECONDS = 540.0  # of one run of pytest, after which a mutant counts as killed
PASSED = 0  # exit code of pytest
PACKAGE = "penstock"
LIBRARIES = ("pydantic", "pydantic_settings", "sqlalchemy", "numpy", "pyarrow", "redis", "boto3", "structlog", "ulid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """One entry of a table."""

    name: str
    area: str
    breaks: str  # what goes wrong, in a sentence
    old: str
    new: str
    tests: tuple[str, ...]  # files or node ids
    keyword: str | None = None  # for pytest's -k

    @property
    def pattern(self) -> re.Pattern[str]:
        return re.compile(r"\s+".join(map(re.escape, self.old.split())))


class BadMutantError(Exception):
    """The text of a mutant is not found exactly once, or replaces nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A file of a source tree, and its text before and after the mutation."""

    path: Path
    before: str
    after: str


def main() -> None:
    parser = argparse.ArgumentParser(description="Break the source in one place at a time, and see that a test fails.")
    parser.add_argument("--list", action="store_true", help="only check that each text is found exactly once")
    parser.add_argument("--clean", action="store_true", help="only run the tests on the unchanged source")
    parser.add_argument("--only", action="append", metavar="NAME", help="this mutant; may be repeated")
    parser.add_argument("--area", action="append", metavar="AREA", help="the mutants of this table; may be repeated")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the results to this file")
    arguments = parser.parse_args()
    mutants = chosen(read_tables(TABLES), only=arguments.only, areas=arguments.area)
    if arguments.list:
        sys.exit(0 if listed(mutants) else 1)
    with copied(ROOT / "src") as source:
        check_import(source)
        import_libraries()
        ok = clean(mutants, source) if arguments.clean else killed_all(mutants, source, arguments.json)
    sys.exit(0 if ok else 1)


def read_tables(folder: Path) -> Sequence[Mutant]:
    """Read every table. Exits if two mutants share a name."""
    found: dict[str, Mutant] = {}
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            mutant = Mutant(area=path.stem, **{**entry, "tests": tuple(entry["tests"])})
            if mutant.name in found:
                sys.exit(f"two mutants are named {mutant.name}")
            found[mutant.name] = mutant
    return list(found.values())


def chosen(mutants: Sequence[Mutant], *, only: Sequence[str] | None, areas: Sequence[str] | None) -> Sequence[Mutant]:
    """Return the mutants with these names or areas; all if neither is given."""
    if unknown := {*(only or ()), *(areas or ())} - {name for each in mutants for name in (each.name, each.area)}:
        sys.exit(f"no mutant and no table is named {', '.join(sorted(unknown))}")
    if not only and not areas:
        return mutants
    return [each for each in mutants if each.name in (only or ()) or each.area in (areas or ())]


def place_of(mutant: Mutant, texts: Iterable[tuple[Path, str]]) -> Place:
    """Find the one place of a mutant's text. Raises `BadMutantError` if there is none, or more than one."""
    hits = [(path, text, found) for path, text in texts for found in mutant.pattern.finditer(text)]
    if len(hits) != 1:
        where = "".join(f"\n    {path}" for path, _, _ in hits)
        raise BadMutantError(f"{mutant.name}: its text is found {len(hits)} times and not once{where}")
    path, text, found = hits[0]
    line = text[text.rfind("\n", 0, found.start()) + 1 : found.start()]
    indent = line[: len(line) - len(line.lstrip())]
    new = mutant.new.strip("\n").replace("\n", f"\n{indent}")
    if new == found[0]:
        raise BadMutantError(f"{mutant.name}: it replaces its text by the same")
    return Place(path=path, before=text, after=text[: found.start()] + new + text[found.end() :])


def texts_of(source: Path) -> Sequence[tuple[Path, str]]:
    files = sorted(path for path in source.rglob("*") if path.suffix in SUFFIXES)
    return [(path, path.read_text(encoding="utf-8")) for path in files]


def listed(mutants: Sequence[Mutant]) -> bool:
    """Print where each mutant is; return True if every text is found exactly once and every test file exists."""
    texts = texts_of(ROOT / "src")
    good = 0
    width = max(len(mutant.name) for mutant in mutants)
    for mutant in mutants:
        missing = [test for test in mutant.tests if not (ROOT / test.partition("::")[0]).exists()]
        try:
            place = place_of(mutant, texts)
        except BadMutantError as error:
            print(error)
            continue
        if missing:
            print(f"{mutant.name}: no such test: {', '.join(missing)}")
            continue
        good += 1
        print(f"{mutant.name:{width}}  {mutant.area:12}  {place.path.relative_to(ROOT / 'src')}")
    print(f"{len(mutants)} mutants, {good} in order")
    return good == len(mutants)


def killed_all(mutants: Sequence[Mutant], source: Path, report: Path | None) -> bool:
    """Run the tests of each mutant and print its fate; return True if all were killed."""
    fates: dict[str, dict[str, object]] = {}
    width = max(len(mutant.name) for mutant in mutants)
    for mutant in mutants:
        began_at = time.monotonic()
        try:
            fate = fate_of(mutant, source)
        except BadMutantError as error:
            fate = str(error)
        seconds = round(time.monotonic() - began_at, 1)
        print(f"{mutant.name:{width}}  {fate}  {seconds} s", flush=True)
        fates[mutant.name] = {"fate": fate, "seconds": seconds}
        if report is not None:
            before = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
            report.write_text(json.dumps({**before, **fates}, indent=2), encoding="utf-8")
    count = sum(each["fate"] == "killed" for each in fates.values())
    print(f"{count} of {len(fates)} mutants killed")
    return count == len(fates)


def fate_of(mutant: Mutant, source: Path) -> str:
    """Make the mutant, run its tests and take it back."""
    place = place_of(mutant, texts_of(source))
    status = place.path.stat()
    place.path.write_text(place.after, encoding="utf-8")
    try:
        code = run(mutant, source)
    finally:
        place.path.write_text(place.before, encoding="utf-8")
        os.utime(place.path, ns=(status.st_atime_ns, status.st_mtime_ns))  # its compiled file holds again
    match code:
        case 0:  # every test passed
            return "SURVIVED"
        case 1 | None:  # a failure, or a hang
            return "killed"
        case _:
            return f"NOT TESTED: pytest ended with {code}"


def clean(mutants: Sequence[Mutant], source: Path) -> bool:
    """Run the tests of the mutants on the unchanged source; return True if all pass."""
    good = True
    for (tests, keyword), same in _by_tests(mutants):
        began_at = time.monotonic()
        code = run(same[0], source)
        good &= code == PASSED
        word = "passed" if code == PASSED else f"NOT PASSED ({code}), for {', '.join(each.name for each in same)}"
        print(f"{' '.join(tests)} {keyword or ''}: {word}  {time.monotonic() - began_at:.1f} s", flush=True)
    return good


def _by_tests(mutants: Sequence[Mutant]) -> Iterable[tuple[tuple[tuple[str, ...], str | None], list[Mutant]]]:
    found: dict[tuple[tuple[str, ...], str | None], list[Mutant]] = {}
    for mutant in mutants:
        found.setdefault((mutant.tests, mutant.keyword), []).append(mutant)
    return found.items()


def run(mutant: Mutant, source: Path) -> int | None:
    """Run the tests of a mutant until one fails; return pytest's exit code, None if it took too long.

    Each run is a fork of this process, which has imported pytest and the libraries: importing them takes longer than
    most of the tests.
    """
    process = multiprocessing.get_context("fork").Process(target=_run_here, args=(mutant, source))
    process.start()
    process.join(RUN_SECONDS)
    if process.exitcode is None:
        process.terminate()
        process.join()
        return None
    return process.exitcode


def _run_here(mutant: Mutant, source: Path) -> None:
    """Run the tests in this process and exit with pytest's code."""
    atexit._clear()  # of the parent's, one deletes the copy
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.chdir(ROOT)
    os.environ.update(environment(source))
    sys.path.insert(0, str(source))
    keyword = ["-k", mutant.keyword] if mutant.keyword else []
    options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", f"--timeout={TEST_SECONDS}", *keyword]
    code = pytest.main([*options, *mutant.tests])
    atexit._run_exitfuncs()  # of the tests'
    sys.exit(int(code))


def import_libraries() -> None:
    """Import what most tests import, but nothing of the package."""
    for entry in importlib.metadata.entry_points(group="pytest11"):
        if entry.name != PACKAGE:
            entry.load()
    for name in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(name)
    if any(name == PACKAGE or name.startswith(f"{PACKAGE}.") for name in sys.modules):
        sys.exit("a library has imported the package itself: its mutants could not be seen")


def environment(source: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source)}


def check_import(source: Path) -> None:
    """Exit if tests would not import the copy."""
    command = [sys.executable, "-c", "import penstock; print(penstock.__file__)"]
    found = subprocess.run(command, env=environment(source), check=True, capture_output=True, text=True).stdout
    if not found.startswith(str(source)):
        sys.exit(f"the tests would import {found.strip()} and not the copy in {source}")


@contextmanager
def copied(source: Path) -> Iterator[Path]:
    """Copy a source tree, compiled files included."""
    with tempfile.TemporaryDirectory(prefix="penstock-mutants-") as name:
        copy = Path(name) / "src"
        shutil.copytree(source, copy)
        yield copy


if __name__ == "__main__":
    main()
