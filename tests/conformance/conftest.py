"""Every broker, one suite for all."""

from collections.abc import Iterator

import pytest
from tests.conformance.broker_stands import NOT_APPLICABLE, STANDS, Stand


@pytest.fixture(params=list(STANDS))
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    if (reason := NOT_APPLICABLE.get((request.param, request.node.originalname))) is not None:
        pytest.skip(reason)
    made = STANDS[request.param](request)
    yield made
    made.close()
