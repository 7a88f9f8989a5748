"""Times in AWS's responses: read like botocore reads them, and without dateutil where there are many."""

from datetime import UTC, datetime
from email.utils import format_datetime

import botocore.parsers
import botocore.utils
import pytest
from botocore.awsrequest import AWSResponse

from penstock.storage.aws import Aws, parsed_time

TIME = datetime(2026, 3, 1, 23, 59, 58, 123000, tzinfo=UTC)
WHOLE = TIME.replace(microsecond=0)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-03-01T23:59:58.123Z", TIME),
        ("2026-03-01T23:59:58Z", WHOLE),
        ("2026-03-01T23:59:58.000Z", WHOLE),
        ("2026-03-01T23:59:58+00:00", WHOLE),
        ("20260301T235958Z", WHOLE),
        (format_datetime(WHOLE, usegmt=True), WHOLE),
        (WHOLE.timestamp(), WHOLE),
        (str(int(WHOLE.timestamp())), WHOLE),
    ],
)
def test_every_notation_is_the_time_that_botocore_reads(text: str | float, time: datetime) -> None:
    assert parsed_time(text) == botocore.utils.parse_timestamp(text) == time
    assert parsed_time(text).utcoffset() is not None


def test_other_text_is_refused() -> None:
    with pytest.raises(ValueError, match="Invalid timestamp"):
        parsed_time("2026-03-01Tyesterday-Z")


def test_a_listing_is_parsed_without_dateutil(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parser of the process's session is ours: botocore's own one would make listings twice as expensive."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr(botocore.parsers, "DEFAULT_TIMESTAMP_PARSER", _refusing)  # of a session that names no other
    monkeypatch.setattr(botocore.utils, "parse_timestamp", _refusing)
    client = Aws(region="us-east-1", endpoint_url="http://127.0.0.1:9").client("s3")
    client.meta.events.register("before-send.s3.ListObjectsV2", lambda **_: _listing())
    assert client.list_objects_v2(Bucket="landing")["Contents"][0]["LastModified"] == TIME


def _listing() -> AWSResponse:
    body = (
        b'<?xml version="1.0"?><ListBucketResult><Contents><Key>a</Key>'
        b"<LastModified>2026-03-01T23:59:58.123Z</LastModified></Contents></ListBucketResult>"
    )
    response = AWSResponse("http://127.0.0.1:9", 200, {}, None)
    response._content = body  # instead of a connection to read it from
    return response


def _refusing(value: object) -> datetime:
    raise AssertionError(f"{value} was parsed by botocore")
