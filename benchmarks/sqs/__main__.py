"""Compare Penstock's worker on SQS with a bare loop of boto3 with the same number of pollers.

    python -m benchmarks.sqs [--messages 20000] [--rounds 3] [--delays-ms 10,50] [--only rate,delay,sleeps,latency,idle]

The server is one for tests, fauxqs, in the memory of the same machine; with a delay, every answer arrives that much
later, as from AWS. Rounds alternate. Prints medians, and ratios to the bare loop's in the same round.
docs/why/benchmarks.md describes measurements and method. Takes some minutes.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.services import fauxqs_package

from benchmarks.sqs import figures
from benchmarks.sqs.stage import Stage, stage

POLLERS = 5  # as Penstock's broker has
CONCURRENCY = 100
PARTS = ("rate", "delay", "sleeps", "latency", "idle")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=20_000, help="of a queue without a delay; default: 20000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delays-ms", default="10,50", help="default: 10,50")
    parser.add_argument("--only", default=",".join(PARTS), metavar="PART,...", help=f"of {', '.join(PARTS)}")
    arguments = parser.parse_args()
    if (reason := fauxqs_package.why_not_here()) is not None:
        print(f"left out: {reason}")
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes are stopped, as after Ctrl-C
    delays = [float(each) / 1_000 for each in arguments.delays_ms.split(",")]
    parts: Mapping[str, Callable[[Stage], None]] = {
        "rate": lambda own: figures.rates(own, arguments.messages, arguments.rounds, delay_seconds=None),
        "delay": lambda own: figures.delayed(own, arguments.messages, arguments.rounds, delays),
        "sleeps": lambda own: figures.sleeps(own, delays[0]),
        "latency": lambda own: figures.latency(own, (None, delays[0])),
        "idle": figures.idle,
    }
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder, stage(Path(folder), pollers=POLLERS, concurrency=CONCURRENCY) as own:
        for part in arguments.only.split(","):
            parts[part](own)
    print(f"{time.monotonic() - begun:.0f} s in all, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
