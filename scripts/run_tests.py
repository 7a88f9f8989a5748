"""Run the linters and the tests as CI does, list the slowest tests, and end with one line of totals.

Usage: python scripts/run_tests.py [--fast | --slow] [--only lint|tests|spark] [--processes N]

The quick linters run first; if one fails, no test is run. mypy runs beside the tests. The tests run in one pytest with
several processes (tests/lanes.py spreads them). The last line is `N passed, N failed, N skipped`. The exit code is 0
only if every linter passed, pytest ended normally, at least one test ran, and none failed. With CI=true a skipped test
counts as failed unless its reason begins with "not applicable": a missing service must not look like success.

build/test-reports keeps the JUnit report of each run, with the duration of every test, and in previous/ the one before.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test-reports"
BIN = Path(sys.executable).parent

# Seconds each. If one of them fails, there is no point in running tests.
QUICK_LINTERS: Sequence[Sequence[str]] = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("lint-imports",),
    ("python", "-m", "scripts.check_language"),
)
# More than a minute of one core on a fresh clone: runs beside the tests.
SLOW_LINTERS: Sequence[Sequence[str]] = (("mypy",),)

# Programs that tests call, and Debian's packages of them.
TOOLS = {
    "jq": "jq",
    "unshare": "util-linux",
    "ps": "procps",
    "hostname": "hostname",
    "openssl": "openssl",
    "systemd-analyze": "systemd",
    "gcc": "gcc libc6-dev",
    "redis-server": "redis-server",
    "mariadb-install-db": "mariadb-server",
    "pg_ctlcluster": "postgresql",  # the server itself is outside PATH; Debian's own cluster listens to localhost alone
    "promtool": "prometheus",  # the server comes with it, and tests start it themselves
    "node": "nodejs npm",  # outside Debian, npm comes with Node, and Debian's npm does not work with such a Node
    "chromium": "chromium",  # shows the dashboard
}


# Debian's packages run it before they start a service. Container images have one that always denies.
SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")
NO_SERVICE = "#!/bin/sh\nexit 101\n"


SLOWEST_COUNT = 50

LONG = "TESTS_LONG"  # with it, tests with the mark `generated` try all their examples (tests/examples.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The tests of one pytest run: pytest's arguments that choose them, and the number of processes."""

    name: str
    arguments: tuple[str, ...]
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a pytest run: `skips` holds the reason of each skipped test, `seconds` each test's duration."""

    passed: int = 0
    failed: int = 0
    skips: tuple[str, ...] = ()
    seconds: tuple[tuple[str, float], ...] = ()
    complaint: str | None = None

    @property
    def unexcused(self) -> int:
        return sum(1 for reason in self.skips if not reason.startswith("not applicable"))


# Six processes on two cores: tests that start servers, workers and JVMs spend much of their time waiting for them.
EVERYTHING = Selection(name="everything", arguments=("-m", "not slow"), processes=6)
WITH_SPARK = Selection(name="with-spark", arguments=("-m", "spark and not slow"), processes=2)
LONG_MATRIX = Selection(name="long-matrix", arguments=("-m", "slow or generated"), processes=1)
FAST = Selection(
    name="fast",
    arguments=(
        *("-m", "not slow and not spark and not server"),
        *("tests/unit", "tests/property", "tests/simulation", "tests/conformance"),
    ),
    processes=2,
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the linters and the tests as CI does.")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--fast", action="store_true", help="run only the tests that need no server and no Spark")
    kinds.add_argument("--slow", action="store_true", help="run the long matrix instead")
    kinds.add_argument("--only", choices=("lint", "tests", "spark"), help="run this part alone")
    parser.add_argument("--processes", type=int, metavar="N", help="run the tests in N processes")
    arguments = parser.parse_args()
    if arguments.only == "lint":
        sys.exit(lint([*QUICK_LINTERS, *SLOW_LINTERS]))
    with_lint = not (arguments.fast or arguments.slow or arguments.only)
    if with_lint and (failed := lint(QUICK_LINTERS)):
        sys.exit(f"{failed} No test was run.")
    chosen = choose(fast=arguments.fast, slow=arguments.slow, spark=arguments.only == "spark")
    if chosen is not FAST:
        install_tools()
        make_class_archive()
    with ThreadPoolExecutor(1) as beside:
        slow_lint = beside.submit(lint, SLOW_LINTERS if with_lint else ())
        if chosen is EVERYTHING:
            compile_tests(chosen)
        outcome = run(chosen, processes=arguments.processes or chosen.processes)
        complaint = slow_lint.result()
    sys.exit(conclude(outcome, lint_complaint=complaint, in_ci=os.environ.get("CI") == "true"))


