"""SQS's own redrive of a whole dead-letter queue: a task that moves all messages unchanged.

AWS runs the task: it continues if this process dies, and is cancelled when the caller stops watching it. A moved
message has a new id, a new age and no receives; body and attributes stay, including a death. Messages that arrive
during the task may be moved as well.

AWS records the source queue only of messages that it dead-lettered itself; without a destination, a task fails at the
first other message. So the destination is always given: by the caller, or as the one queue whose redrive policy names
the source.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from types import TracebackType
from typing import Any, Self

from penstock.brokers.sqs.client import QueueRef, SqsApi, code_of
from penstock.brokers.sqs.queues import SqsQueues
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.messaging.clock import Clock

TASK_POLL_SECONDS = 2.0  # between two polls of a task
PER_SECOND_MAX = 500
TASKS_MAX = 10  # a queue's last tasks, as many as AWS lists
_MISSING = "ResourceNotFoundException"
_INVALID = frozenset({"InvalidParameterValue", "InvalidAddress", "UnsupportedOperation"})
_RUNNING_TEXT = "already a task running"
_NO_DLQ_TEXT = "configured as a dead letter queue"


class MoveStatus(StrEnum):
    """The states of a task, as AWS names them."""

    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    CANCELLING = "CANCELLING"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveProgress:
    """The progress of a task. Both counts are AWS's approximations."""

    source: str  # as named by the caller
    destination: str
    status: MoveStatus
    moved: int
    to_move: int | None  # at the start of the task; None: AWS has not counted yet


@dataclass(frozen=True, slots=True, kw_only=True)
class _MoveTask:
    """The identity of a started task."""

    source: QueueRef
    destination: QueueRef
    arn: str  # of the source
    handle: str  # AWS lists it for running tasks only
    after: int  # start of the previous task, in milliseconds by AWS's clock


class MoveInProgress(Iterator[MoveProgress]):
    """A task under way. Iterate for its progress until it ends; close it, preferably with `with`.

    Closing, or an exception while waiting (Ctrl-C), cancels a running task: messages already moved stay moved, the
    others stay in the source. Iterating raises `ConfigurationError` or `TemporaryError` if AWS gives up the task.
    """

    def __init__(self, api: SqsApi, task: _MoveTask, *, clock: Clock) -> None:
        self._api = api
        self._task = task
        self._clock = clock
        self._polled_once = False
        self._over = False
        self._moved = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __next__(self) -> MoveProgress:
        if self._over:
            raise StopIteration
        try:
            if self._polled_once:
                self._clock.wait(threading.Event(), TASK_POLL_SECONDS)
            progress = self._poll()
        except BaseException:
            self.close()
            raise
        self._polled_once = True
        self._over = progress.status not in (MoveStatus.RUNNING, MoveStatus.CANCELLING)
        return progress

    def close(self) -> None:
        """Cancel the task if it is running, and end the iteration."""
        if self._over:
            return
        self._over = True
        try:
            self._api.call("cancel_message_move_task", queue=self._task.source.name, TaskHandle=self._task.handle)
        except PenstockError as error:
            if _code(error) not in (_MISSING, *_INVALID):  # these codes mean that the task has ended
                raise

    def _poll(self) -> MoveProgress:
        listed = next((task for task in reversed(_tasks(self._api, self._task)) if self._is_own(task)), None)
        if listed is None:  # AWS does not list the task yet
            return self._progress(MoveStatus.RUNNING, {})
        status = MoveStatus(listed["Status"])
        if status is MoveStatus.FAILED:
            self._over = True
            raise self._failed(listed)
        return self._progress(status, listed)

    def _is_own(self, listed: Mapping[str, Any]) -> bool:
        """Return True if this is our task, or, once its handle is no longer listed, one started after the previous
        task.

        The caller takes the oldest match; only one task per queue runs at a time.
        """
        return (
            listed.get("TaskHandle") == self._task.handle or int(listed.get("StartedTimestamp", 0)) > self._task.after
        )

    def _progress(self, status: MoveStatus, listed: Mapping[str, Any]) -> MoveProgress:
        self._moved = max(self._moved, int(listed.get("ApproximateNumberOfMessagesMoved", 0)))
        to_move = listed.get("ApproximateNumberOfMessagesToMove")
        return MoveProgress(
            source=self._task.source.name,
            destination=self._task.destination.name,
            status=status,
            moved=self._moved,
            to_move=None if to_move is None else int(to_move),
        )

    def _failed(self, listed: Mapping[str, Any]) -> PenstockError:
        moved = int(listed.get("ApproximateNumberOfMessagesMoved", 0))
        reason = str(listed.get("FailureReason", "it gives no reason"))
        kind = ConfigurationError if "AccessDenied" in reason or "DoesNotExist" in reason else TemporaryError
        return kind(
            f"SQS stopped moving the messages of {self._task.source.name!r} to {self._task.destination.name!r} after "
            f"{moved:,}: {reason}; the others are where they were"
        )


