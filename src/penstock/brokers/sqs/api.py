"""Speaking to SQS: clients, and calls whose errors are ours.

Three clients. A receive and a send are asked once: a receive that the library tries again would lease messages to
nobody, and a send would double them. Everything else may be done twice, and the library tries it again in its standard
mode; never in the adaptive one, which slows down heartbeats when others are throttled.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from botocore.config import Config

from penstock.brokers.sqs import faults
from penstock.errors import TemporaryError, UnknownOutcome
from penstock.messaging.broker import is_fifo
from penstock.messaging.forks import OwnSockets
from penstock.storage.aws import Aws

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 5.0  # after which a server that does not answer is away
SEND_SECONDS = 15.0  # the same where up to a mebibyte is on its way
TRIES = 3
CONNECTIONS_MAX = 32  # that are kept; of the receiving client more, if it has many pollers
RECEIVES = ("receive_message",)
SENDS = ("send_message_batch",)
SHAPES = ("create_queue", "get_queue_url", "set_queue_attributes")  # what is invalid here no other try makes valid


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRef:
    """A queue as AWS knows it, and as whoever asks for it calls it."""

    name: str
    url: str

    @property
    def is_fifo(self) -> bool:
        return is_fifo(self.url)


class Api:
    """One account's SQS. Thread-safe: boto3's clients are."""

    def __init__(self, aws: Aws, *, pollers: int, poll_seconds: float) -> None:
        self._aws = aws
        self._pollers = pollers
        self._poll_seconds = poll_seconds
        self._own = OwnSockets("this view of the SQS broker")
        self._lock = threading.RLock()
        self._clients: dict[str, Any] = {}  # under the lock
        self._done: set[tuple[str, str]] = set()  # operation and queue, once they worked; written by any thread
        self._closed = False  # written by the thread that closes

    @cached_property
    def region(self) -> str:
        """Where we ask."""
        return str(self._client("control").meta.region_name)

    @property
    def place(self) -> str:
        """Whom we ask, for people."""
        return self._aws.endpoint_url or f"SQS in {self.region}"

    def on(self, queue: QueueRef, operation: str, **parameters: Any) -> Mapping[str, Any]:
        """What AWS answers to an operation on a queue. Raises `TemporaryError`, `ConfigurationError`; of an operation
        that sends `UnknownOutcome`, where nobody knows whether it was done."""
        return self.ask(operation, queue=queue.name, QueueUrl=queue.url, **parameters)

    def ask(self, operation: str, *, queue: str = "", **parameters: Any) -> Mapping[str, Any]:
        """The same, of no queue in particular."""
        self.check_open()
        client = self._client_for(operation)
        try:
            answer: Mapping[str, Any] = getattr(client, operation)(**parameters)
        except (*faults.ERRORS, ValueError) as error:
            raise self._meant(error, operation, queue) from error
        self._done.add((operation, queue))
        return answer

    def check_open(self) -> None:
        """Raise `TemporaryError` after `close`, and `UsageError` in a process that was forked since it was opened."""
        self._own.check()
        if self._closed:
            raise TemporaryError("this view of the SQS broker was closed: open another one")

    def close(self) -> None:
        """Let go of connections. Calls under way end by themselves."""
        self._closed = True
        with self._lock:
            for client in self._clients.values():
                client.close()

    def _meant(self, error: Exception, operation: str, queue: str) -> Exception:
        action = "sqs:" + "".join(part.title() for part in operation.removesuffix("_batch").split("_"))
        known = self._let_before(error, operation, queue)
        if operation in SENDS and faults.may_have_been_done(error):
            return UnknownOutcome(
                f"{action} for the queue {queue!r} at {self.place}: {faults.said(error)}; whether it took the messages "
                "is not known"
            )
        return faults.meant(
            error,
            action=action,
            queue=queue,
            place=self._place_said(),
            known=known,
            final=operation in SENDS or operation in SHAPES,
        )

    def _let_before(self, error: Exception, operation: str, queue: str) -> bool:
        """Whether AWS did this before, or what tells as much: that the queue is there, or who we are."""
        done = tuple(self._done)  # other threads add to it
        if faults.is_missing(error) and any(name == queue for asked, name in done if asked not in SHAPES):
            return True
        return (operation, queue) in done or (faults.is_identity(error) and bool(done))

    def _place_said(self) -> str:
        try:
            return self.place
        except Exception:
            return "SQS"

    def _client_for(self, operation: str) -> Any:
        return self._client("receive" if operation in RECEIVES else "send" if operation in SENDS else "control")

    def _client(self, purpose: str) -> Any:
        with self._lock:  # a session is no place for two threads at once
            if purpose not in self._clients:
                self._clients[purpose] = self._aws.client("sqs", config=self._config(purpose))
            return self._clients[purpose]

    def _config(self, purpose: str) -> Config:
        receives = purpose == "receive"
        answer_seconds = {"receive": self._poll_seconds + ANSWER_SECONDS, "send": SEND_SECONDS}
        return Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=answer_seconds.get(purpose, ANSWER_SECONDS),
            max_pool_connections=max(4 * self._pollers, CONNECTIONS_MAX) if receives else CONNECTIONS_MAX,
            retries={"mode": "standard", "total_max_attempts": TRIES if purpose == "control" else 1},
            user_agent_extra="penstock",
        )
