"""The rows of INPUTS about S3 and SQS: objects in a bucket, notifications as AWS sends them, real workers.

Rows 74 to 76 are in tests/integration/test_sqs_fleet.py.
"""

import json
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.inputs.sqs_case import LEASE_SECONDS, Case
from tests.integration.fleet import Fleet, wait_for
from tests.services.aws_server import AwsServer
from tests.services.s3_scene import Way, as_eventbridge_documents_it, as_s3_documents_it
from tests.services.s3_stub import Answered, Asked, S3Stub, refusal

from penstock.errors import TemporaryError
from penstock.events import LeaseLost, MessagesReceived, ObjectFailed, ObjectSkipped
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.messaging.settlement import Ack, Release
from penstock.pipeline.objects.stream import IncomingObject

PART_BYTES = 5 << 20  # the least of a part that is not the last
PATIENCE_SECONDS = 60.0
LAST_MODIFIED = "Sat, 21 Nov 2026 20:00:00 GMT"

Open = Callable[..., Case]


@pytest.fixture
def opened(tmp_path: Path, moto: AwsServer) -> Iterator[Open]:
    cases: list[Case] = []

    def open_case(way: Way = "sqs", **options: bool) -> Case:
        folder = tmp_path / str(len(cases))
        folder.mkdir()
        cases.append(Case(folder, moto, way, **options))
        return cases[-1]

    yield open_case
    for case in cases:
        case.close()


def together(*bodies: bytes) -> bytes:
    """Return one message with the records of several."""
    return json.dumps({"Records": [record for body in bodies for record in json.loads(body)["Records"]]}).encode()


# Odd but valid


@pytest.mark.parametrize(
    ("way", "key"),
    [
        pytest.param("sqs", "../../etc/passwd", id="row_35_dots"),
        pytest.param("sqs", "/etc/passwd", id="row_36_absolute"),
        pytest.param("eventbridge", "/etc/passwd", id="row_36_absolute_by_eventbridge"),
        pytest.param("sqs", "a%2Fb", id="row_37_decoded_once"),
        pytest.param("sqs", "a b+c", id="row_38_plus"),
        pytest.param("eventbridge", "a%2Bb+c", id="row_39_eventbridge_is_left_alone"),
    ],
)
def test_rows_35_to_39_a_key_is_processed_literally(opened: Open, way: Way, key: str) -> None:
    case = opened(way)
    case.put(key, key.encode())
    case.work()
    assert case.taken == [(key, key.encode())]
    assert case.states() == [ObjectState.PROCESSED]
    assert case.dead() == 0


def test_row_48_a_later_minor_version_with_unknown_fields(opened: Open) -> None:
    case = opened()
    case.put("a")
    (body,) = case.arrived()
    document = json.loads(body)
    document["Records"][0] |= {"eventVersion": "2.6", "glacierEventData": {"restoreEventData": {}}, "new": [1]}
    case.send(json.dumps(document).encode())
    case.work()
    assert (case.taken, case.dead()) == ([("a", b"x")], 0)


def test_row_49_wrapped_by_sns_equals_raw(opened: Open) -> None:
    for way in ("sns raw", "sns wrapped"):
        case = opened(way)
        case.put("a b+c", b"1")
        case.put("é", b"22")
        case.work()
        assert sorted(case.taken) == [("a b+c", b"1"), ("é", b"22")]
        assert case.dead() == 0


@pytest.mark.parametrize("way", ["sqs", "eventbridge"])
def test_row_54_a_multipart_upload_announced_twice_is_processed_once(opened: Open, way: Way) -> None:
    case = opened(way)
    case.announced.put_in_parts("big", [b"x" * PART_BYTES, b"y"])  # moto announces both the put and the completion
    bodies = [body for body in case.arrived(2 if way == "sqs" else 3) if b"Object Tags" not in body]
    if way == "eventbridge":
        bodies = [body.replace(b'"eTag"', b'"etag"') for body in bodies]
    assert len(bodies) == 2
    case.send(*bodies)
    case.work()
    assert [(key, len(content)) for key, content in case.taken] == [("big", PART_BYTES + 1)]
    assert case.settled().count(Ack()) == 2
    assert case.dead() == 0


# Test events, deleted, denied, repeated and removed objects


@pytest.mark.parametrize("way", ["sqs", "sns raw", "sns wrapped"])
def test_row_55_the_test_event_is_acked_and_counted(opened: Open, way: Way) -> None:
    case = opened(way)
    case.work()
    assert case.settled() == [Ack()]  # counted like every other message that leaves the queue
    assert (case.taken, case.dead()) == ([], 0)


def test_row_56_no_records_are_acked_and_counted(opened: Open) -> None:
    case = opened("eventbridge")  # EventBridge sends no test event
    case.send(b'{"Records": []}')
    case.work()
    assert case.settled() == [Ack()]
    assert (case.taken, case.dead()) == ([], 0)


