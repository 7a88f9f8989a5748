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
    check_nothing_is_held,
    shut_gate,
)

pytestmark = pytest.mark.spark

HELD = (*ONE_BATCH, "--transform", "transforms:held")


@pytest.fixture
def gated(spark_case: Case) -> Case:
    """Return a case with objects, whose runs wait at the gate."""
    shutil.copy(transforms.__file__, spark_case.folder / "transforms.py")
    return shut_gate(spark_case)


def test_sigterm_while_spark_starts_releases_everything(gated: Case) -> None:
    running = gated.start(*HELD, "--stop-timeout", f"{STOP_TIMEOUT_SECONDS:g}")
    running.wait_until(lambda: "to do" in running.log())
    running.send(signal.SIGTERM)
    ended = running.end(seconds=STOP_TIMEOUT_SECONDS + LATE_SECONDS).expect(STOPPED)
    assert "Spark started" not in ended.err or "batch of" not in ended.err
    assert ended.report["objects_unfinished"] == OBJECTS
    check_nothing_is_held(gated.table)


def test_a_second_ctrl_c_releases_at_once(gated: Case) -> None:
    """A terminal sends Ctrl-C to the whole process group; Spark must survive it until its run is released."""
    running = at_gate(gated, *HELD, "--stop-timeout", "300")  # nearly all of it for draining
    running.send_group(signal.SIGINT)
    running.wait_until(lambda: "stopping" in running.log())
    running.send_group(signal.SIGINT)
    running.end(seconds=LATE_SECONDS).expect(INTERRUPTED)
    check_nothing_is_held(gated.table)
    assert messages(gated.table) == OBJECTS