def choose(*, fast: bool, slow: bool, spark: bool) -> Selection:
    if fast:
        return FAST
    if slow:
        return LONG_MATRIX
    return WITH_SPARK if spark else EVERYTHING


def install_tools() -> None:
    """Install missing programs with apt-get, as root. Otherwise, the tests that need them are skipped."""
    missing = [name for tool, names in TOOLS.items() if shutil.which(tool) is None for name in names.split()]
    if missing and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        say(f"apt-get install {' '.join(missing)}")
        with services_stopped():
            for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
                subprocess.run(["apt-get", "--quiet", *command], check=False)


def make_class_archive() -> None:
    """Make the archive with which the JVMs of tests start quickly. Without it, they start slowly."""
    say("python -m tests.services.jvm")
    subprocess.run([sys.executable, "-m", "tests.services.jvm"], cwd=ROOT, check=False)


def compile_tests(selection: Selection) -> None:
    """Let pytest collect once in one process, which compiles the test modules.

    On a fresh clone, each of six processes would compile all of them, which takes a minute.
    """
    say("pytest --collect-only")
    collect = [sys.executable, "-m", "pytest", *selection.arguments, "--collect-only", "--quiet", "--no-summary"]
    subprocess.run(collect, cwd=ROOT, check=False, stdout=subprocess.DEVNULL)


@contextmanager
def services_stopped() -> Iterator[None]:
    """Prevent packages from starting their services in the block: only the tests' own servers may listen."""
    if SERVICE_POLICY.exists():
        yield
        return
    SERVICE_POLICY.write_text(NO_SERVICE)
    SERVICE_POLICY.chmod(0o755)
    try:
        yield
    finally:
        SERVICE_POLICY.unlink()


