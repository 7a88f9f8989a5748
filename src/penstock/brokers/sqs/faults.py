"""What AWS's errors mean to those above."""

from typing import Any

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

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.storage.aws import NO_CREDENTIALS

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
