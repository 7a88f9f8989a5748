"""Every broker, one suite for all."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance.broker_stands import STANDS, Stand


@pytest.fixture(params=list(STANDS))
def stand(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stand]:
    made = STANDS[request.param](tmp_path)
    yield made
    made.close()
