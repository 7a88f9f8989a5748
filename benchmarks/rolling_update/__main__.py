"""A rolling update acted out: three workers behind one queue under load, replaced one by one, three times over.

    python -m benchmarks.rolling_update [--rate 20] [--write docs/why/rolling-update.md]

First by SIGTERM, as any deploy does it; then by SIGTERM while handlers are at work that takes longer than the stop
timeout grants; then by SIGKILL. Each worker is a process with a data directory of its own, as on a host of its own; the
queue is in Redis; a monitor measures it. The figures come from the workers' logs and from the metrics of workers
and monitor; what is lost and what is done twice is judged by a journal that the handlers write. Takes two minutes.
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
