"""Run what CI runs: the linters, then the tests in two goes, and close with one line that adds them up.

Usage: python scripts/run_tests.py [--slow] [--only lint|tests|spark]

The tests without Spark run in three processes, as most of those that take long wait for others; those with Spark in
two, each with a session of its own. The last line is `N passed, N failed, N skipped` over both. The exit code is 0 only
if the linters are content, every run ended by itself, each ran at least one test, and none failed. With CI=true a
skipped test counts as failed unless its reason begins with "not applicable": a service that is missing must not look
like success.
"""

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
REPORTS = ROOT / "build" / "test-reports"
BIN = Path(sys.executable).parent

LINTERS: Sequence[Sequence[str]] = (
    ("ruff", "check", "."),
    ("ruff", "format", "--check", "."),
    ("mypy",),
    ("lint-imports",),
)


# Programs that tests call, and Debian's packages of them.
TOOLS = {
    "jq": "jq",
    "unshare": "util-linux",
    "ps": "procps",
    "openssl": "openssl",
    "systemd-analyze": "systemd",
    "gcc": "gcc libc6-dev",
    "redis-server": "redis-server",
    "mariadb-install-db": "mariadb-server",
    "pg_ctlcluster": "postgresql",  # the server itself is outside PATH; Debian's own cluster listens to localhost alone
    "promtool": "prometheus",  # the server comes with it, and tests start it themselves
    "node": "nodejs npm",  # npm comes with Node elsewhere, and Debian's package of it does not go with such a Node
}


# What Debian's packages ask before they start a service. Images of containers have one that always says no.
SERVICE_POLICY = Path("/usr/sbin/policy-rc.d")
NO_SERVICE = "#!/bin/sh\nexit 101\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One run of pytest: its name, and the arguments that choose and spread its tests."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a run ended, by its report. `skips` holds the reason of each skipped test."""

    passed: int = 0
    failed: int = 0
    skips: tuple[str, ...] = ()
    complaint: str | None = None

    @property
    def unexcused(self) -> int:
        return sum(1 for reason in self.skips if not reason.startswith("not applicable"))


WITHOUT_SPARK = Phase(
    name="without Spark", arguments=("-m", "not spark and not slow", "-n", "3", "--dist", "worksteal")
)
WITH_SPARK = Phase(name="with Spark", arguments=("-m", "spark and not slow", "-n", "2", "--dist", "loadfile"))
LONG_MATRIX = Phase(name="of the long matrix", arguments=("-m", "slow"))


def main() -> None:
    parser = argparse.ArgumentParser(description="Run the linters and the tests as CI does.")
    parser.add_argument("--slow", action="store_true", help="run the long matrix instead")
    parser.add_argument("--only", choices=("lint", "tests", "spark"), help="run this part alone")
    arguments = parser.parse_args()
    if arguments.only in (None, "lint") and not arguments.slow:
        lint()
    if arguments.only != "lint":
        install_tools()
        test(chosen(arguments.only, slow=arguments.slow), in_ci=os.environ.get("CI") == "true")


def chosen(only: str | None, *, slow: bool) -> Sequence[Phase]:
    if slow:
        return [LONG_MATRIX]
    return [WITH_SPARK] if only == "spark" else [WITHOUT_SPARK, WITH_SPARK]


def install_tools() -> None:
    """Let root's apt-get bring what a bare machine lacks; elsewhere the tests that need it say so themselves."""
    missing = [name for tool, names in TOOLS.items() if shutil.which(tool) is None for name in names.split()]
    if missing and os.geteuid() == 0 and shutil.which("apt-get") is not None:
        say(f"apt-get install {' '.join(missing)}")
        with services_stopped():
            for command in (["update"], ["install", "--yes", "--no-install-recommends", *missing]):
                subprocess.run(["apt-get", "--quiet", *command], check=False)


@contextmanager
def services_stopped() -> Iterator[None]:
    """In the block no package starts its service: tests bring servers of their own, and nothing else may listen."""
    if SERVICE_POLICY.exists():
        yield
        return
    SERVICE_POLICY.write_text(NO_SERVICE)
    SERVICE_POLICY.chmod(0o755)
    try:
        yield
    finally:
        SERVICE_POLICY.unlink()


def lint() -> None:
    """Run every linter, so that one run tells everything; exit if any complained."""
    failed = []
    for name, *arguments in LINTERS:
        say(f"{name} {' '.join(arguments)}".rstrip())
        if subprocess.run([BIN / name, *arguments], cwd=ROOT, check=False).returncode != 0:
            failed.append(name)
    if failed:
        sys.exit(f"Lint failed: {', '.join(failed)}. No test was run.")


def test(phases: Sequence[Phase], *, in_ci: bool) -> None:
    """Run each phase, print the closing line, and exit with 1 if anything is wrong."""
    outcomes = [run(phase) for phase in phases]
    for phase, outcome in zip(phases, outcomes, strict=True):
        if outcome.complaint:
            say(f"Tests {phase.name}: {outcome.complaint}")
    passed, failed, skipped = totals(outcomes, in_ci=in_ci)
    if in_ci and any(outcome.unexcused for outcome in outcomes):
        say("In CI a skipped test is a failed one; its reason is in the list of its run")
    print(f"\n{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    sys.exit(1 if failed else 0)


def totals(outcomes: Sequence[Outcome], *, in_ci: bool) -> tuple[int, int, int]:
    """(passed, failed, skipped) over all runs. A run with a complaint counts as one failure more."""
    unexcused = sum(outcome.unexcused for outcome in outcomes) if in_ci else 0
    failed = sum(outcome.failed + (outcome.complaint is not None) for outcome in outcomes) + unexcused
    return sum(outcome.passed for outcome in outcomes), failed, sum(len(o.skips) for o in outcomes) - unexcused


def run(phase: Phase) -> Outcome:
    say(f"pytest: tests {phase.name}")
    report = REPORTS / f"{phase.name.replace(' ', '-')}.xml"
    report.unlink(missing_ok=True)
    # -m comes after the one in pyproject.toml, and the last one counts.
    command = [sys.executable, "-m", "pytest", *phase.arguments, f"--junitxml={report}"]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    return judge(code, report.read_bytes() if report.exists() else None)


def judge(code: int, report: bytes | None) -> Outcome:
    """What pytest's exit code and its JUnit report (None: it wrote none) say together."""
    if report is None:
        return Outcome(complaint=f"pytest ended with {code} and without a report: it crashed or was killed")
    outcome = read(report)
    if outcome.passed + outcome.failed + len(outcome.skips) == 0:
        return Outcome(complaint=f"no test was run (pytest ended with {code})")
    if code not in (0, 1) or (code == 1 and outcome.failed == 0):
        return Outcome(
            passed=outcome.passed, failed=outcome.failed, skips=outcome.skips, complaint=f"pytest ended with {code}"
        )
    return outcome


def read(report: bytes) -> Outcome:
    """Count the test cases of a JUnit report. An expected failure counts as passed: it did what was expected."""
    passed, failed, skips = 0, 0, []
    for case in ElementTree.fromstring(report).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed += 1
        elif skipped is not None and skipped.get("type") != "pytest.xfail":
            skips.append(skipped.get("message", ""))
        else:
            passed += 1
    return Outcome(passed=passed, failed=failed, skips=tuple(skips))


def say(text: str) -> None:
    print(f"\n== {text}", flush=True)


if __name__ == "__main__":
    main()
