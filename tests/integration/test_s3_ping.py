"""Pings of a source's store: a waiting process pings until the store is available."""

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


@pytest.mark.parametrize("response", [Answered(), refusal(403, "AccessDenied"), refusal(404, "NoSuchBucket")])
def test_any_response_about_the_bucket_means_available(response: Answered) -> None:
    with S3Stub(lambda _: response) as stub:
        source_at(BUCKET, aws_at(stub.url)).ping()
        assert [request.method for request in stub.asked] == ["HEAD"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_an_overloaded_server_is_unavailable(status: int) -> None:
    with S3Stub(lambda _: refusal(status, "SlowDown")) as stub, pytest.raises(TemporaryError, match="s3://lake"):
        source_at(BUCKET, aws_at(stub.url)).ping()


def test_a_hanging_ping_has_fewer_tries_than_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server may be available again meanwhile, and the next ping finds that."""
    monkeypatch.setattr(s3, "READ_SECONDS", 0.2)
    monkeypatch.setattr(s3, "PING_READ_SECONDS", 0.2)
    over = threading.Event()

    def never(_: Asked) -> Answered:
        over.wait()
        return Answered()

    with S3Stub(never) as stub:
        with pytest.raises(TemporaryError, match="did not respond in time"):
            source_at(BUCKET, aws_at(stub.url)).ping()
        request = len(stub.asked)
        over.set()
    assert request == s3.PING_TRIES_MAX < s3.TRIES_MAX


def test_no_server_at_the_port_is_an_outage() -> None:
    aws: Aws = aws_at(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(TemporaryError, match="no connection to the server"):
        source_at(BUCKET, aws).ping()


def test_a_frozen_server_is_in_its_own_session(moto: AwsServer) -> None:
    """A hangup would close its port and wake it: the kernel sends one to halted processes in an orphaned group."""
    assert os.getsid(moto.pid) == os.getpgid(moto.pid) == moto.pid


def test_a_missing_folder_is_unavailable(tmp_path: Path) -> None:
    folder = tmp_path / "landing"
    folder.mkdir()
    source = source_at(folder, Aws())
    source.ping()
    folder.rename(tmp_path / "elsewhere")
    with pytest.raises(TemporaryError, match="is its file system mounted"):
        source.ping()
