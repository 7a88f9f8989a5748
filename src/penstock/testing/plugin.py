"""Pytest fixtures, found by pytest wherever Penstock is installed.

`penstock_worker` creates a `TestWorker` for an app, `penstock_clock` is a `FakeClock`, and `penstock_spark` is one
Spark session for the whole test run.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from penstock.testing import FakeClock, TestWorker


@pytest.fixture
def penstock_worker() -> "Iterator[Callable[[Any], TestWorker]]":
    """Return ``penstock_worker(app)``: it creates a `TestWorker` that lasts until the test ends."""
    from penstock.testing import TestWorker

    with ExitStack() as stack:
        yield lambda app: stack.enter_context(TestWorker(app))


@pytest.fixture
def penstock_clock() -> "FakeClock":
    """Return a clock that the test advances."""
    from penstock.testing import FakeClock

    return FakeClock()


@pytest.fixture(scope="session")
def penstock_spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a small local Spark session, started once per test run. Needs the extra ``spark``."""
    from penstock.testing.spark import local_session

    with local_session(tmp_path_factory.mktemp("penstock-spark")) as session:
        yield session
