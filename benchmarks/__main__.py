"""`make bench`: these benchmarks with their defaults, one after another, each in its own process."""

import subprocess
import sys

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
    for name in BENCHMARKS:
        print(f"== {name} ==", flush=True)
        done = subprocess.run([sys.executable, "-m", f"benchmarks.{name}"], check=False)
        if done.returncode:
            return done.returncode
        print(flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
