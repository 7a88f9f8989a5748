"""Listing by S3's own answers where a test server gives none: permissions, restored archives, encoded keys, faults."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.services.aws_server import aws_at
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.errors import ConfigurationError, TemporaryError, UsageError
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_listing import S3Listing
from penstock.storage.address import s3_address

ADDRESS = s3_address("s3://landing")
NONE = Answered(body=b"<VersioningConfiguration/>")
KEPT = Answered(body=b"<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>")
DENIED = refusal(403, "AccessDenied")

Settlements = Callable[[Asked], Answered]


def versions(*entries: str) -> Answered:
    body = f"<ListVersionsResult><EncodingType>url</EncodingType>{''.join(entries)}</ListVersionsResult>"
    return Answered(body=body.encode())


def version(key: str, *, more: str = "", version_id: str = "null") -> str:
    return (
        f"<Version><Key>{key}</Key><VersionId>{version_id}</VersionId><IsLatest>true</IsLatest>"
        f"<ETag>&quot;0f&quot;</ETag><Size>3</Size>{more}</Version>"
    )


PLAIN = Answered(
    body=b"<ListBucketResult><EncodingType>url</EncodingType><Contents><Key>a+b%0A</Key><ETag>&quot;0f&quot;</ETag>"
    b"<Size>3</Size></Contents></ListBucketResult>"
)


def answers(*, versions: Answered = DENIED, plain: Answered = DENIED, versioning: Answered = DENIED) -> Settlements:
    def answer(asked: Asked) -> Answered:
        query = parse_qs(urlsplit(asked.target).query, keep_blank_values=True)
        return versions if "versions" in query else versioning if "versioning" in query else plain

    return answer


@pytest.fixture(scope="module")
def server() -> Iterator[S3Stub]:
    with S3Stub(answers()) as server:
        yield server


@pytest.fixture
def stub(server: S3Stub) -> S3Stub:
    server.asked.clear()
    return server


@pytest.fixture
def listing(stub: S3Stub) -> S3Listing:
    return S3Listing(ADDRESS, aws=aws_at(stub.url))


def listed(listing: S3Listing) -> list[ObjectRef]:
    return [ref for chunk in listing.chunks() for ref in chunk]


def test_keys_are_told_encoded_and_decoded_once(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = answers(versions=versions(version("a%252F"), version("b+%2B%0A%1B%5B31m", version_id="v1")))
    first, second = listed(listing)
    assert first == ObjectRef(bucket="landing", key="a%2F", size_bytes=3, etag="0f")
    assert second == ObjectRef(bucket="landing", key="b +\n\x1b[31m", size_bytes=3, etag="0f", version_id="v1")
    assert all("encoding-type=url" in asked.target for asked in stub.asked)


def test_an_archived_object_that_was_restored_is_found(stub: S3Stub, listing: S3Listing) -> None:
    archived = "<StorageClass>DEEP_ARCHIVE</StorageClass>"
    restored = (
        "<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress>"
        "<RestoreExpiryDate>2030-01-01T00:00:00.000Z</RestoreExpiryDate></RestoreStatus>"
    )
    begun = "<RestoreStatus><IsRestoreInProgress>true</IsRestoreInProgress></RestoreStatus>"
    entries = version("a", more=archived), version("b", more=archived + restored), version("c", more=archived + begun)
    stub.answer = answers(versions=versions(*entries))
    assert [ref.key for ref in listed(listing)] == ["b"]
    assert listing.report().problems_count == 2
    assert stub.asked[-1].headers["x-amz-optional-object-attributes"] == "RestoreStatus"


def test_the_requester_pays_where_asked_to(stub: S3Stub) -> None:
    stub.answer = answers(versions=versions(version("a")))
    aws = replace(aws_at(stub.url), requester_pays=True)
    assert len(listed(S3Listing(s3_address("s3://landing/a"), aws=aws))) == 2  # the stub knows no prefixes
    assert {asked.headers.get("x-amz-request-payer") for asked in stub.asked} == {"requester"}


@pytest.mark.parametrize("refused", [DENIED, refusal(501, "NotImplemented")], ids=["denied", "unknown"])
def test_a_bucket_without_versions_is_listed_without_them(stub: S3Stub, listing: S3Listing, refused: Answered) -> None:
    stub.answer = answers(versions=refused, versioning=NONE, plain=PLAIN)
    assert listed(listing) == [ObjectRef(bucket="landing", key="a b\n", size_bytes=3, etag="0f")]


@pytest.mark.parametrize("versioning", [KEPT, DENIED], ids=["kept", "denied"])
def test_a_bucket_that_may_keep_versions_is_not_listed_without_them(
    stub: S3Stub, listing: S3Listing, versioning: Answered
) -> None:
    stub.answer = answers(versioning=versioning, plain=PLAIN)
    with pytest.raises(ConfigurationError, match=r"s3://landing cannot be listed: .* grant s3:ListBucketVersions\.$"):
        listed(listing)


def test_what_may_not_be_listed_at_all(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = answers(versioning=NONE)
    with pytest.raises(ConfigurationError, match="access is denied; grant s3:ListBucket and s3:ListBucketVersions"):
        listed(listing)


def test_a_key_that_is_unknown_is_no_matter_of_rights(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = lambda asked: refusal(403, "InvalidAccessKeyId")
    with pytest.raises(ConfigurationError, match=r"does not know the access key .*: check the credentials\.$"):
        listed(listing)


def test_a_bucket_that_is_not_there_was_named_wrongly(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = lambda asked: refusal(404, "NoSuchBucket")
    with pytest.raises(UsageError, match=r"the bucket does not exist: create it, or correct its name\.$"):
        listed(listing)


def test_what_may_pass_is_tried_again_and_then_temporary(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = lambda asked: refusal(503, "SlowDown") if len(stub.asked) == 1 else versions(version("a"))
    assert [ref.key for ref in listed(listing)] == ["a"]
    stub.answer = lambda asked: refusal(503, "SlowDown")
    with pytest.raises(TemporaryError, match=r"^s3://landing cannot be listed: .*slow down"):
        listed(listing)