def lint(linters: Sequence[Sequence[str]]) -> str | None:
    """Run every one of `linters`, so that one run reports everything. Return a sentence if any failed."""
    failed = []
    for name, *arguments in linters:
        ended = subprocess.run([BIN / name, *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
        say(f"{name} {' '.join(arguments)}".rstrip())
        print(ended.stdout + ended.stderr, end="", flush=True)
        if ended.returncode != 0:
            failed.append(name)
    return f"Lint failed: {', '.join(failed)}." if failed else None


def conclude(outcome: Outcome, *, lint_complaint: str | None, in_ci: bool) -> int:
    """Print the slow tests, the complaints and the closing line. Return the exit code."""
    print_durations(outcome.seconds)
    for complaint in (outcome.complaint, lint_complaint):
        if complaint:
            say(complaint)
    if in_ci and outcome.unexcused:
        say("In CI a skipped test counts as failed; the reasons are in pytest's list of skips")
    passed, failed, skipped = totals(outcome, lint_complaint=lint_complaint, in_ci=in_ci)
    print(f"\n{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return 1 if failed else 0


def totals(outcome: Outcome, *, lint_complaint: str | None, in_ci: bool) -> tuple[int, int, int]:
    """Return (passed, failed, skipped). Each complaint counts as one failure."""
    unexcused = outcome.unexcused if in_ci else 0
    failed = outcome.failed + (outcome.complaint is not None) + (lint_complaint is not None) + unexcused
    return outcome.passed, failed, len(outcome.skips) - unexcused


def print_durations(seconds: Sequence[tuple[str, float]]) -> None:
    """Print the slowest tests, and the sum and number of tests per folder."""
    say(f"The slowest {SLOWEST_COUNT} tests, in seconds")
    for test, took in sorted(seconds, key=lambda pair: -pair[1])[:SLOWEST_COUNT]:
        print(f"{took:8.1f}  {test}")
    files: dict[str, list[float]] = defaultdict(list)
    folders: dict[str, list[float]] = defaultdict(list)
    for test, took in seconds:
        files[test.split("::")[0]].append(took)
        folders["/".join(test.split("/")[:2])].append(took)
    for name, sums, limit in (("file", files, SLOWEST_COUNT), ("folder", folders, None)):
        say(f"Seconds and tests per {name}")
        for place, each in sorted(sums.items(), key=lambda pair: -sum(pair[1]))[:limit]:
            print(f"{sum(each):8.0f} {len(each):6}  {place}")


def run(selection: Selection, *, processes: int) -> Outcome:
    say(f"pytest: {selection.name}, {processes} processes")
    report = fresh_report(selection.name)
    # This -m overrides the one in pyproject.toml. Order and grouping are those of tests/lanes.py.
    spread = ("-n", str(processes), "--no-loadscope-reorder") if processes > 1 else ()
    command = [sys.executable, "-m", "pytest", *selection.arguments, *spread, f"--junitxml={report}"]
    environment = {**os.environ, LONG: "yes"} if selection is LONG_MATRIX else None
    began_at, before = time.monotonic(), core_seconds()
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    print_load(time.monotonic() - began_at, before)
    return judge(code, report.read_bytes() if report.exists() else None)


def core_seconds() -> tuple[float, float] | None:
    """Return how long the cores of this machine have been busy, and idle. None on systems that do not say it."""
    try:
        user, nice, system, idle, waiting, *others = map(
            int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
        )
    except (OSError, ValueError):
        return None
    tick = os.sysconf("SC_CLK_TCK")
    return (user + nice + system + sum(others)) / tick, (idle + waiting) / tick


def print_load(took_seconds: float, before: tuple[float, float] | None) -> None:
    """Print whether the tests used all cores: a low share means that tests waited, or that the last one was alone."""
    after = core_seconds()
    if before is not None and after is not None:
        busy, idle = (now - then for now, then in zip(after, before, strict=True))
        share = busy / (busy + idle)
        say(f"pytest took {took_seconds:.0f} s, and {busy:.0f} s of the cores, which were busy {share:.0%}")


def fresh_report(name: str) -> Path:
    """Return the path of a run's report, after moving the last run's report to previous/."""
    report = REPORTS / f"{name}.xml"
    if report.exists():
        previous = REPORTS / "previous" / report.name
        previous.parent.mkdir(exist_ok=True)
        report.replace(previous)
    return report


def judge(code: int, report: bytes | None) -> Outcome:
    """Combine pytest's exit code and its JUnit report (None: it wrote none)."""
    if report is None:
        return Outcome(complaint=f"pytest ended with {code} and without a report: it crashed or was killed")
    outcome = read(report)
    if outcome.passed + outcome.failed + len(outcome.skips) == 0:
        return replace(outcome, complaint=f"no test was run (pytest ended with {code})")
    if code not in (0, 1) or (code == 1 and outcome.failed == 0):
        return replace(outcome, complaint=f"pytest ended with {code}")
    return outcome


def read(report: bytes) -> Outcome:
    """Count the test cases of a JUnit report. An expected failure counts as passed: it did what was expected."""
    passed, failed, skips, seconds = 0, 0, [], []
    for case in ElementTree.fromstring(report).iter("testcase"):
        file = case.get("classname", "").replace(".", "/")
        seconds.append((f"{file}.py::{case.get('name')}", float(case.get("time", 0))))
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif skipped is not None and skipped.get("type") != "pytest.xfail":
            skips.append(skipped.get("message", ""))
        else:
            passed += 1
    return Outcome(passed=passed, failed=failed, skips=tuple(skips), seconds=tuple(seconds))


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    main()
