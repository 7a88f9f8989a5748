"""Run the benchmarks that back a figure, each as a process, and compare their ratios with the bounds."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.check.bounds import Bound

_REDIS = "benchmarks.redis"
_REDIS_FIGURES = Path("build/bench-redis/figures.json")

Ratios = Mapping[str, float]
Measure = Callable[[Sequence[str]], Ratios]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A bound and what was measured; None if the benchmark could not measure it on this machine."""

    bound: Bound
    measured: float | None

    @property
    def holds(self) -> bool:
        return self.measured is not None and self.bound.holds(self.measured)

    def __str__(self) -> str:
        bound = self.bound
        head = f'{bound.page}: "{bound.figures[0]}" ({bound.name})'
        if self.measured is None:
            return f"{head} not measured here, bound {bound.limit}: python -m {' '.join(bound.command)}"
        return f"{head} measured {self.measured:.3g}, bound {bound.limit}"


def check(bounds: Sequence[Bound], *, measure: Measure, allow_missing: bool) -> int:
    """Measure and compare all bounds, and print a line for each. Return the exit code: 1 if one does not hold.

    A benchmark with a ratio out of bounds is measured once more, and only what fails both times fails. A ratio that
    could not be measured fails too, unless ``allow_missing``.
    """
    compared = [
        comparison for command in commands(bounds) for comparison in _compare_twice(command, bounds, measure=measure)
    ]
    failed = [each for each in compared if not each.holds and not (allow_missing and each.measured is None)]
    for each in compared:
        if each.holds:
            print(f"holds: {each}")
        elif each not in failed:
            print(f"left out: {each}")
    for each in failed:
        print(f"FAILS: {each}", file=sys.stderr)
    return 1 if failed else 0


def commands(bounds: Sequence[Bound]) -> Sequence[Sequence[str]]:
    """Return each command once, in the order of the bounds."""
    return list(dict.fromkeys(tuple(bound.command) for bound in bounds))


def _compare_twice(command: Sequence[str], bounds: Sequence[Bound], *, measure: Measure) -> Sequence[Comparison]:
    own = [bound for bound in bounds if tuple(bound.command) == tuple(command)]
    first = _compare(own, measure(command))
    if all(each.holds or each.measured is None for each in first):
        return first
    print(f"measured again: {', '.join(each.bound.name for each in first if not each.holds)}", flush=True)
    second = _compare(own, measure(command))
    return [one if one.holds or again.measured is None else again for one, again in zip(first, second, strict=True)]


def _compare(bounds: Sequence[Bound], ratios: Ratios) -> Sequence[Comparison]:
    return [Comparison(bound=bound, measured=ratios.get(bound.name)) for bound in bounds]


def run_benchmark(command: Sequence[str]) -> Ratios:
    """Run a benchmark and return its ratios by name; none if it failed. All but that of Redis have `--json`."""
    print(f"== python -m {' '.join(command)} ==", flush=True)
    if command[0] == _REDIS:
        _REDIS_FIGURES.unlink(missing_ok=True)
        done = subprocess.run([sys.executable, "-m", *command], check=False)
        is_there = done.returncode == 0 and _REDIS_FIGURES.exists()
        return ratios_of_redis(_REDIS_FIGURES.read_text(encoding="utf-8")) if is_there else {}
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        file = Path(folder, "ratios.json")
        done = subprocess.run([sys.executable, "-m", *command, "--json", str(file)], check=False)
        if done.returncode:
            print(f"python -m {' '.join(command)} ended with exit code {done.returncode}", file=sys.stderr)
        if done.returncode or not file.exists():
            return {}
        return ratios_in(file.read_text(encoding="utf-8"))


def ratios_in(text: str) -> Ratios:
    """Return the ratios in the text of a benchmark's JSON file. Entries that are no numbers were not measured."""
    document = json.loads(text)
    if not isinstance(document, dict):
        raise ValueError("a benchmark's JSON file holds an object of ratios by name")
    return {str(name): float(value) for name, value in document.items() if _is_number(value)}


def ratios_of_redis(text: str) -> Ratios:
    """Return the ratios in the figures that `benchmarks.redis` writes: its own, and those of one run of all consumers.

    The latter compare the async handler with each other consumer: rates, and the time of a recovery on the same host.
    """
    document = json.loads(text)
    figures = {one["contestant"]: one for one in document["figures"]}
    own = figures.get("penstock async", {})
    found: dict[str, float] = {}
    for name, other in figures.items():
        if own.get("empty_rate") and other.get("empty_rate"):
            found[f"redis async / {name}"] = own["empty_rate"] / other["empty_rate"]
        ours, theirs = _seconds(own.get("recovery")), _seconds(other.get("recovery"))
        if ours and theirs:
            found[f"redis recovery: {name} / async"] = theirs / ours
    return {**found, **document.get("ratios", {})}


def _seconds(words: str | None) -> float | None:
    """Return the seconds of a recovery; None if it has words, such as that messages were lost."""
    try:
        return float(words or "")
    except ValueError:
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