def test_row_57_a_deleted_object_is_marked_as_deleted_on_the_second_attempt(opened: Open) -> None:
    case = opened("eventbridge")
    case.put("a")
    case.announced.s3.delete_object(Bucket=case.announced.bucket, Key="a")
    case.work()
    assert case.states() == [ObjectState.DELETED]
    assert [type(end) for end in case.settled()].count(Release) == 1
    assert (case.taken, case.dead()) == ([], 0)


class Refusing:
    """An S3 that denies every request while ``refuses`` is set."""

    def __init__(self, case: Case, content: bytes) -> None:
        self.case = case
        self.content = content
        self.refuses = True

    def __call__(self, asked: Asked) -> Answered:
        if self.refuses:
            return refusal(403, "AccessDenied")
        key = asked.target.partition("?")[0].rpartition("/")[2]
        etag = self.case.announced.s3.head_object(Bucket=self.case.announced.bucket, Key=key)["ETag"]
        size = len(self.content)
        headers = {"ETag": etag, "Content-Range": f"bytes 0-{size - 1}/{size}", "Last-Modified": LAST_MODIFIED}
        return Answered(status=206, body=self.content, headers=headers)


def test_row_58_no_permission_to_read_is_reported_and_retried_and_makes_no_dead_letters(opened: Open) -> None:
    case = opened()
    for number in range(4):
        case.put(str(number))
    answer = Refusing(case, b"x")
    with S3Stub(answer) as stub:

        def refused_often() -> bool:
            """Return True if each object was refused more often than it has attempts."""
            times = Counter(event.object_uri for event in case.events_of(ObjectFailed))
            return len(times) == 4 and min(times.values()) > 2

        with case.app(s3_url=stub.url, max_attempts=2) as app:
            case.serve(app, until=refused_often)
        assert {event.outcome for event in case.events_of(ObjectFailed)} == {"retry"}
        assert all("AccessDenied" in event.reason or "denied" in event.reason for event in case.events_of(ObjectFailed))
        assert case.dead() == 0
        answer.refuses = False
        case.work(s3_url=stub.url, max_attempts=2)
    assert sorted(case.taken) == [(str(number), b"x") for number in range(4)]
    assert case.dead() == 0


def test_row_59_an_older_sequencer_after_a_newer_one_is_superseded(opened: Open) -> None:
    case = opened()
    case.put("a", b"old")
    case.put("a", b"newer")
    old, newer = case.arrived(2)
    case.send(as_s3_documents_it(newer, version_id=None, sequencer="0055B"))
    case.work()
    case.send(as_s3_documents_it(old, version_id=None, sequencer="0055AED"))
    case.work()
    assert case.taken == [("a", b"newer")]
    assert case.states() == [ObjectState.PROCESSED, ObjectState.SUPERSEDED]
    assert [event.reason for event in case.events_of(ObjectSkipped)] == ["superseded"]
    assert case.dead() == 0


@pytest.mark.parametrize("way", ["sqs", "eventbridge"])
def test_row_60_two_versions_of_a_key_are_both_processed(opened: Open, way: Way) -> None:
    case = opened(way, versioned=True)
    ids = [case.announced.put("a", content)["VersionId"] for content in (b"one", b"second")]
    if way == "sqs":  # moto omits the version here
        old, newer = case.arrived(2)
        bodies = [as_s3_documents_it(newer, version_id=ids[1], sequencer="0B")]
        bodies += [as_s3_documents_it(old, version_id=ids[0], sequencer="0A")]
    else:
        bodies = [as_eventbridge_documents_it(body) for body in case.arrived(4) if b"Object Created" in body]
        assert [json.loads(body)["detail"]["object"]["version-id"] for body in bodies] == ids
    case.send(*bodies)
    case.work()
    assert sorted(case.taken) == [("a", b"one"), ("a", b"second")]
    assert case.states() == [ObjectState.PROCESSED] * 2


@pytest.mark.parametrize("marker", [False, True], ids=["deleted", "delete_marker"])
def test_row_61_a_removal_is_acked_and_nothing_is_read(opened: Open, marker: bool) -> None:
    case = opened()
    case.put("a")
    case.arrived()
    case.announced.s3.delete_object(Bucket=case.announced.bucket, Key="a")
    (body,) = case.arrived()
    assert json.loads(body)["Records"][0]["eventName"] == "ObjectRemoved:Delete"
    if marker:  # moto sends no notification for these
        body = body.replace(b"ObjectRemoved:Delete", b"ObjectRemoved:DeleteMarkerCreated")
        body = as_s3_documents_it(body, version_id="v2", sequencer="0B")
    case.send(body)
    with S3Stub(lambda asked: refusal(500, "InternalError")) as stub:
        case.work(s3_url=stub.url)
        assert stub.asked == []
    assert case.settled() == [Ack()]
    assert (case.taken, case.states(), case.dead()) == ([], [], 0)


