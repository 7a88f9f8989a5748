"""Cleaning up by S3's own answers where a test server gives none: refusals, conflicts, a condition that is met late."""

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
THERE = Answered(headers={"ETag": '"0f"', "Content-Length": "0"})
DELETED = Answered(status=204)
NO_SUCH_KEY = refusal(404, "NoSuchKey")


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Stub]:
    monkeypatch.setattr(s3, "TRIES_MAX", 1)  # of boto3 itself
    s3._service_client.cache_clear()
    with S3Stub(lambda asked: THERE) as stub:
        yield stub
    s3._service_client.cache_clear()


def answer(stub: S3Stub, *, head: Answered = THERE, delete: Answered = DELETED, probe: Answered = NO_SUCH_KEY) -> None:
    def answered(asked: Asked) -> Answered:
        if asked.method == "HEAD":
            return head
        return probe if ".penstock-cleanup-" in asked.target else delete

    stub.answer = answered


def deletes(stub: S3Stub) -> list[Asked]:
    return [one for one in stub.asked if one.method == "DELETE" and ".penstock-cleanup-" not in one.target]


def test_a_version_is_named_in_every_request(stub: S3Stub) -> None:
    answer(stub)
    assert S3Deleter(SOURCE, aws_at(stub.url)).clean(VERSION) is DONE
    assert ["versionId=v1" in one.target for one in stub.asked] == [True, True]


def test_without_versions_every_request_carries_the_etag_and_the_store_is_tried_once(stub: S3Stub) -> None:
    answer(stub)
    deleter = S3Deleter(SOURCE, aws_at(stub.url))
    assert [deleter.clean(PLAIN), deleter.clean(PLAIN)] == [DONE, DONE]
    assert [one.headers["if-match"] for one in stub.asked if ".penstock" not in one.target] == ['"0f"'] * 4
    assert len(stub.asked) == 5


@pytest.mark.parametrize("probe", [NO_SUCH_KEY, refusal(412, "PreconditionFailed")])
def test_a_store_that_looks_at_the_condition_is_trusted(stub: S3Stub, probe: Answered) -> None:
    answer(stub, probe=probe)
    assert S3Deleter(SOURCE, aws_at(stub.url)).clean(PLAIN) is DONE


def test_a_store_that_does_not_is_never_asked_to_delete(stub: S3Stub) -> None:
    answer(stub, probe=DELETED)
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
def test_what_changed_since_the_look_is_left_alone(stub: S3Stub, delete: Answered, outcome: object) -> None:
    answer(stub, delete=delete)
    assert S3Deleter(SOURCE, aws_at(stub.url)).clean(PLAIN) is outcome


@pytest.mark.parametrize(
    "message", ["Access Denied because object protected by object lock.", "Object is WORM protected"]
)
def test_a_lock_that_only_the_refusal_tells_of_keeps_the_object(stub: S3Stub, message: str) -> None:
    answer(stub, delete=refusal(403, "AccessDenied", message))
    cleaned = S3Deleter(SOURCE, aws_at(stub.url)).clean(VERSION)
    assert (cleaned.outcome, cleaned.reason) == (CleanupOutcome.REFUSED, "Object Lock protects it")


@pytest.mark.parametrize(
    ("refused", "kind", "words"),
    [
        (refusal(403, "AccessDenied"), ObjectDenied, "check the permissions"),
        (refusal(409, "ConditionalRequestConflict"), TemporaryError, "another client is writing it"),
        (refusal(503, "SlowDown"), TemporaryError, "slow down"),
        (refusal(500, "InternalError"), TemporaryError, "S3 responded with 500"),
    ],
)
def test_what_is_no_matter_of_the_object_alone_is_raised(
    stub: S3Stub, refused: Answered, kind: type[Exception], words: str
) -> None:
    for answers in ({"delete": refused}, {"probe": refused}):
        answer(stub, **answers)
        with pytest.raises(kind, match=words):
            S3Deleter(SOURCE, aws_at(stub.url)).clean(PLAIN)


@pytest.mark.parametrize(("status", "kind"), [(403, ObjectDenied), (503, TemporaryError)])
def test_a_look_that_is_refused_touches_nothing(stub: S3Stub, status: int, kind: type[Exception]) -> None:
    answer(stub, head=Answered(status=status))
    for cleaner in (S3Deleter(SOURCE, aws_at(stub.url)), S3Tagger(SOURCE, {"a": "b"}, aws_at(stub.url))):
        with pytest.raises(kind):
            cleaner.clean(PLAIN)
    assert {one.method for one in stub.asked} == {"HEAD"}
