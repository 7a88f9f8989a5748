"""Transforms that inject faults into a run on a cluster. Copied into the folder where the ingest runs.

Functions for Spark's Python workers are nested, so that Spark pickles them by value and the workers do not import this
module.
"""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame

COMMANDS = "CLUSTER_COMMANDS"  # the commands of `meanwhile`, as JSON
FAULTS = "CLUSTER_FAULTS"  # a folder in which each fault leaves a file of its name and host, so that it happens once
TASK, EXECUTOR, WORKER, STRAGGLER = "task", "executor", "worker", "straggler"
PARTITIONS = 4
PATIENCE_SECONDS = 300.0

_both = threading.Barrier(2)

Tasks = Callable[[Iterator[Any]], Iterator[Any]]


def meanwhile(frame: DataFrame) -> DataFrame:
    """Run commands once, after the check that the hosts share their folders and before they read."""
    for command in json.loads(os.environ.pop(COMMANDS, "[]")):
        subprocess.run(command, check=True)
    return frame


def faulty_together(frame: DataFrame) -> DataFrame:
    """Wait until the transforms of two batches are here; then work as `faulty`. Each fault happens in one of them."""
    _both.wait(PATIENCE_SECONDS)
    return faulty(frame)


def faulty(frame: DataFrame) -> DataFrame:
    """Inject four faults.

    After a shuffle and some rows, one task fails, one kills its executor, and one waits until its host has ended.
    After another shuffle, when Spark has recovered from these, one task hangs.
    """
    folder, patience_seconds = os.environ[FAULTS], PATIENCE_SECONDS

    def faults(*names: str) -> Tasks:
        """Return a function that causes the n-th fault in the n-th partition, once."""

        def tasks(batches: Iterator[Any]) -> Iterator[Any]:
            import os
            import signal
            import socket
            import time

            from pyspark import TaskContext

            context = TaskContext.get()
            assert context is not None
            partition = context.partitionId()
            yield next(batches)
            fault = names[partition] if partition < len(names) else None
            if fault is not None:
                try:
                    with Path(folder, fault).open("x") as struck:
                        struck.write(socket.gethostname())
                except FileExistsError:
                    fault = None
            if fault == "task":
                raise RuntimeError("a task that fails once")
            if fault == "executor":
                daemon = Path(f"/proc/{os.getppid()}/stat").read_text()
                os.kill(int(daemon.rpartition(")")[2].split()[1]), signal.SIGKILL)
            if fault is not None:
                time.sleep(patience_seconds)  # until Spark ends it: its executor is dead, or its copy was quicker
            yield from batches

        return tasks

    struck = frame.repartition(PARTITIONS).mapInArrow(faults(TASK, EXECUTOR, WORKER), frame.schema)
    return struck.repartition(PARTITIONS).mapInArrow(faults(STRAGGLER), frame.schema)
