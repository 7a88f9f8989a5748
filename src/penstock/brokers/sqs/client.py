"""The SQS API: predicates and translation of AWS's errors, then the clients.

There are three clients. Receives and sends are never retried by boto3: a repeated receive would lease messages that no
worker gets, and a repeated send would duplicate messages. All other operations can safely be repeated, and boto3
retries them in its standard mode. The adaptive mode would slow down heartbeats when other calls are throttled.
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

from penstock.errors import ConfigurationError, PenstockError, QueueMissing, TemporaryError, UnknownOutcome
from penstock.messaging.broker import is_fifo
from penstock.messaging.forks import OwnSockets
from penstock.storage.aws import NO_CREDENTIALS, Aws

ERRORS = (BotoCoreError, ClientError, OSError)  # raised by calls of boto3
_PREFIX = "AWS.SimpleQueueService."  # of error codes in the older protocol, and in batches
_NO_QUEUE = frozenset({"QueueDoesNotExist", "NonExistentQueue"})
_IDENTITY_CODES = frozenset(
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
_NOT_LET_IN = _IDENTITY_CODES | {
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
_TAKEN = frozenset({"QueueAlreadyExists", "QueueNameExists"})
_EXPIRED_HANDLES = frozenset({"InvalidIdFormat", "MessageNotInflight", "ReceiptHandleIsInvalid"})
_NO_ACCOUNT = (NoCredentialsError, PartialCredentialsError)
_NO_SETTING = (NoRegionError, ParamValidationError, ProfileNotFound, UnknownRegionError, ValueError)
_NEVER_SENT = (ConnectTimeoutError, EndpointConnectionError, ProxyConnectionError, *_NO_ACCOUNT)
CONNECT_SECONDS = 5.0
RESPONSE_SECONDS = 5.0  # after which an unresponsive server counts as unavailable
SEND_SECONDS = 15.0  # the same for sends, which carry up to a mebibyte
CONTROL_TRIES_MAX = 3  # of a control call, by botocore; callers retry receives, and `BatchCalls` retries entries
CONNECTIONS_MAX = 32  # connections kept; the receiving client keeps more if it has many pollers
RECEIVES = ("receive_message",)
SENDS = ("send_message_batch",)
SHAPES = ("create_queue", "get_queue_url", "set_queue_attributes")  # if such a request is invalid, a retry is, too


def code_of(error: BaseException) -> str:
    """Return AWS's error code; empty if AWS did not respond."""
    return plain_code(str(error.response.get("Error", {}).get("Code", ""))) if isinstance(error, ClientError) else ""


def plain_code(code: str) -> str:
    """Return a code without the prefixes of older protocols."""
    return code.removeprefix(_PREFIX).rpartition("#")[2]


def is_missing(error: BaseException) -> bool:
    """Return True if the queue does not exist."""
    return code_of(error) in _NO_QUEUE


def is_identity(error: BaseException) -> bool:
    """Return True if AWS rejects our identity or the time in our signature, whatever the operation."""
    return code_of(error) in _IDENTITY_CODES or isinstance(error, _NO_ACCOUNT)


def is_invalid(error: PenstockError) -> bool:
    """Return True if AWS rejected the request as invalid."""
    return error.__cause__ is not None and code_of(error.__cause__) in _INVALID


def is_taken(error: PenstockError) -> bool:
    """Return True if a queue of this name exists, with other attributes."""
    return error.__cause__ is not None and code_of(error.__cause__) in _TAKEN


def is_throttled(error: BaseException) -> bool:
    """Return True if AWS rejected the request unprocessed because of throttling."""
    return is_throttling(code_of(error))


def is_throttling(code: str) -> bool:
    """Return True for a throttling code. In a batch entry it may be from KMS and marked as the sender's fault."""
    return plain_code(code) in _THROTTLED or "Throttl" in code


def is_expired_handle(code: str, message: str) -> bool:
    """Return True if an entry failed because its receipt handle is no longer valid."""
    return plain_code(code) in _EXPIRED_HANDLES or ("ReceiptHandle" in message and not is_ceiling(code, message))


def is_ceiling(code: str, message: str) -> bool:  # noqa: ARG001 - AWS uses one code for everything invalid
    """Return True if an extension failed because the message has reached the limit of its visibility timeout."""
    return "beyond the limit" in message


def may_have_been_done(error: BaseException) -> bool:
    """Return True if AWS may have executed the request without confirming it."""
    if isinstance(error, ClientError):
        return _status(error) >= 500 and not is_throttled(error)
    return isinstance(error, HTTPClientError | BotoCoreError | OSError) and not isinstance(error, _NEVER_SENT)


def translate_error(error: Any, *, action: str, queue: str, endpoint: str, known: bool, final: bool) -> PenstockError:
    """Return Penstock's error for an error of boto3.

    Args:
        error: The error of boto3.
        action: The IAM action that the operation needs.
        queue: The queue; empty if none is concerned.
        endpoint: The endpoint, as shown to people.
        known: AWS permitted this before, so that a refusal is likely to be temporary.
        final: A request that is invalid now will always be.
    """
    at = f" for the queue {queue!r}" if queue else ""
    if is_missing(error) and known:
        return TemporaryError(f"the queue {queue!r} at {endpoint} was deleted; create it again")
    if is_missing(error):
        return QueueMissing(
            f"There is no queue {queue!r} at {endpoint}; create it, or check its name, the region and the account."
        )
    code = code_of(error)
    if code in _NOT_LET_IN or isinstance(error, _NO_ACCOUNT):
        if known:
            return TemporaryError(f"{endpoint} refuses {action}{at}: {error_text(error)}")
        if isinstance(error, NoCredentialsError):
            return ConfigurationError(NO_CREDENTIALS)
        return ConfigurationError(
            f"{endpoint} refuses {action}{at}: {error_text(error)}; check the credentials, and whether they "
            f"permit {action}."
        )
    if final and code in _INVALID:
        return ConfigurationError(f"{endpoint} refuses {action}{at}: {error_text(error)}; SQS never accepts that.")
    if isinstance(error, _NO_SETTING):
        return ConfigurationError(f"{action}{at} cannot be requested from {endpoint}: {error}; check the AWS settings.")
    return TemporaryError(f"{action}{at} at {endpoint}: {error_text(error)}")


