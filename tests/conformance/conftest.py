"""Run one suite with every broker."""

from collections.abc import Iterator

import pytest
from tests.conformance.broker_stands import LOCAL_STANDS, NOT_APPLICABLE, STANDS, Stand, is_slow


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not isinstance(item, pytest.Function) or not hasattr(item, "callspec"):
            continue
        stand = item.callspec.params.get("stand")
        if stand in STANDS and stand not in LOCAL_STANDS:
            item.add_marker(pytest.mark.server)
            if is_slow(stand, item.originalname):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(params=list(STANDS))
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    if (reason := NOT_APPLICABLE.get((request.param, request.node.originalname))) is not None:
        pytest.skip(reason)
    opened = STANDS[request.param](request)
    yield opened
    opened.close()
