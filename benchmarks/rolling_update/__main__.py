"""Simulate a rolling update: three workers of one queue under load are replaced one by one, three times.

    python -m benchmarks.rolling_update [--rate 20] [--write docs/why/rolling-update.md]

First with SIGTERM, like any deploy; then with SIGTERM while handlers run for longer than the stop timeout; then with
SIGKILL. Each worker is a process with its own data directory, as on separate hosts. The queue is in Redis, and a
monitor measures it. The figures come from the workers' logs and from the metrics of workers and monitor; a journal that
the handlers write shows lost and repeated messages. Takes two minutes.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from benchmarks.rolling_update.account import HEAD, page
from benchmarks.rolling_update.stage import play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=20.0, help="messages a second; default: 20")
    parser.add_argument("--write", type=Path, metavar="FILE", help="write the account there instead of printing it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        stories, fleet, sent = play(Path(folder), rate=arguments.rate)
        account = page(stories, fleet, sent, rate=arguments.rate)
        lost = set(sent) - fleet.ended()
    if arguments.write is not None:
        arguments.write.write_text(HEAD + account, encoding="utf-8")
    else:
        print(account)
    print(json.dumps({"sent": len(sent), "lost": len(lost)}), file=sys.stderr)
    return int(bool(lost))


if __name__ == "__main__":
    sys.exit(main())
