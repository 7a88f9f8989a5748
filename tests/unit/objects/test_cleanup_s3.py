"""Cleanup with S3's responses that a test server does not give: refusals, conflicts, late failed conditions."""

from collections.abc import Iterator

import pytest
from tests.services.aws_server import aws_at
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.errors import ConfigurationError, ObjectDenied, TemporaryError
from penstock.objects.cleanup import CHANGED, DONE, MISSING, CleanupOutcome
from penstock.objects.cleanup_s3 import S3Deleter, S3Tagger
from penstock.objects.reference import ObjectRef
from penstock.storage import s3
from penstock.storage.address import s3_address

SOURCE = s3_address("s3://landing/in")
PLAIN = ObjectRef(bucket="landing", key="in/a", size_bytes=3, etag="0f")
VERSION = ObjectRef(bucket="landing", key="in/a", size_bytes=3, etag="0f", version_id="v1")
FOUND = Answered(headers={"ETag": '"0f"', "Content-Length": "0"})
DELETED = Answered(status=204)
NO_SUCH_KEY = refusal(404, "NoSuchKey")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Stub]:
    monkeypatch.setattr(s3, "TRIES_MAX", 1)  # boto3's own retries
    s3._service_client.cache_clear()
    with S3Stub(lambda asked: FOUND) as stub:
        yield stub
    s3._service_client.cache_clear()


def respond(stub: S3Stub, *, head: Answered = FOUND, delete: Answered = DELETED, probe: Answered = NO_SUCH_KEY) -> None:
    def answered(asked: Asked) -> Answered:
        if asked.method == "HEAD":
            return head
        return probe if ".penstock-cleanup-" in asked.target else delete

    stub.answer = answered


def deletes(stub: S3Stub) -> list[Asked]:
    return [one for one in stub.asked if one.method == "DELETE" and ".penstock-cleanup-" not in one.target]


def test_every_request_names_the_version(stub: S3Stub) -> None:
    respond(stub)
    assert S3Deleter(SOURCE, aws_at(stub.url)).clean(VERSION) is DONE
    assert ["versionId=v1" in one.target for one in stub.asked] == [True, True]


def test_without_versions_every_request_has_the_etag_and_the_store_is_probed_once(stub: S3Stub) -> None:
    respond(stub)
    deleter = S3Deleter(SOURCE, aws_at(stub.url))
    assert [deleter.clean(PLAIN), deleter.clean(PLAIN)] == [DONE, DONE]
    assert [one.headers["if-match"] for one in stub.asked if ".penstock" not in one.target] == ['"0f"'] * 4
    assert len(stub.asked) == 5


@pytest.mark.parametrize("probe", [NO_SUCH_KEY, refusal(412, "PreconditionFailed")])
def test_a_store_that_checks_the_condition_is_trusted(stub: S3Stub, probe: Answered) -> None:
    respond(stub, probe=probe)
    assert S3Deleter(SOURCE, aws_at(stub.url)).clean(PLAIN) is DONE


def test_a_store_that_ignores_the_condition_gets_no_delete(stub: S3Stub) -> None:
    respond(stub, probe=DELETED)
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="ignores If-Match"):
            S3Deleter(SOURCE, aws_at(stub.url)).clean(PLAIN)
    assert deletes(stub) == []


@pytest.mark.parametrize(
    ("delete", "outcome"),
    [
        (refusal(412, "PreconditionFailed"), CHANGED),
        (NO_SUCH_KEY, MISSING),
    ],
)
def test_an_object_changed_since_the_head_request_is_left_alone(
    stub: S3Stub, delete: Answered, outcome: object
) -> None:
    respond(stub, delete=delete)
    assert S3Deleter(SOURCE, aws_at(stub.url)).clean(PLAIN) is outcome


@pytest.mark.parametrize(
    "message", ["Access Denied because object protected by object lock.", "Object is WORM protected"]
)
def test_an_object_lock_named_only_in_the_refusal_keeps_the_object(stub: S3Stub, message: str) -> None:
    respond(stub, delete=refusal(403, "AccessDenied", message))
    cleaned = S3Deleter(SOURCE, aws_at(stub.url)).clean(VERSION)
    assert (cleaned.outcome, cleaned.reason) == (CleanupOutcome.REFUSED, "Object Lock protects it")


@pytest.mark.parametrize(
    ("refused", "kind", "text"),
    [
        (refusal(403, "AccessDenied"), ObjectDenied, "check the permissions"),
        (refusal(409, "ConditionalRequestConflict"), TemporaryError, "another client is writing it"),
        (refusal(503, "SlowDown"), TemporaryError, "slow down"),
        (refusal(500, "InternalError"), TemporaryError, "S3 responded with 500"),
    ],
)
def test_a_refusal_not_specific_to_the_object_is_raised(
    stub: S3Stub, refused: Answered, kind: type[Exception], text: str
) -> None:
    for answers in ({"delete": refused}, {"probe": refused}):
        respond(stub, **answers)
        with pytest.raises(kind, match=text):
            S3Deleter(SOURCE, aws_at(stub.url)).clean(PLAIN)


@pytest.mark.parametrize(("status", "kind"), [(403, ObjectDenied), (503, TemporaryError)])
def test_a_refused_head_request_changes_nothing(stub: S3Stub, status: int, kind: type[Exception]) -> None:
    respond(stub, head=Answered(status=status))
    for cleaner in (S3Deleter(SOURCE, aws_at(stub.url)), S3Tagger(SOURCE, {"a": "b"}, aws_at(stub.url))):
        with pytest.raises(kind):
            cleaner.clean(PLAIN)
    assert {one.method for one in stub.asked} == {"HEAD"}
