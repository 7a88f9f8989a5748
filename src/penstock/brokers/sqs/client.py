"""Speaking to SQS: clients, and calls whose errors are ours.

Three clients. A receive and a send are asked once: a receive that the library tries again would lease messages to
nobody, and a send would double them. Everything else may be done twice, and the library tries it again in its standard
mode; never in the adaptive one, which slows down heartbeats when others are throttled.

What AWS's errors mean to those above.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
    ProxyConnectionError,
    UnknownRegionError,
)

from penstock.errors import ConfigurationError, PenstockError, TemporaryError, UnknownOutcome
from penstock.messaging.broker import is_fifo
from penstock.messaging.forks import OwnSockets
from penstock.storage.aws import NO_CREDENTIALS, Aws

ERRORS = (BotoCoreError, ClientError, OSError)  # what a call of boto3 raises
_PREFIX = "AWS.SimpleQueueService."  # of codes in the older dialect, and in batches

_NO_QUEUE = frozenset({"QueueDoesNotExist", "NonExistentQueue"})
_WHO_WE_ARE = frozenset(
    {
        "AuthFailure",
        "IncompleteSignature",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSecurity",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException"})
_NOT_LET_IN = _WHO_WE_ARE | {
    "AccessDenied",
    "AccessDeniedException",
    "KmsAccessDenied",
    "KmsDisabled",
    "KmsInvalidKeyUsage",
    "KmsInvalidState",
    "KmsNotFound",
    "KmsOptInRequired",
    "NotAuthorized",
    "OptInRequired",
}
_THROTTLED = frozenset(
    {
        "KmsThrottled",
        "OverLimit",
        "RequestLimitExceeded",
        "RequestThrottled",
        "ServiceUnavailable",
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)
_INVALID = frozenset(
    {
        "BatchRequestTooLong",
        "InvalidAddress",
        "InvalidAttributeName",
        "InvalidAttributeValue",
        "InvalidMessageContents",
        "InvalidParameterCombination",
        "InvalidParameterValue",
        "MissingParameter",
        "UnsupportedOperation",
    }
)
_GONE_HANDLES = frozenset({"InvalidIdFormat", "MessageNotInflight", "ReceiptHandleIsInvalid"})
_NO_ACCOUNT = (NoCredentialsError, PartialCredentialsError)
_NO_SETTING = (NoRegionError, ParamValidationError, ProfileNotFound, UnknownRegionError, ValueError)
_NEVER_SENT = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError, *_NO_ACCOUNT)


class QueueMissing(ConfigurationError):
    """There is no queue of that name; whoever can do without it catches this."""


def code_of(error: BaseException) -> str:
    """AWS's word for it; empty where AWS did not answer."""
    return plain_code(str(error.response.get("Error", {}).get("Code", ""))) if isinstance(error, ClientError) else ""


def plain_code(code: str) -> str:
    """A code without the prefix of older dialects."""
    return code.removeprefix(_PREFIX).rpartition("#")[2]


def is_missing(error: BaseException) -> bool:
    """Whether there is no such queue."""
    return code_of(error) in _NO_QUEUE


def is_identity(error: BaseException) -> bool:
    """Whether AWS does not know us, or the time of day that we signed with; whatever we asked for."""
    return code_of(error) in _WHO_WE_ARE or isinstance(error, _NO_ACCOUNT)


def is_invalid(error: PenstockError) -> bool:
    """Whether AWS called what we asked invalid."""
    return error.__cause__ is not None and code_of(error.__cause__) in _INVALID


def is_throttled(error: BaseException) -> bool:
    """Whether AWS refused it unread, for there was too much."""
    return is_throttling(code_of(error))


def is_throttling(code: str) -> bool:
    """The same of a code. For entries of a batch it may be KMS's own, and called the sender's fault."""
    return plain_code(code) in _THROTTLED or "Throttl" in code


def is_gone_handle(code: str, message: str) -> bool:
    """Whether an entry failed since its receipt handle leads to nothing any more."""
    return plain_code(code) in _GONE_HANDLES or ("ReceiptHandle" in message and not is_ceiling(code, message))


def is_ceiling(code: str, message: str) -> bool:  # noqa: ARG001 - AWS uses one code for everything invalid
    """Whether an extension failed since a message cannot be held any longer."""
    return "beyond the limit" in message


def may_have_been_done(error: BaseException) -> bool:
    """Whether AWS may have done what was asked, though it did not say so."""
    if isinstance(error, ClientError):
        return _status(error) >= 500 and not is_throttled(error)
    return isinstance(error, HTTPClientError | BotoCoreError | OSError) and not isinstance(error, _NEVER_SENT)


def meant(error: Any, *, action: str, queue: str, place: str, known: bool, final: bool) -> PenstockError:
    """Our error for one of boto3's.

    ``action`` is the right that is needed, ``place`` whom we asked. ``known``: AWS let us do this before, so that what
    is refused now is about to change again. ``final``: what is called invalid now will always be.
    """
    at = f" for the queue {queue!r}" if queue else ""
    if is_missing(error) and known:
        return TemporaryError(f"the queue {queue!r} at {place} is gone, which was there before; create it again")
    if is_missing(error):
        return QueueMissing(
            f"There is no queue {queue!r} at {place}; create it, or look at its name, the region and the account."
        )
    code = code_of(error)
    if code in _NOT_LET_IN or isinstance(error, _NO_ACCOUNT):
        if known:
            return TemporaryError(f"{place} refuses {action}{at}: {said(error)}")
        if isinstance(error, NoCredentialsError):
            return ConfigurationError(NO_CREDENTIALS)
        return ConfigurationError(
            f"{place} refuses {action}{at}: {said(error)}; look at the credentials, and whether they permit {action}."
        )
    if final and code in _INVALID:
        return ConfigurationError(f"{place} refuses {action}{at}: {said(error)}; SQS never takes that.")
    if isinstance(error, _NO_SETTING):
        return ConfigurationError(f"{action}{at} cannot be asked of {place}: {error}; look at the settings of AWS.")
    return TemporaryError(f"{action}{at} at {place}: {said(error)}")


def said(error: BaseException) -> str:
    """An error in a few words, without a full stop. botocore's own text may hold a whole page of a proxy's."""
    if code_of(error) in _EXPIRED:
        return "the credentials have expired; get new ones"
    if isinstance(error, ClientError):
        status, code = _status(error), code_of(error)
        if status >= 500 or "<" in str(error):
            return f"it answers {' '.join(part for part in (str(status), '' if code == str(status) else code) if part)}"
    return str(error)


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


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


class SqsApi:
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
        except (*ERRORS, ValueError) as error:
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
        if operation in SENDS and may_have_been_done(error):
            return UnknownOutcome(
                f"{action} for the queue {queue!r} at {self.place}: {said(error)}; whether it took the messages "
                "is not known"
            )
        return meant(
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
        if is_missing(error) and any(name == queue for asked, name in done if asked not in SHAPES):
            return True
        return (operation, queue) in done or (is_identity(error) and bool(done))

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
