"""Log records of exporters about an unavailable collector: kept out of the log, and reported periodically."""

import logging
from collections.abc import Iterator
from uuid import uuid4

import pytest

from penstock.monitoring.export_log import QUIET_SECONDS, found, quieten
from penstock.testing import FakeClock


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    logger = logging.getLogger(f"exporter-{uuid4()}")
    yield logger
    logger.filters.clear()


def test_records_are_suppressed_and_reported_every_ten_minutes(
    logger: logging.Logger, caplog: pytest.LogCaptureFixture
) -> None:
    clock, reports = FakeClock(), list[str]()
    logger.warning("before")
    quieten(logger.name, clock=clock)
    logger.warning("suppressed %s", "record")
    log = found(logger.name)
    assert log is not None
    log.on_failure(reports.append)
    for number in range(3):
        logger.warning("try %d", number)
        clock.advance(QUIET_SECONDS / 2)
    assert reports == ["try 0", "try 2"]
    assert caplog.messages == ["before"]


def test_a_logger_is_quietened_once(logger: logging.Logger) -> None:
    quieten(logger.name)
    first = found(logger.name)
    quieten(logger.name)
    assert found(logger.name) is first
    assert len(logger.filters) == 1


def test_an_unquietened_logger_is_left_alone(logger: logging.Logger) -> None:
    assert found(logger.name) is None
