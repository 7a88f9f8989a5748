"""Is the store of a source away? Asked by those who wait until it is back."""

import os
import threading
from pathlib import Path

import pytest
from tests.services.aws_server import AwsServer, aws_at
from tests.services.ports import free_port
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.app.sources import source_at
from penstock.errors import TemporaryError
from penstock.storage import s3
from penstock.storage.aws import Aws

BUCKET = "s3://lake/landing"


@pytest.mark.parametrize("answer", [Answered(), refusal(403, "AccessDenied"), refusal(404, "NoSuchBucket")])
def test_whatever_a_server_says_of_the_bucket_is_an_answer(answer: Answered) -> None:
    with S3Stub(lambda _: answer) as stub:
        source_at(BUCKET, aws_at(stub.url)).ping()
        assert [asked.method for asked in stub.asked] == ["HEAD"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_cannot_serve_now_is_away(status: int) -> None:
    with S3Stub(lambda _: refusal(status, "SlowDown")) as stub, pytest.raises(TemporaryError, match="s3://lake"):
        source_at(BUCKET, aws_at(stub.url)).ping()


def test_a_ping_that_hangs_is_not_tried_for_as_long_as_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may be back meanwhile, and the next ping finds it."""
    monkeypatch.setattr(s3, "READ_SECONDS", 0.2)
    monkeypatch.setattr(s3, "PING_READ_SECONDS", 0.2)
    over = threading.Event()

    def never(_: Asked) -> Answered:
        over.wait()
        return Answered()

    with S3Stub(never) as stub:
        with pytest.raises(TemporaryError, match="did not respond in time"):
            source_at(BUCKET, aws_at(stub.url)).ping()
        asked = len(stub.asked)
        over.set()
    assert asked == s3.PING_TRIES_MAX < s3.TRIES_MAX


def test_no_server_at_the_port_is_an_outage() -> None:
    aws: Aws = aws_at(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TemporaryError, match="no connection to the server"):
        source_at(BUCKET, aws).ping()


def test_a_frozen_server_hears_no_hangup_of_the_shell_above_it(moto: AwsServer) -> None:
    """Which would close its port and wake it: the kernel sends that to what is halted in a group without a parent."""
    assert os.getsid(moto.pid) == os.getpgid(moto.pid) == moto.pid


def test_a_folder_is_away_while_it_is_not_there(tmp_path: Path) -> None:
    folder = tmp_path / "landing"
    folder.mkdir()
    source = source_at(folder, Aws())
    source.ping()
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(TemporaryError, match="is its file system mounted"):
        source.ping()