def error_text(error: BaseException) -> str:
    """Return a short text for the error, without a full stop. botocore's own may contain a proxy's whole error page."""
    if code_of(error) in _EXPIRED:
        return "the credentials have expired; get new ones"
    if isinstance(error, ClientError):
        status, code = _status(error), code_of(error)
        if status >= 500 or "<" in str(error):
            return f"it answers {' '.join(part for part in (str(status), '' if code == str(status) else code) if part)}"
    return str(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueRef:
    """A queue's URL, and the name by which the caller refers to it."""

    name: str
    url: str

    @property
    def is_fifo(self) -> bool:
        return is_fifo(self.url)


class SqsApi:
    """The SQS API of one account. Thread-safe, as boto3's clients are."""

    def __init__(self, aws: Aws, *, pollers: int, poll_seconds: float) -> None:
        self._aws = aws
        self._pollers = pollers
        self._poll_seconds = poll_seconds
        self._own = OwnSockets("this view of the SQS broker")
        self._lock = threading.RLock()
        self._clients: dict[str, Any] = {}  # written under the lock
        self._done: set[tuple[str, str]] = set()  # (operation, queue) pairs that have worked; written by any thread
        self._closed = False  # written by the thread that calls close

    @cached_property
    def region(self) -> str:
        """Return the AWS region."""
        return str(self._client("control").meta.region_name)

    @property
    def endpoint(self) -> str:
        """Return the endpoint as shown to people."""
        return self._aws.endpoint_url or f"SQS in {self.region}"

    def on(self, queue: QueueRef, operation: str, **parameters: Any) -> Mapping[str, Any]:
        """Call an operation on a queue and return AWS's response.

        Raises `TemporaryError` or `ConfigurationError`; for a send also `UnknownOutcome`, if AWS may have executed it.
        """
        return self.call(operation, queue=queue.name, QueueUrl=queue.url, **parameters)

    def call(self, operation: str, *, queue: str = "", **parameters: Any) -> Mapping[str, Any]:
        """Call an operation without a queue URL. ``queue`` only names one for errors. Otherwise as `on`."""
        self.check_open()
        client = self._client_for(operation)
        try:
            response: Mapping[str, Any] = getattr(client, operation)(**parameters)
        except (*ERRORS, ValueError) as error:
            raise self._translate_error(error, operation, queue) from error
        self._done.add((operation, queue))
        return response

    def check_open(self) -> None:
        """Raise `TemporaryError` after `close`, and `UsageError` in a process forked since this was opened."""
        self._own.check()
        if self._closed:
            raise TemporaryError("this view of the SQS broker was closed: open another one")

    def close(self) -> None:
        """Close the clients. Calls under way are not interrupted."""
        self._closed = True
        with self._lock:
            for client in self._clients.values():
                client.close()

    def _translate_error(self, error: Exception, operation: str, queue: str) -> Exception:
        action = "sqs:" + "".join(part.title() for part in operation.removesuffix("_batch").split("_"))
        known = self._was_permitted_before(error, operation, queue)
        if operation in SENDS and may_have_been_done(error):
            return UnknownOutcome(
                f"{action} for the queue {queue!r} at {self.endpoint}: {error_text(error)}; whether it accepted the "
                "messages is unknown"
            )
        return translate_error(
            error,
            action=action,
            queue=queue,
            endpoint=self._endpoint_text(),
            known=known,
            final=operation in SENDS or operation in SHAPES,
        )

    def _was_permitted_before(self, error: Exception, operation: str, queue: str) -> bool:
        """Return True if AWS permitted this before, or a call that proves as much: that the queue exists, or our
        identity.
        """
        done = tuple(self._done)  # a copy, since other threads add to the set
        if is_missing(error) and any(name == queue for operation_done, name in done if operation_done not in SHAPES):
            return True
        return (operation, queue) in done or (is_identity(error) and bool(done))

    def _endpoint_text(self) -> str:
        try:
            return self.endpoint
        except Exception:
            return "SQS"

    def _client_for(self, operation: str) -> Any:
        return self._client("receive" if operation in RECEIVES else "send" if operation in SENDS else "control")

    def _client(self, purpose: str) -> Any:
        with self._lock:  # boto3's sessions are not thread-safe
            if purpose not in self._clients:
                self._clients[purpose] = self._aws.client("sqs", config=self._config(purpose))
            return self._clients[purpose]

    def _config(self, purpose: str) -> Config:
        receives = purpose == "receive"
        response_seconds = {"receive": self._poll_seconds + RESPONSE_SECONDS, "send": SEND_SECONDS}
        return Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=response_seconds.get(purpose, RESPONSE_SECONDS),
            max_pool_connections=max(4 * self._pollers, CONNECTIONS_MAX) if receives else CONNECTIONS_MAX,
            retries={"mode": "standard", "total_max_attempts": CONTROL_TRIES_MAX if purpose == "control" else 1},
            user_agent_extra="penstock",
        )


def _status(error: ClientError) -> int:
    return int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
