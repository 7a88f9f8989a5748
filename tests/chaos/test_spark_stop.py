"""Signals while Spark starts or runs: work in flight is released within the stop timeout, and Spark ends."""

import shutil
import signal

import pytest
from tests.chaos import transforms
from tests.chaos.oracle import messages
from tests.chaos.runs import INTERRUPTED, STOPPED, Case
from tests.chaos.test_stop import (
    LATE_SECONDS,
    OBJECTS,
    ONE_BATCH,
    STOP_TIMEOUT_SECONDS,
    at_gate,
    nothing_is_held,
    shut,
)

pytestmark = [pytest.mark.spark, pytest.mark.timeout(400)]

HELD = (*ONE_BATCH, "--transform", "transforms:held")


@pytest.fixture
def gated(spark_case: Case) -> Case:
    """A case whose runs wait at the gate, with its objects."""
    shutil.copy(transforms.__file__, spark_case.folder / "transforms.py")
    return shut(spark_case)


def test_sigterm_while_spark_starts_releases_everything(gated: Case) -> None:
    running = gated.start(*HELD, "--stop-timeout", f"{STOP_TIMEOUT_SECONDS:g}")
    running.wait_until(lambda: "to do" in running.said())
    running.send(signal.SIGTERM)
    ended = running.end(seconds=STOP_TIMEOUT_SECONDS + LATE_SECONDS).but(STOPPED)
    assert "Spark started" not in ended.err or "batch of" not in ended.err
    assert ended.report["objects_unfinished"] == OBJECTS
    nothing_is_held(gated.table)


def test_a_second_ctrl_c_releases_at_once(gated: Case) -> None:
    """A terminal sends it to the whole process group; Spark must outlive it until its run is given back."""
    running = at_gate(gated, *HELD, "--stop-timeout", "300")  # nearly all of it for draining
    running.send_group(signal.SIGINT)
    running.wait_until(lambda: "stopping" in running.said())
    running.send_group(signal.SIGINT)
    running.end(seconds=LATE_SECONDS).but(INTERRUPTED)
    nothing_is_held(gated.table)
    assert messages(gated.table) == OBJECTS
