"""SQS's own move tasks. The SQS server of the tests has none.

The responses are those of AWS's documentation. Requests and responses are checked against boto3's model of the service.
"""

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
EARLIER_START, START = 1_699_999_000_000, 1_700_000_000_500  # AWS's clock, in milliseconds
DEAD, ORDERS, BILLS = "orders-dlq", "orders", "bills"
ARN = "arn:aws:sqs:eu-west-1:123456789012:"
URL = "https://sqs.eu-west-1.amazonaws.com/123456789012/"
HANDLE = "the-task"


class MoveSetup:
    """A MoveStarter whose client expects given calls in order, and a clock that advances with each wait."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOW, auto_advance=True)
        self.api = SqsApi(Aws(region="eu-west-1"), pollers=1, poll_seconds=1.0)
        self.stub = Stubber(self.api._client("control"))
        self.stub.activate()
        self.movers = MoveStarter(self.api, _Known(self.api, clock=self.clock), clock=self.clock)

    def expect_arns(self, *names: str) -> None:
        for name in names:
            self.stub.add_response(
                "get_queue_attributes",
                {"Attributes": {"QueueArn": ARN + name}},
                {"QueueUrl": URL + name, "AttributeNames": ["QueueArn"]},
            )

    def expect_list(self, *tasks: Mapping[str, Any]) -> None:
        expected = {"SourceArn": ARN + DEAD, "MaxResults": 10}
        self.stub.add_response("list_message_move_tasks", {"Results": list(tasks)}, expected)

    def expect_sources(self, *names: str) -> None:
        answer = {"queueUrls": [URL + name for name in names]}
        self.stub.add_response("list_dead_letter_source_queues", answer, {"QueueUrl": URL + DEAD})

    def expect_start(self, destination: str = ORDERS, **rate: int) -> None:
        expected = {"SourceArn": ARN + DEAD, "DestinationArn": ARN + destination, **rate}
        self.stub.add_response("start_message_move_task", {"TaskHandle": HANDLE}, expected)

    def expect_refusal(self, code: str, words: str, operation: str = "start_message_move_task") -> None:
        self.stub.add_client_error(operation, service_error_code=code, service_message=words, http_status_code=400)

    def expect_cancel(self) -> None:
        self.stub.add_response(
            "cancel_message_move_task", {"ApproximateNumberOfMessagesMoved": 1}, {"TaskHandle": HANDLE}
        )

    def start_move(self, destination: str | None = ORDERS, *, per_second: int | None = None) -> MoveInProgress:
        return self.movers.start(DEAD, destination, per_second=per_second)

    def start_second_move(self) -> MoveInProgress:
        """Start a task after an earlier one has ended."""
        self.expect_arns(DEAD, ORDERS)
        self.expect_list(task("COMPLETED", started_at=EARLIER_START, moved=7))
        self.expect_start()
        return self.start_move()


class _Known(SqsQueues):
    def find(self, queue: str) -> QueueRef:
        return QueueRef(name=queue, url=queue if queue.startswith(URL) else URL + queue)


@pytest.fixture
def setup() -> Iterator[MoveSetup]:
    opened = MoveSetup()
    yield opened
    opened.stub.assert_no_pending_responses()
    opened.stub.deactivate()
    opened.api.close()


def task(status: str, *, started_at: int = START, moved: int = 0, of: int | None = None, **more: Any) -> dict[str, Any]:
    listed: dict[str, Any] = {
        "Status": status,
        "SourceArn": ARN + DEAD,
        "StartedTimestamp": started_at,
        "ApproximateNumberOfMessagesMoved": moved,
        **more,
    }
    if of is not None:
        listed["ApproximateNumberOfMessagesToMove"] = of
    if status == "RUNNING":
        listed["TaskHandle"] = HANDLE
    return listed


def summary(progress: Sequence[MoveProgress]) -> list[tuple[str, int, int | None]]:
    return [(one.status.value, one.moved, one.to_move) for one in progress]


def test_the_progress_of_a_task_is_polled_until_it_ends(setup: MoveSetup) -> None:
    move = setup.start_second_move()
    old = task("COMPLETED", started_at=EARLIER_START, moved=7)
    setup.expect_list(old)  # AWS does not list the new task yet
    setup.expect_list(task("RUNNING"), old)
    setup.expect_list(task("RUNNING", moved=40, of=100), old)
    setup.expect_list(task("COMPLETED", moved=100, of=100), old)
    began = setup.clock.monotonic()
    with move:
        progress = list(move)
    assert summary(progress) == [
        ("RUNNING", 0, None),
        ("RUNNING", 0, None),
        ("RUNNING", 40, 100),
        ("COMPLETED", 100, 100),
    ]
    assert {(one.source, one.destination) for one in progress} == {(DEAD, ORDERS)}
    assert setup.clock.monotonic() - began == 3 * TASK_POLL_SECONDS  # no wait before the first poll or after the last
    assert list(move) == []


def test_a_task_that_ended_before_the_first_poll_is_not_confused_with_others(setup: MoveSetup) -> None:
    move = setup.start_second_move()
    newer = task("COMPLETED", started_at=START + 9_000, moved=3)
    setup.expect_list(newer, task("COMPLETED", moved=2, of=2), task("FAILED", started_at=EARLIER_START))
    assert summary(list(move)) == [("COMPLETED", 2, 2)]


def test_the_default_destination_is_the_only_queue_that_dead_letters_to_the_source(setup: MoveSetup) -> None:
    setup.expect_sources(ORDERS)
    setup.expect_arns(DEAD, ORDERS)
    setup.expect_list()
    setup.expect_start()
    setup.expect_list(task("COMPLETED"))
    assert summary(list(setup.start_move(None))) == [("COMPLETED", 0, None)]


def test_several_source_queues_require_a_destination(setup: MoveSetup) -> None:
    setup.expect_sources(ORDERS, BILLS)
    with pytest.raises(ConfigurationError, match=r"Several queues .* \(bills, orders\): name the destination"):
        setup.start_move(None)


def test_a_queue_that_is_not_a_dead_letter_queue_is_rejected(setup: MoveSetup) -> None:
    setup.expect_sources()
    with pytest.raises(ConfigurationError, match="only those of dead-letter queues"):
        setup.start_move(None)
    setup.expect_arns(DEAD, BILLS)
    setup.expect_list()
    setup.expect_refusal("InvalidParameterValue", "Source queue must be configured as a Dead Letter Queue.")
    with pytest.raises(ConfigurationError, match="only those of dead-letter queues"):
        setup.start_move(BILLS)


def test_the_rate_is_checked_and_passed_to_sqs(setup: MoveSetup) -> None:
    for wrong in (0, 501):
        with pytest.raises(ConfigurationError, match="SQS takes 1 to 500"):
            setup.start_move(per_second=wrong)
    setup.expect_arns(DEAD, ORDERS)
    setup.expect_list()
    setup.expect_start(MaxNumberOfMessagesPerSecond=5)
    setup.expect_cancel()
    setup.start_move(per_second=5).close()


def test_a_second_task_for_the_same_queue_is_a_temporary_error(setup: MoveSetup) -> None:
    setup.expect_arns(DEAD, ORDERS)
    setup.expect_list(task("RUNNING"))
    words = "There is already a task running. Only one active task is allowed for a source queue arn at a given time."
    setup.expect_refusal("InvalidParameterValue", words)
    with pytest.raises(TemporaryError, match=r"are being moved already.*wait for its end"):
        setup.start_move()


@pytest.mark.parametrize(
    ("code", "words", "kind", "message"),
    [
        ("UnsupportedOperation", "too fast for FIFO", ConfigurationError, "SQS does not move .*too fast for FIFO"),
        ("ResourceNotFoundException", "no such", ConfigurationError, "SQS knows no queue 'orders-dlq', or"),
        ("AccessDenied", "no", ConfigurationError, "permit sqs:StartMessageMoveTask"),
        ("RequestThrottled", "slowly", TemporaryError, "slowly"),
    ],
)
def test_a_rejected_start_raises_a_clear_error(
    setup: MoveSetup, code: str, words: str, kind: type[PenstockError], message: str
) -> None:
    setup.expect_arns(DEAD, ORDERS)
    setup.expect_list()
    setup.expect_refusal(code, words)
    with pytest.raises(kind, match=message):
        setup.start_move()


def test_an_impossible_destination_is_rejected(setup: MoveSetup) -> None:
    with pytest.raises(ConfigurationError, match="FIFO queue's go to a FIFO queue"):
        setup.start_move("orders.fifo")
    with pytest.raises(ConfigurationError, match="to where they are"):
        setup.start_move(DEAD)


def test_closing_cancels_a_running_task_once(setup: MoveSetup) -> None:
    move = setup.start_second_move()
    setup.expect_list(task("RUNNING", moved=1, of=9))
    with move:
        assert next(move).moved == 1
        setup.expect_cancel()
    move.close()
    assert list(move) == []


def test_closing_ignores_that_the_task_has_already_ended(setup: MoveSetup) -> None:
    move = setup.start_second_move()
    setup.expect_refusal("UnsupportedOperation", "Only active tasks can be cancelled.", "cancel_message_move_task")
    move.close()


def test_ctrl_c_during_a_wait_cancels_the_task(setup: MoveSetup, monkeypatch: pytest.MonkeyPatch) -> None:
    move = setup.start_second_move()
    setup.expect_list(task("RUNNING"))
    setup.expect_cancel()
    next(move)

    def interrupted(*_: object) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(setup.clock, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(move)
    assert list(move) == []


def test_a_cancellation_by_another_process_is_reported(setup: MoveSetup) -> None:
    move = setup.start_second_move()
    for status in ("CANCELLING", "CANCELLED"):
        setup.expect_list(task(status, moved=4, of=9))
    assert [one.status for one in move] == [MoveStatus.CANCELLING, MoveStatus.CANCELLED]


@pytest.mark.parametrize(
    ("reason", "kind"),
    [("AccessDenied", ConfigurationError), ("CouldNotDetermineMessageSource", TemporaryError), (None, TemporaryError)],
)
def test_a_failed_task_raises_an_error_with_its_progress(
    setup: MoveSetup, reason: str | None, kind: type[PenstockError]
) -> None:
    move = setup.start_second_move()
    why: dict[str, Any] = {} if reason is None else {"FailureReason": reason}
    setup.expect_list(task("FAILED", moved=1_200, of=5_000, **why))
    with pytest.raises(kind, match=f"after 1,200: {reason or 'it gives no reason'}; the others are where they were"):
        next(move)
    assert list(move) == []
