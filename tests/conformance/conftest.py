"""Every broker, one suite for all."""

from collections.abc import Iterator

import pytest
from tests.conformance.broker_stands import STANDS, Stand


@pytest.fixture(params=list(STANDS))
def stand(request: pytest.FixtureRequest) -> Iterator[Stand]:
    made = STANDS[request.param](request)
    yield made
    made.close()
