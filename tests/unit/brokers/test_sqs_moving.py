"""SQS's own move tasks, which no server of the tests has: answers are those of AWS's documentation, and what is asked
and answered is checked against AWS's own model of the service, as boto3 has it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest
from botocore.stub import Stubber

from penstock.brokers.sqs.client import QueueRef, SqsApi
from penstock.brokers.sqs.move import TASK_POLL_SECONDS, MoveInProgress, MoveProgress, MoveStarter, MoveStatus
from penstock.brokers.sqs.queues import SqsQueues
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.storage.aws import Aws
from penstock.testing import FakeClock

NOW = 1_700_000_000.0
BEFORE, BEGUN = 1_699_999_000_000, 1_700_000_000_500  # AWS's clock, in milliseconds
DEAD, ORDERS, BILLS = "orders-dlq", "orders", "bills"
ARN = "arn:aws:sqs:eu-west-1:123456789012:"
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/"
HANDLE = "the-task"


class Scene:
    """A client that answers what it was told to, in that order, and a clock that notes waits."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOW, auto_advance=True)
        self.api = SqsApi(Aws(region="eu-west-1"), pollers=1, poll_seconds=1.0)
        self.stub = Stubber(self.api._client("control"))
        self.stub.activate()
        self.movers = MoveStarter(self.api, _Known(self.api, clock=self.clock), clock=self.clock)

    def arns(self, *names: str) -> None:
        for name in names:
            self.stub.add_response(
                "get_queue_attributes",
                {"Attributes": {"QueueArn": ARN + name}},
                {"QueueUrl": URL + name, "AttributeNames": ["QueueArn"]},
            )

    def listed(self, *tasks: Mapping[str, Any]) -> None:
        asked = {"SourceArn": ARN + DEAD, "MaxResults": 10}
        self.stub.add_response("list_message_move_tasks", {"Results": list(tasks)}, asked)

    def sources(self, *names: str) -> None:
        answer = {"queueUrls": [URL + name for name in names]}
        self.stub.add_response("list_dead_letter_source_queues", answer, {"QueueUrl": URL + DEAD})

    def begins(self, destination: str = ORDERS, **rate: int) -> None:
        asked = {"SourceArn": ARN + DEAD, "DestinationArn": ARN + destination, **rate}
        self.stub.add_response("start_message_move_task", {"TaskHandle": HANDLE}, asked)

    def refuses(self, code: str, words: str, operation: str = "start_message_move_task") -> None:
        self.stub.add_client_error(operation, service_error_code=code, service_message=words, http_status_code=400)

    def cancels(self) -> None:
        self.stub.add_response(
            "cancel_message_move_task", {"ApproximateNumberOfMessagesMoved": 1}, {"TaskHandle": HANDLE}
        )

    def begun(self, destination: str | None = ORDERS, *, per_second: int | None = None) -> MoveInProgress:
        return self.movers.start(DEAD, destination, per_second=per_second)

    def under_way(self) -> MoveInProgress:
        """One that was begun after another had ended."""
        self.arns(DEAD, ORDERS)
        self.listed(task("COMPLETED", started_at=BEFORE, moved=7))
        self.begins()
        return self.begun()


class _Known(SqsQueues):
    def find(self, queue: str) -> QueueRef:
        return QueueRef(name=queue, url=queue if queue.startswith(URL) else URL + queue)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.stub.assert_no_pending_responses()
    made.stub.deactivate()
    made.api.close()


def task(status: str, *, started_at: int = BEGUN, moved: int = 0, of: int | None = None, **more: Any) -> dict[str, Any]:
    told: dict[str, Any] = {
        "Status": status,
        "SourceArn": ARN + DEAD,
        "StartedTimestamp": started_at,
        "ApproximateNumberOfMessagesMoved": moved,
        **more,
    }
    if of is not None:
        told["ApproximateNumberOfMessagesToMove"] = of
    if status == "RUNNING":
        told["TaskHandle"] = HANDLE
    return told


def brief(seen: Sequence[MoveProgress]) -> list[tuple[str, int, int | None]]:
    return [(one.status.value, one.moved, one.to_move) for one in seen]


def test_a_task_is_watched_until_it_is_over(scene: Scene) -> None:
    moving = scene.under_way()
    old = task("COMPLETED", started_at=BEFORE, moved=7)
    scene.listed(old)  # AWS has not heard of it everywhere
    scene.listed(task("RUNNING"), old)
    scene.listed(task("RUNNING", moved=40, of=100), old)
    scene.listed(task("COMPLETED", moved=100, of=100), old)
    began = scene.clock.monotonic()
    with moving:
        seen = list(moving)
    assert brief(seen) == [("RUNNING", 0, None), ("RUNNING", 0, None), ("RUNNING", 40, 100), ("COMPLETED", 100, 100)]
    assert {(one.source, one.destination) for one in seen} == {(DEAD, ORDERS)}
    assert scene.clock.monotonic() - began == 3 * TASK_POLL_SECONDS  # none before the first look, none after the last
    assert list(moving) == []


