"""Spark's own event logs, which no code of the product writes or reads."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any


def logged_to(folder: Path) -> Mapping[str, str]:
    """Return the settings of an application that records its events in a folder, which must exist."""
    return {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.eventLog.rolling.enabled": "false",
    }


@dataclass(kw_only=True)
class SparkEvents:
    """The faults in the logs of one folder, and Spark's recovery from them."""

    tasks_failed: int = 0  # in the user's code; not those that were lost with their executor
    tasks_done_again: int = 0  # succeeded after a failure
    copies_done: int = 0  # speculative copies that succeeded before the original task
    tasks_lost: int = 0  # with their executors
    stages_again: int = 0  # stages that were repeated because their output was lost with an executor
    executors_removed: Counter[str] = field(default_factory=Counter)  # by Spark's reason

    def __add__(self, other: "SparkEvents") -> "SparkEvents":
        return SparkEvents(**{each.name: getattr(self, each.name) + getattr(other, each.name) for each in fields(self)})

    @staticmethod
    def of(folder: Path) -> "SparkEvents":
        """Read the logs of all applications that ended."""
        found = SparkEvents()
        for log in sorted(folder.iterdir()):
            found._read(log)
        return found

    def _read(self, log: Path) -> None:
        failed: set[tuple[int, int]] = set()
        for line in log.read_text(encoding="utf-8").splitlines():
            event = json.loads(line)
            match event["Event"]:
                case "SparkListenerTaskEnd":
                    self._add_task(event, failed)
                case "SparkListenerStageSubmitted":
                    self.stages_again += event["Stage Info"]["Stage Attempt ID"] > 0
                case "SparkListenerExecutorRemoved":
                    self.executors_removed[event["Removed Reason"]] += 1

    def _add_task(self, event: Mapping[str, Any], failed: set[tuple[int, int]]) -> None:
        """``failed``: stages and partitions."""
        task, reason = event["Task Info"], event["Task End Reason"]["Reason"]
        place = event["Stage ID"], task["Partition ID"]
        match reason:
            case "ExceptionFailure":
                self.tasks_failed += 1
                failed.add(place)
            case "ExecutorLostFailure":
                self.tasks_lost += 1
            case "Success":
                self.copies_done += task["Speculative"]
                self.tasks_done_again += place in failed