def test_row_64_a_duplicate_with_a_new_message_id_has_no_second_effect(opened: Open) -> None:
    case = opened()
    case.put("a")
    (body,) = case.arrived()
    case.send(body)
    case.work()
    case.send(body)
    case.work()
    assert case.taken == [("a", b"x")]
    ids = {id for event in case.events_of(MessagesReceived) for id in event.message_ids}
    assert len(ids) == 2
    assert [event.reason for event in case.events_of(ObjectSkipped)] == ["already_processed"]


def test_row_65_two_workers_run_one_object_once(opened: Open) -> None:
    case = opened()
    case.put("a")
    (body,) = case.arrived()
    case.send(body, body)
    met = threading.Event()

    def wait_for_the_other_worker(obj: IncomingObject) -> None:
        case.take(obj)
        assert met.wait(PATIENCE_SECONDS), "the other worker never saw the duplicate"

    def listen(event: object) -> None:
        if isinstance(event, ObjectSkipped) and event.reason == "in_progress":
            met.set()

    with (
        case.app(wait_for_the_other_worker, holder="one", concurrency=1) as one,
        case.app(wait_for_the_other_worker, holder="two", concurrency=1) as two,
    ):
        one.listeners = two.listeners = (listen,)
        case.serve_together(one, two)
    assert case.taken == [("a", b"x")]
    assert case.states() == [ObjectState.PROCESSED]


def test_row_66_of_ten_records_only_the_failed_one_runs_again(opened: Open) -> None:
    case = opened()
    for number in range(10):
        case.put(str(number))
    case.send(together(*case.arrived(10)))
    calls: list[str] = []

    def fails_once(obj: IncomingObject) -> None:
        calls.append(obj.key)
        if obj.key == "6" and calls.count("6") == 1:
            raise ValueError("not yet")

    case.work(fails_once)
    assert sorted(calls) == sorted([*map(str, range(10)), "6"])
    assert calls[-1] == "6"
    assert [type(end) for end in case.settled()] == [Release, Ack]
    assert case.dead() == 0


def test_row_69_work_longer_than_its_lease_is_not_delivered_again(opened: Open) -> None:
    case = opened()
    case.put("a")
    found: list[object] = []

    def long(obj: IncomingObject) -> None:
        case.take(obj)
        for _ in range(int(LEASE_SECONDS) + 2):
            found.extend(case.broker.receive(case.queue, messages_max=1, lease_seconds=60, wait_seconds=1.0))

    case.work(long)
    assert (case.taken, found) == ([("a", b"x")], [])
    assert case.events_of(LeaseLost) == []


class UnavailableLedger:
    """A ledger whose database is unavailable for the first commits, as in a failover."""

    def __init__(self, ledger: Ledger, *, times: int) -> None:
        self._ledger = ledger
        self.times = times

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def commit(self, *given: Any, **named: Any) -> Any:
        if self.times:
            self.times -= 1
            raise TemporaryError("the database is unavailable")
        return self._ledger.commit(*given, **named)


def test_row_71_while_the_ledger_is_away_nothing_is_acked(opened: Open) -> None:
    case = opened()
    case.put("a")
    (body,) = case.arrived()
    case.send(body)
    with closing(Ledger.open(case.folder / "ledger.db")) as ledger:
        unavailable = UnavailableLedger(ledger, times=1)  # each failure hides the message for up to 30 s
        case.work(ledger=unavailable)
        assert unavailable.times == 0
    assert [type(end) for end in case.settled()] == [Release, Ack]
    assert case.states() == [ObjectState.PROCESSED]
    assert case.dead() == 0


OBJECTS_APP = """
import json
import os

from penstock import App

app = App.from_config()
JOURNAL = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


@app.object_handler(os.environ["QUEUE"], source=os.environ["SOURCE"], name="each")
def each(obj):
    line = {"what": "end", "id": obj.key, "message": "", "pid": os.getpid(), "attempt": 1, "at": 0.0}
    os.write(JOURNAL, (json.dumps(line) + "\\n").encode())
"""


def test_row_72_a_crash_after_the_commit_and_before_the_ack_has_no_second_effect(opened: Open) -> None:
    case = opened()
    case.put("a")
    case.send(*case.arrived())
    places = {"QUEUE": case.queue, "SOURCE": f"s3://{case.announced.bucket}"}
    fleet = Fleet(
        case.folder,
        broker="sqs://",
        aside=case.open_broker("fleet"),
        added={**case.server.environment, **places},
        app=OBJECTS_APP,
        worker_lease=LEASE_SECONDS,
        worker_stop_timeout=10,
    )
    try:
        assert fleet.start(kill_at="settling").end(within=PATIENCE_SECONDS) == -signal.SIGKILL
        assert case.states() == [ObjectState.PROCESSED]
        assert not case.is_empty()
        successor = fleet.start().ready()
        wait_for(lambda: successor.events("message.acked"), "the redelivery is acked")  # reported after the ack
        assert [event["attempt"] for event in successor.events("message.acked")] == [2]
        assert case.is_empty()
        assert [line.id for line in fleet.lines()] == ["a"]
    finally:
        fleet.close()
