"""`tests.chaos.in_process`, killed while it writes a checkpoint of a Delta table: in the file, or in the log's hint."""

import os
import signal
from pathlib import Path

from deltalake import DeltaTable
from tests.chaos.in_process import replace_spark

from penstock.cli.main import main

WHERE = "CHECKPOINT_KILLED_IN"
FILE, HINT = "file", "hint"


def kill_in_checkpoints(where: str) -> None:
    """Let this process leave what the library leaves when it is killed there, and end."""
    create = DeltaTable.create_checkpoint

    def killed(table: DeltaTable) -> None:
        log = Path(table.table_uri.removeprefix("file://")) / "_delta_log"
        if where == FILE:
            half = log / f"{table.version():020d}.checkpoint.parquet#1"  # its name until it is whole
            half.write_bytes(b"PAR1")
        else:
            create(table)
            (log / "_last_checkpoint").write_text('{"vers')
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(DeltaTable, "create_checkpoint", killed)  # noqa: B010 # not an assignment that mypy could allow


if __name__ == "__main__":
    kill_in_checkpoints(os.environ[WHERE])
    replace_spark()
    main()
