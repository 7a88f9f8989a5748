"""`tests.chaos.in_process` with short intervals: a few commits are enough to reach the steps of the upkeep.

Iceberg tables keep two metadata files, and the ledger records after each batch that it has no bad lines.
"""

from tests.chaos.in_process import replace_spark

from penstock.cli.main import main
from penstock.pipeline import quarantine_progress
from penstock.sinks.iceberg import folder

KEPT = 2  # metadata files

if __name__ == "__main__":
    folder.KEPT = KEPT
    quarantine_progress.RECORD_EVERY_BATCHES = 1
    replace_spark()
    main()
