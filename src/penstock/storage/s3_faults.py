"""What S3's refusals mean: an error of obstore or boto3 -> one of a few kinds, and a short sentence.

Neither library's text is for people: it holds XML, addresses and retry counts. What is taken of it is the HTTP status,
S3's own code and, of a connection that failed, its kind.

Codes: "Error responses" in the Amazon S3 API reference.
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import NoReturn, TypeGuard

from penstock.errors import ConfigurationError, TableDenied, TableError, TableNowhere, TemporaryError

_STATUS = re.compile(r"status code\b.{0,40}?\b(\d{3})\b", re.DOTALL)  # delta-rs has it on the next line, in colour
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")
_TEXT_CHARS_MAX = 160


class Kind(Enum):
    """What a caller can do about a refusal."""

    MISSING = "missing"  # no such object or version; a delete marker
    NO_BUCKET = "no bucket"
    CHANGED = "changed"  # it is there and does not meet the condition
    RANGE = "range"  # it has no bytes where some were asked for
    DENIED = "denied"
    INVALID = "invalid"  # what was asked for can be nowhere
    ARCHIVED = "archived"
    LOCKED = "locked"  # its key in KMS cannot be used
    SETTINGS = "settings"  # this process's own: region, clock
    PASSING = "passing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A refusal, understood. ``text`` ends without a full stop."""

    kind: Kind
    text: str


_ELSEWHERE = "the bucket is in another region: set aws_region"
_BY_CODE = {
    "AccessDenied": (
        Kind.DENIED,
        "access is denied: look at permissions (403, also of a missing object where s3:ListBucket is not granted)",
    ),
    "NoSuchBucket": (Kind.NO_BUCKET, "there is no such bucket: make it, or mend its name"),
    "NoSuchKey": (Kind.MISSING, "there is no such object"),
    "NoSuchUpload": (Kind.PASSING, "somebody has ended the upload: a rule of the bucket's, or an earlier try of ours"),
    "NoSuchVersion": (Kind.MISSING, "there is no such version"),
    "MethodNotAllowed": (Kind.MISSING, "it is deleted: that version is a delete marker"),
    "PreconditionFailed": (Kind.CHANGED, "it is there in another version"),
    "ConditionalRequestConflict": (Kind.PASSING, "somebody else writes it at this moment"),
    "InvalidRange": (Kind.RANGE, "it has no bytes there"),
    "InvalidArgument": (Kind.INVALID, "S3 finds no sense in the request (InvalidArgument)"),
    "InvalidBucketName": (Kind.INVALID, "no bucket can have that name"),
    "KeyTooLongError": (Kind.INVALID, "no object can have so long a name"),
    "InvalidObjectState": (Kind.ARCHIVED, "it is archived (Glacier): restore it first"),
    "PermanentRedirect": (Kind.SETTINGS, _ELSEWHERE),
    "AuthorizationHeaderMalformed": (Kind.SETTINGS, _ELSEWHERE),
    "RequestTimeTooSkewed": (Kind.PASSING, "this machine's clock is wrong: set it"),
    "ExpiredToken": (Kind.PASSING, "the credentials have expired: get new ones"),
    "RequestTimeout": (Kind.PASSING, "the server waited too long for bytes"),
    "SlowDown": (Kind.PASSING, "too many requests: S3 asks to slow down (503 SlowDown)"),
    "InvalidAccessKeyId": (
        Kind.DENIED,
        "AWS does not know the access key (InvalidAccessKeyId): look at the credentials",
    ),
    "SignatureDoesNotMatch": (
        Kind.DENIED,
        "the secret key does not fit the access key (SignatureDoesNotMatch): look at the credentials",
    ),
}
_WHO_WE_ARE = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"})
_BY_STATUS = {
    301: _BY_CODE["PermanentRedirect"],
    307: (Kind.PASSING, "the bucket is being moved"),
    401: (Kind.DENIED, "the credentials are refused (401): look at them"),
    403: _BY_CODE["AccessDenied"],
    404: _BY_CODE["NoSuchKey"],
    405: _BY_CODE["MethodNotAllowed"],
    409: _BY_CODE["ConditionalRequestConflict"],
    412: _BY_CODE["PreconditionFailed"],
    416: _BY_CODE["InvalidRange"],
}
_NO_REDIRECT = "incorrectly configured region"  # obstore, of a redirect that names no place
_CONNECTION = (
    ("kind: Connect", "no connection to the server"),
    ("client error (Connect)", "no connection to the server"),  # delta-rs's words
    ("kind: Timeout", "the server does not answer in time"),
    ("EndpointConnectionError", "no connection to the server"),
    ("TimeoutError", "the server does not answer in time"),
)