def test_a_task_that_was_over_before_the_first_look_is_not_taken_for_an_older_or_a_newer_one(scene: Scene) -> None:
    moving = scene.under_way()
    newer = task("COMPLETED", started_at=BEGUN + 9_000, moved=3)
    scene.listed(newer, task("COMPLETED", moved=2, of=2), task("FAILED", started_at=BEFORE))
    assert brief(list(moving)) == [("COMPLETED", 2, 2)]


def test_the_destination_is_the_one_queue_that_names_the_source(scene: Scene) -> None:
    scene.sources(ORDERS)
    scene.arns(DEAD, ORDERS)
    scene.listed()
    scene.begins()
    scene.listed(task("COMPLETED"))
    assert brief(list(scene.begun(None))) == [("COMPLETED", 0, None)]


def test_of_several_sources_one_is_to_be_named(scene: Scene) -> None:
    scene.sources(ORDERS, BILLS)
    with pytest.raises(ConfigurationError, match=r"Several queues .* \(bills, orders\): name the destination"):
        scene.begun(None)


def test_a_queue_that_is_nobodys_dead_letters_is_not_moved(scene: Scene) -> None:
    scene.sources()
    with pytest.raises(ConfigurationError, match="only those of dead-letter queues"):
        scene.begun(None)
    scene.arns(DEAD, BILLS)
    scene.listed()
    scene.refuses("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
    with pytest.raises(ConfigurationError, match="only those of dead-letter queues"):
        scene.begun(BILLS)


def test_the_rate_is_handed_on_and_bounded(scene: Scene) -> None:
    for wrong in (0, 501):
        with pytest.raises(ConfigurationError, match="SQS takes 1 to 500"):
            scene.begun(per_second=wrong)
    scene.arns(DEAD, ORDERS)
    scene.listed()
    scene.begins(MaxNumberOfMessagesPerSecond=5)
    scene.cancels()
    scene.begun(per_second=5).close()


def test_one_task_at_a_time(scene: Scene) -> None:
    scene.arns(DEAD, ORDERS)
    scene.listed(task("RUNNING"))
    words = "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
    scene.refuses("InvalidParameterValue", words)
    with pytest.raises(TemporaryError, match=r"are being moved already.*wait for its end"):
        scene.begun()


@pytest.mark.parametrize(
    ("code", "words", "kind", "said"),
    [
        ("UnsupportedOperation", "too fast for FIFO", ConfigurationError, "SQS does not move .*too fast for FIFO"),
        ("ResourceNotFoundException", "no such", ConfigurationError, "SQS knows no queue 'orders-dlq', or"),
        ("AccessDenied", "no", ConfigurationError, "permit sqs:StartMessageMoveTask"),
        ("RequestThrottled", "slowly", TemporaryError, "slowly"),
    ],
)
def test_what_sqs_refuses_is_said_in_a_sentence(
    scene: Scene, code: str, words: str, kind: type[PenstockError], said: str
) -> None:
    scene.arns(DEAD, ORDERS)
    scene.listed()
    scene.refuses(code, words)
    with pytest.raises(kind, match=said):
        scene.begun()


def test_a_fifo_queue_and_a_standard_one_do_not_mix(scene: Scene) -> None:
    with pytest.raises(ConfigurationError, match="FIFO queue's go to a FIFO queue"):
        scene.begun("orders.fifo")
    with pytest.raises(ConfigurationError, match="to where they are"):
        scene.begun(DEAD)


def test_closing_cancels_a_task_that_runs_once(scene: Scene) -> None:
    moving = scene.under_way()
    scene.listed(task("RUNNING", moved=1, of=9))
    with moving:
        assert next(moving).moved == 1
        scene.cancels()
    moving.close()
    assert list(moving) == []


def test_a_task_that_ended_by_itself_needs_no_cancelling(scene: Scene) -> None:
    moving = scene.under_way()
    scene.refuses("UnsupportedOperation", "Only active tasks can be cancelled.", "cancel_message_move_task")
    moving.close()


def test_ctrl_c_while_it_is_waited_for_cancels_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    moving = scene.under_way()
    scene.listed(task("RUNNING"))
    scene.cancels()
    next(moving)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(scene.clock, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(moving)
    assert list(moving) == []


def test_somebody_elses_cancelling_is_seen(scene: Scene) -> None:
    moving = scene.under_way()
    for status in ("CANCELLING", "CANCELLED"):
        scene.listed(task(status, moved=4, of=9))
    assert [one.status for one in moving] == [MoveStatus.CANCELLING, MoveStatus.CANCELLED]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("AccessDenied", ConfigurationError), ("CouldNotDetermineMessageSource", TemporaryError), (None, TemporaryError)],
)
def test_a_task_that_sqs_gives_up_says_how_far_it_came(
    scene: Scene, reason: str | None, kind: type[PenstockError]
) -> None:
    moving = scene.under_way()
    why: dict[str, Any] = {} if reason is None else {"FailureReason": reason}
    scene.listed(task("FAILED", moved=1_200, of=5_000, **why))
    with pytest.raises(kind, match=f"after 1,200: {reason or 'it gives no reason'}; the others are where they were"):
        next(moving)
    assert list(moving) == []