class MoveStarter:
    """Start tasks."""

    def __init__(self, api: SqsApi, queues: SqsQueues, *, clock: Clock) -> None:
        self._api = api
        self._queues = queues
        self._clock = clock

    def start(self, source: str, destination: str | None, *, per_second: int | None) -> MoveInProgress:
        """Start a task. Raise `ConfigurationError` if AWS never accepts it, `TemporaryError` if one is running."""
        if per_second is not None and not 1 <= per_second <= PER_SECOND_MAX:
            raise ConfigurationError(
                f"{per_second} messages a second cannot be moved: SQS takes 1 to {PER_SECOND_MAX}."
            )
        found = self._queues.find(source)
        target = self._queues.find(destination if destination is not None else self._only_source(found))
        if target.url == found.url:
            raise ConfigurationError(
                f"The messages of {source!r} cannot be moved to where they are: name another queue."
            )
        if target.is_fifo != found.is_fifo:
            raise ConfigurationError(
                f"The messages of {source!r} cannot be moved to {target.name!r}: a FIFO queue's go to a FIFO queue, "
                "and a standard queue's to a standard one."
            )
        parameters: dict[str, Any] = {"SourceArn": self._arn(found), "DestinationArn": self._arn(target)}
        if per_second is not None:
            parameters["MaxNumberOfMessagesPerSecond"] = per_second
        before = _MoveTask(source=found, destination=target, arn=parameters["SourceArn"], handle="", after=0)
        with _translating_errors(found.name, target.name):
            last = max((int(task.get("StartedTimestamp", 0)) for task in _tasks(self._api, before)), default=0)
            response = self._api.call("start_message_move_task", queue=found.name, **parameters)
        return MoveInProgress(
            self._api, replace(before, handle=str(response["TaskHandle"]), after=last), clock=self._clock
        )

    def _only_source(self, queue: QueueRef) -> str:
        """Return the one queue whose redrive policy names this queue."""
        response = self._api.on(queue, "list_dead_letter_source_queues")
        urls = response.get("queueUrls", ())
        if len(urls) == 1:
            return str(urls[0])
        if not urls:
            raise ConfigurationError(_no_dlq_text(queue.name))
        names = ", ".join(sorted(url.rpartition("/")[2] for url in urls))
        raise ConfigurationError(
            f"Several queues leave their dead letters in {queue.name!r} ({names}): name the destination."
        )

    def _arn(self, queue: QueueRef) -> str:
        response = self._api.on(queue, "get_queue_attributes", AttributeNames=["QueueArn"])
        return str(response["Attributes"]["QueueArn"])


def _tasks(api: SqsApi, task: _MoveTask) -> Sequence[Mapping[str, Any]]:
    """Return the last tasks of the source, newest first."""
    response = api.call("list_message_move_tasks", queue=task.source.name, SourceArn=task.arn, MaxResults=TASKS_MAX)
    return tuple(response.get("Results", ()))


@contextmanager
def _translating_errors(source: str, destination: str) -> Iterator[None]:
    try:
        yield
    except PenstockError as error:
        refused = _refused(error, source, destination)
        if refused is None:
            raise
        raise refused from error.__cause__


def _refused(error: PenstockError, source: str, destination: str) -> PenstockError | None:
    """Return the error for a task that AWS refused to start; None if the refusal is not about the task."""
    code, text = _code(error), str(error.__cause__)
    if code == _MISSING:
        return ConfigurationError(
            f"SQS knows no queue {source!r}, or no queue {destination!r}, to move messages between."
        )
    if code not in _INVALID:
        return None
    if _RUNNING_TEXT in text.lower():
        return TemporaryError(
            f"messages of {source!r} are being moved already, and SQS runs one task a queue: wait for its end, or "
            "cancel it"
        )
    if _NO_DLQ_TEXT in text.lower():
        return ConfigurationError(_no_dlq_text(source))
    return ConfigurationError(f"SQS does not move the messages of {source!r} to {destination!r}: {text}.")


def _no_dlq_text(queue: str) -> str:
    return (
        f"The messages of {queue!r} cannot be moved: SQS moves only those of dead-letter queues, and no queue's "
        "redrive policy names this one. Give its source a redrive policy, or replay its messages one by one."
    )


def _code(error: PenstockError) -> str:
    return "" if error.__cause__ is None else code_of(error.__cause__)
