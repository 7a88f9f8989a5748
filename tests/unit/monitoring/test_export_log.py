"""What exporters log of a collector that is away: kept out of the log, and told now and then."""

import logging
from collections.abc import Iterator
from uuid import uuid4

import pytest

from penstock.monitoring.export_log import QUIET_SECONDS, found, quieten
from penstock.testing import FakeClock


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    made = logging.getLogger(f"exporter-{uuid4()}")
    yield made
    made.filters.clear()


def test_nothing_reaches_the_log_and_one_word_every_ten_minutes_is_told(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    clock, told = FakeClock(), list[str]()
    logger.warning("before")
    quieten(logger.name, clock=clock)
    logger.warning("nobody hears %s", "this")
    log = found(logger.name)
    assert log is not None
    log.on_failure(told.append)
    for number in range(3):
        logger.warning("try %d", number)
        clock.advance(QUIET_SECONDS / 2)
    assert told == ["try 0", "try 2"]
    assert caplog.messages == ["before"]


def test_a_logger_is_quietened_once(logger: logging.Logger) -> None:
    quieten(logger.name)
    first = found(logger.name)
    quieten(logger.name)
    assert found(logger.name) is first
    assert len(logger.filters) == 1


def test_a_logger_that_nobody_quietened_is_left_alone(logger: logging.Logger) -> None:
    assert found(logger.name) is None
