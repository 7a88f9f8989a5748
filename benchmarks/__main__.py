"""`make bench`: these benchmarks with their defaults, one after another, each in its own process.

    python -m benchmarks                            # all of them
    python -m benchmarks --check [--allow-missing]  # only those behind a figure of the README, compared with bounds

With `--check` (`make bench CHECK=1`), each ratio in `benchmarks.check.bounds` is measured, a second time if it is out
of bounds, and the exit code is 1 if one still is, or cannot be measured on this machine. `--allow-missing` accepts the
latter.
"""

import argparse
import subprocess
import sys

from benchmarks.check.bounds import BOUNDS
from benchmarks.check.runner import check, run_benchmark

BENCHMARKS = (
    "chain",
    "s3",
    "reader",
    "broker",
    "worker",
    "ledger",
    "dead_letters",
    "metrics",
    "monitor",
    "traces",
    "redis",
    "sqs",
)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare the figures of the README with their bounds")
    parser.add_argument("--allow-missing", action="store_true", help="accept ratios that cannot be measured here")
    arguments = parser.parse_args()
    if arguments.check:
        return check(BOUNDS, measure=run_benchmark, allow_missing=arguments.allow_missing)
    return run_all()


def run_all() -> int:
    """Run all benchmarks until one fails; return its exit code."""
    for name in BENCHMARKS:
        print(f"== {name} ==", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
        if done.returncode:
            return done.returncode
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
