"""Archives that a Spark Connect session sends to its server."""

from pathlib import Path
from typing import Any

import pytest

from penstock.pipeline.spark.connect import ConnectRuntime


class Session:
    """A client whose server refuses the first archive."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def addArtifacts(self, path: str, *, pyfile: bool) -> None:  # noqa: N802 # PySpark's name
        assert pyfile
        self.sent.append(path)
        if len(self.sent) == 1:
            raise ConnectionError("the server is away")


def test_an_archive_that_did_not_arrive_is_sent_again_and_then_no_more() -> None:
    session: Any = Session()
    runtime = ConnectRuntime(session)
    with pytest.raises(ConnectionError):
        runtime.add_package(Path("penstock-1.zip"))
    for _ in range(2):
        runtime.add_package(Path("penstock-1.zip"))
    assert session.sent == ["penstock-1.zip"] * 2
