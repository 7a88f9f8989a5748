"""Publish a `SharedTable` in a process of its own: ``publish_once.py FOLDER STEP``, killed at the step."""

import sys
from pathlib import Path

from tests.conformance.publishing.shared_table import SharedTable

from penstock.app.kill import killing_probe
from penstock.ledger import Ledger
from penstock.storage.local import LocalFiles

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    table = SharedTable(files=LocalFiles(folder / "clicks"), ledger=Ledger.open(folder / "ledger.db"))
    table.publish(probe=killing_probe(sys.argv[2] if len(sys.argv) > 2 else None))
