"""Fixtures for pytest, found by it where Penstock is installed.

`penstock_worker` makes a `TestWorker` of an app, `penstock_clock` is a `FakeClock`, `penstock_spark` is one Spark
session for the whole run of the tests.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import FakeClock, TestWorker


@pytest.fixture
def penstock_worker() -> "Iterator[Callable[[Any], TestWorker]]":
    """``penstock_worker(app)``: a worker over queues in memory, until the test ends."""
    from penstock.testing import TestWorker

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(TestWorker(app))


@pytest.fixture
def penstock_clock() -> "FakeClock":
    """A clock that the test moves."""
    from penstock.testing import FakeClock

    return FakeClock()


@pytest.fixture(scope="session")
def penstock_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A small local Spark session, started once. Needs the extra ``spark``."""
    from penstock.testing.spark import local_session

    with local_session(tmp_path_factory.mktemp("penstock-spark")) as session:
        yield session