def fault_of(error: Exception) -> Fault:
    """What an error of obstore or boto3 means. What nobody knows may pass."""
    status, code, message = _said(error)
    if code.startswith("KMS.") or (code == "AccessDenied" and "kms:" in message):
        return Fault(kind=Kind.LOCKED, text=f"its encryption key cannot be used ({code}): look at KMS and its policy")
    if code in _BY_CODE:
        kind, text = _BY_CODE[code]
        return Fault(kind=kind, text=text)
    if status in _BY_STATUS:
        kind, text = _BY_STATUS[status]
        return Fault(kind=kind, text=text)
    if isinstance(error, FileNotFoundError):
        return Fault(kind=Kind.MISSING, text="there is no such object")
    if _NO_REDIRECT in message:
        return Fault(kind=Kind.SETTINGS, text=_ELSEWHERE)
    if status or code:
        return Fault(kind=Kind.PASSING, text=f"S3 answers {' '.join(str(part) for part in (status, code) if part)}")
    told = f"{type(error).__name__} {message}"
    for sign, text in _CONNECTION:
        if sign in told:
            return Fault(kind=Kind.PASSING, text=text)
    return Fault(kind=Kind.PASSING, text=f"S3 cannot be asked: {_first_line(message)}")


def code_of(error: Exception) -> str:
    """S3's own word for it; "" where it gave none."""
    return _said(error)[1]


def is_identity(error: Exception) -> bool:
    """Whether S3 refuses who we are, whatever is asked for."""
    return code_of(error) in _WHO_WE_ARE


def is_of_s3(error: BaseException) -> TypeGuard[Exception]:
    """Whether one of the libraries that speak S3 raised it; obstore also says `FileNotFoundError`."""
    from botocore.exceptions import BotoCoreError, ClientError
    from obstore.exceptions import BaseError

    return isinstance(error, (BaseError, BotoCoreError, ClientError, FileNotFoundError))


def refuse(address: str, error: Exception) -> NoReturn:
    """Raise it as the files of a table and of runs do: ``address`` is what was asked for."""
    fault = fault_of(error)
    text = f"{address} cannot be used: {fault.text}."
    if fault.kind in (Kind.PASSING, Kind.CHANGED, Kind.RANGE):
        raise TemporaryError(text) from None
    if fault.kind is Kind.SETTINGS:
        raise ConfigurationError(text) from None
    if fault.kind is Kind.NO_BUCKET:
        raise TableNowhere(text) from None
    if fault.kind in (Kind.DENIED, Kind.LOCKED):
        raise TableDenied(text) from None
    raise TableError(text) from None


def _said(error: Exception) -> tuple[int, str, str]:
    """Status (or 0), code (or "") and text."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's ClientError
        code, status = str(response.get("Error", {}).get("Code", "")), _status_of(response)
        if code.isdigit():  # a HEAD has no body: botocore takes the status for the code
            status, code = status or int(code), ""
        return status, code, str(response.get("Error", {}).get("Message", ""))
    text = str(error)
    status_said, code_said = _STATUS.search(text), _CODE.search(text)
    return int(status_said[1]) if status_said else 0, code_said[1] if code_said else "", text


def _status_of(response: dict[str, dict[str, object]]) -> int:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status if isinstance(status, int) else 0


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _TEXT_CHARS_MAX else line[:_TEXT_CHARS_MAX] + "..."
