"""Run one suite with every broker."""

from collections.abc import Iterator

import pytest
from tests.conformance.broker_harnesses import HARNESSES, LOCAL_HARNESSES, NOT_APPLICABLE, BrokerHarness, is_slow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        harness = item.callspec.params.get("harness")
        if harness in HARNESSES and harness not in LOCAL_HARNESSES:
            item.add_marker(pytest.mark.server)
            if is_slow(harness, item.originalname):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(params=list(HARNESSES))
def harness(request: pytest.FixtureRequest) -> Iterator[BrokerHarness]:
    if (reason := NOT_APPLICABLE.get((request.param, request.node.originalname))) is not None:
        pytest.skip(reason)
    opened = HARNESSES[request.param](request)
    yield opened
    opened.close()
