"""Listings with S3's responses that a test server does not give: permissions, archives, encoded keys, errors."""

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from urllib.parse import parse_qs, parse_qsl, urlsplit

import pytest
from tests.services.aws_server import aws_at
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.errors import ConfigurationError, TemporaryError, UsageError
from penstock.objects.reference import ObjectRef
from penstock.objects.s3_listing import S3Listing, S3Pages, Span
from penstock.storage.address import s3_address

DEADLINE_SECONDS = 60.0
ADDRESS = s3_address("s3://landing")
UNVERSIONED = Answered(body=b"<VersioningConfiguration/>")
SUSPENDED = Answered(body=b"<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>")
DENIED = refusal(403, "AccessDenied")

Respond = Callable[[Asked], Answered]


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


def respond_with(*, versions: Answered = DENIED, plain: Answered = DENIED, versioning: Answered = DENIED) -> Respond:
    def answer(asked: Asked) -> Answered:
        query = parse_qs(urlsplit(asked.target).query, keep_blank_values=True)
        return versions if "versions" in query else versioning if "versioning" in query else plain

    return answer


@pytest.fixture(scope="module")
def server() -> Iterator[S3Stub]:
    with S3Stub(respond_with()) as server:
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


def test_keys_are_requested_encoded_and_decoded_once(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = respond_with(versions=versions(version("a%252F"), version("b+%2B%0A%1B%5B31m", version_id="v1")))
    first, second = listed(listing)
    assert first == ObjectRef(bucket="landing", key="a%2F", size_bytes=3, etag="0f")
    assert second == ObjectRef(bucket="landing", key="b +\n\x1b[31m", size_bytes=3, etag="0f", version_id="v1")
    assert all("encoding-type=url" in asked.target for asked in stub.asked)


def test_a_restored_archived_object_is_listed(stub: S3Stub, listing: S3Listing) -> None:
    archived = "<StorageClass>DEEP_ARCHIVE</StorageClass>"
    restored = (
        "<RestoreStatus><IsRestoreInProgress>false</IsRestoreInProgress>"
        "<RestoreExpiryDate>2030-01-01T00:00:00.000Z</RestoreExpiryDate></RestoreStatus>"
    )
    in_progress = "<RestoreStatus><IsRestoreInProgress>true</IsRestoreInProgress></RestoreStatus>"
    entries = (
        version("a", more=archived),
        version("b", more=archived + restored),
        version("c", more=archived + in_progress),
    )
    stub.answer = respond_with(versions=versions(*entries))
    assert [ref.key for ref in listed(listing)] == ["b"]
    assert listing.report().problems_count == 2
    assert stub.asked[-1].headers["x-amz-optional-object-attributes"] == "RestoreStatus"


def test_requester_pays_is_sent_if_set(stub: S3Stub) -> None:
    stub.answer = respond_with(versions=versions(version("a")))
    aws = replace(aws_at(stub.url), requester_pays=True)
    assert len(listed(S3Listing(s3_address("s3://landing/a"), aws=aws))) == 2  # the stub ignores prefixes
    assert {asked.headers.get("x-amz-request-payer") for asked in stub.asked} == {"requester"}


@pytest.mark.parametrize("refused", [DENIED, refusal(501, "NotImplemented")], ids=["denied", "unknown"])
def test_a_bucket_without_versions_is_listed_without_them(stub: S3Stub, listing: S3Listing, refused: Answered) -> None:
    stub.answer = respond_with(versions=refused, versioning=UNVERSIONED, plain=PLAIN)
    assert listed(listing) == [ObjectRef(bucket="landing", key="a b\n", size_bytes=3, etag="0f")]


@pytest.mark.parametrize("versioning", [SUSPENDED, DENIED], ids=["suspended", "denied"])
def test_a_bucket_that_may_have_versions_is_not_listed_without_them(
    stub: S3Stub, listing: S3Listing, versioning: Answered
) -> None:
    stub.answer = respond_with(versioning=versioning, plain=PLAIN)
    with pytest.raises(ConfigurationError, match=r"s3://landing cannot be listed: .* grant s3:ListBucketVersions\.$"):
        listed(listing)


def test_a_bucket_without_the_right_to_list_is_a_configuration_error(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = respond_with(versioning=UNVERSIONED)
    with pytest.raises(ConfigurationError, match="access is denied; grant s3:ListBucket and s3:ListBucketVersions"):
        listed(listing)


def test_an_unknown_access_key_is_not_reported_as_missing_rights(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = lambda asked: refusal(403, "InvalidAccessKeyId")
    with pytest.raises(ConfigurationError, match=r"does not know the access key .*: check the credentials\.$"):
        listed(listing)


def test_a_missing_bucket_is_a_usage_error(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = lambda asked: refusal(404, "NoSuchBucket")
    with pytest.raises(UsageError, match=r"the bucket does not exist: create it, or correct its name\.$"):
        listed(listing)


def test_a_transient_error_is_retried_and_then_a_temporary_error(stub: S3Stub, listing: S3Listing) -> None:
    stub.answer = lambda asked: refusal(503, "SlowDown") if len(stub.asked) == 1 else versions(version("a"))
    assert [ref.key for ref in listed(listing)] == ["a"]
    stub.answer = lambda asked: refusal(503, "SlowDown")
    with pytest.raises(TemporaryError, match=r"^s3://landing cannot be listed: .*slow down"):
        listed(listing)


class Pages:
    """A server of a bucket's pages, whose responses may be held until others are requested as well."""

    def __init__(self, keys: Sequence[str], *, page_keys: int) -> None:
        self.wanted: dict[str, str] = {}  # the response to the first kind of request waits for the second kind
        self._pages = [keys[at : at + page_keys] for at in range(0, len(keys), page_keys)]
        self._kinds: set[str] = set()  # written under the condition
        self._changed = threading.Condition()

    def await_kind(self, kind: str) -> None:
        """Wait until a request of this kind was sent."""
        with self._changed:
            assert self._changed.wait_for(lambda: kind in self._kinds, DEADLINE_SECONDS)

    def answer(self, asked: Asked) -> Answered:
        query = dict(parse_qsl(urlsplit(asked.target).query, keep_blank_values=True))
        marker = query.get("key-marker")
        kind = f"page behind {marker}" if "max-keys" in query and query["max-keys"] != "1" else query["prefix"]
        with self._changed:
            self._kinds.add(kind)
            self._changed.notify_all()
            if kind in self.wanted:
                assert self._changed.wait_for(lambda: self.wanted[kind] in self._kinds, DEADLINE_SECONDS)
        if "versions" not in query:
            return Answered(body=b"<ListBucketResult/>")
        if kind == query["prefix"]:
            return versions()
        number = next((at for at, keys in enumerate(self._pages, 1) if keys[-1] == marker), 0)
        entries = map(version, self._pages[number])
        if number == len(self._pages) - 1:
            return versions(*entries)
        after = self._pages[number][-1]
        more = f"<NextKeyMarker>{after}</NextKeyMarker><NextVersionIdMarker>null</NextVersionIdMarker>"
        return versions(*entries, "<IsTruncated>true</IsTruncated>", more)


KEYS = [f"in/{number}" for number in range(6)]


@pytest.fixture
def pages(stub: S3Stub) -> Pages:
    pages = Pages(KEYS, page_keys=2)
    stub.answer = pages.answer
    return pages


def pages_of(stub: S3Stub) -> S3Listing:
    return S3Listing(s3_address("s3://landing/in"), aws=aws_at(stub.url), page_keys=2)


def test_a_listing_has_a_request_for_each_page_and_three_besides(stub: S3Stub, pages: Pages) -> None:
    assert [ref.key for ref in listed(pages_of(stub))] == KEYS
    assert len(stub.asked) == 3 + 3  # the object of the prefix's own name, and two names that would make it a table


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("in", "page behind None"),
        ("page behind None", "in"),
        ("in/_delta_log/", "in/_penstock/"),
        ("in/_penstock/", "in/_delta_log/"),
        ("in/_delta_log/", "page behind in/1"),
    ],
)
def test_requests_that_need_no_other_are_sent_together(stub: S3Stub, pages: Pages, first: str, second: str) -> None:
    pages.wanted = {first: second}
    assert [ref.key for ref in listed(pages_of(stub))] == KEYS


def test_the_next_page_is_requested_while_one_is_used(stub: S3Stub, pages: Pages) -> None:
    found = iter(S3Pages(s3_address("s3://landing/in"), aws_at(stub.url), page_keys=2))
    assert [[entry["Key"] for entry in next(found).entries] for _ in range(2)] == [[], KEYS[:2]]
    pages.await_kind("page behind in/1")


def test_a_span_ends_without_a_request_for_the_page_behind_it(stub: S3Stub, pages: Pages) -> None:
    span = Span(until="in/2")
    found = S3Pages(s3_address("s3://landing/in"), aws_at(stub.url), page_keys=2, span=span)
    assert [entry["Key"] for page in found for entry in page.entries] == KEYS[:3]
    assert len(stub.asked) == 1 + 2


def test_the_error_of_a_later_page_is_raised_behind_those_before_it(stub: S3Stub, pages: Pages) -> None:
    stub.answer = lambda asked: DENIED if "key-marker=in%2F3" in asked.target else pages.answer(asked)
    found = iter(S3Pages(s3_address("s3://landing/in"), aws_at(stub.url), page_keys=2))
    assert [len(next(found).entries) for _ in range(3)] == [0, 2, 2]
    with pytest.raises(ConfigurationError, match="access is denied"):
        next(found)
