"""Transforms that bring faults into a run on a cluster. Copied into the folder where the ingest runs.

What runs in Spark's Python workers is defined inside its function: so it travels by value, and they need not find this
module.
"""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

WORKERS = "CLUSTER_WORKERS"  # process ids of the cluster's workers, with commas
OVER = "CLUSTER_MOUNT_OVER"  # a folder that is to be another one on each of their hosts
FAULTS = "CLUSTER_FAULTS"  # a folder in which each fault leaves a file of its name, so that it happens once
TASK, EXECUTOR, STRAGGLER = "task", "executor", "straggler"


def diverge(frame: DataFrame) -> DataFrame:
    """From now on the workers' hosts have a disk of their own there: after the proof that they share it."""
    over = os.environ[OVER]
    Path(over).mkdir(parents=True, exist_ok=True)
    for worker in os.environ[WORKERS].split(","):
        inside = ["nsenter", "--mount", "--target", worker]
        subprocess.run([*inside, "mount", "-t", "tmpfs", "none", over], check=True)
    return frame


def faulty(frame: DataFrame) -> DataFrame:
    """Behind a shuffle, and after some of their rows: one task fails, one executor is killed, one task hangs."""
    folder = os.environ[FAULTS]
    faults = (TASK, EXECUTOR, STRAGGLER)

    def tasks(batches: Iterator[Any]) -> Iterator[Any]:
        import os
        import signal
        import time
        from pathlib import Path

        from pyspark import TaskContext

        def happens(fault: str) -> bool:
            try:
                Path(folder, fault).touch(exist_ok=False)
            except FileExistsError:
                return False
            return True

        context = TaskContext.get()
        assert context is not None
        partition = context.partitionId()
        yield next(batches)
        if partition < len(faults) and happens(faults[partition]):
            if partition == 0:
                raise RuntimeError("a task that fails once")
            if partition == 1:
                daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
                os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
            time.sleep(60)  # until Spark ends it: its executor is dead, or its copy was quicker
        yield from batches

    return frame.repartition(4).mapInArrow(tasks, frame.schema)
