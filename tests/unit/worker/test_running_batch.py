"""One running batch: one caller decides how it ends, and one caller submits its settlements."""

import threading
from collections.abc import Callable
from typing import cast

from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Execution
from penstock.worker.running_batch import BatchRuntime, RunningBatch


def batch_of(delivery: Delivery) -> RunningBatch:
    runtime = BatchRuntime(handler="h", queue="q", lock=threading.Lock(), lost=lambda _: None)
    return RunningBatch(runtime, cast("Execution", object()), [delivery], 1)


def test_the_first_caller_decides_and_settles(delivery: Callable[..., Delivery]) -> None:
    batch = batch_of(delivery(1))
    assert batch.end()
    assert not batch.end()
    assert not batch.begin_settling()


def test_a_caller_that_asks_the_ledger_first_settles_only_if_no_other_did(delivery: Callable[..., Delivery]) -> None:
    batch = batch_of(delivery(1))
    assert batch.end(settles=False)
    assert [batch.settled, batch.begin_settling(), batch.settled, batch.begin_settling()] == [False, True, True, False]
