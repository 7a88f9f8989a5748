"""Clients for S3, and the meaning of its errors.

obstore transfers bytes; boto3 lists objects and handles the keys that obstore cannot name; delta-rs gets its
settings from here. Each client exists once per process and bucket, with the same endpoint, region and credentials.
All of them retry a few times within seconds; callers handle longer outages.

`fault_of` converts an error of obstore or boto3 to one of a few kinds and a short sentence. The libraries' own texts
are unfit for users: they contain XML, addresses and retry counts. It uses only the HTTP status, S3's error code and,
for failed connections, their kind. Source of the codes: "Error responses" in the Amazon S3 API reference.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any, NoReturn, TypeGuard

from penstock.errors import ConfigurationError, TableDenied, TableError, TableNowhere, TemporaryError, UsageError
from penstock.storage.aws import Aws, MadeOnce, require_aws

if TYPE_CHECKING:
    from obstore.store import S3Store


_STATUS = re.compile(r"status code\b.{0,40}?\b(\d{3})\b", re.DOTALL)  # delta-rs prints it on the next line, in colour
_CODE = re.compile(r"<Code>([A-Za-z0-9.]{1,60})</Code>")
_TEXT_CHARS_MAX = 160


class RefusalKind(Enum):
    """The kinds of S3 errors, by the reaction that they allow."""

    MISSING = "missing"  # no such object or version, or a delete marker
    NO_BUCKET = "no bucket"
    CHANGED = "changed"  # it exists but does not meet the condition
    RANGE = "range"  # it has no bytes in the requested range
    DENIED = "denied"
    INVALID = "invalid"  # no object can match the request
    ARCHIVED = "archived"
    LOCKED = "locked"  # its KMS key cannot be used
    SETTINGS = "settings"  # a wrong setting of this process: region, clock
    PASSING = "passing"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Fault:
    """An S3 error as kind and text. ``text`` has no full stop."""

    kind: RefusalKind
    text: str


_ELSEWHERE = "the bucket is in another region: set aws.region"
_BY_CODE = {
    "AccessDenied": (
        RefusalKind.DENIED,
        "access is denied: check the permissions (403; without s3:ListBucket also for a missing object)",
    ),
    "NoSuchBucket": (RefusalKind.NO_BUCKET, "the bucket does not exist: create it, or correct its name"),
    "NoSuchKey": (RefusalKind.MISSING, "the object does not exist"),
    "NoSuchUpload": (
        RefusalKind.PASSING,
        "the upload was ended by a lifecycle rule of the bucket or by an earlier attempt",
    ),
    "NoSuchVersion": (RefusalKind.MISSING, "the version does not exist"),
    "MethodNotAllowed": (RefusalKind.MISSING, "it is deleted: the version is a delete marker"),
    "PreconditionFailed": (RefusalKind.CHANGED, "it exists in another version"),
    "ConditionalRequestConflict": (RefusalKind.PASSING, "another client is writing it now"),
    "InvalidRange": (RefusalKind.RANGE, "it has no bytes in the requested range"),
    "InvalidArgument": (RefusalKind.INVALID, "S3 rejects the request as invalid (InvalidArgument)"),
    "InvalidBucketName": (RefusalKind.INVALID, "the name is not valid for a bucket"),
    "KeyTooLongError": (RefusalKind.INVALID, "the key is too long"),
    "InvalidObjectState": (RefusalKind.ARCHIVED, "it is archived (Glacier): restore it first"),
    "PermanentRedirect": (RefusalKind.SETTINGS, _ELSEWHERE),
    "AuthorizationHeaderMalformed": (RefusalKind.SETTINGS, _ELSEWHERE),
    "RequestTimeTooSkewed": (RefusalKind.PASSING, "this machine's clock is wrong: set it"),
    "ExpiredToken": (RefusalKind.PASSING, "the credentials have expired: get new ones"),
    "RequestTimeout": (RefusalKind.PASSING, "the server waited too long for bytes"),
    "SlowDown": (RefusalKind.PASSING, "too many requests: S3 asks to slow down (503 SlowDown)"),
    "InvalidAccessKeyId": (
        RefusalKind.DENIED,
        "AWS does not know the access key (InvalidAccessKeyId): check the credentials",
    ),
    "SignatureDoesNotMatch": (
        RefusalKind.DENIED,
        "the secret key does not match the access key (SignatureDoesNotMatch): check the credentials",
    ),
}
_IDENTITY_CODES = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken"})
_BY_STATUS = {
    301: _BY_CODE["PermanentRedirect"],
    307: (RefusalKind.PASSING, "the bucket is being moved"),
    401: (RefusalKind.DENIED, "the credentials are refused (401): check them"),
    403: _BY_CODE["AccessDenied"],
    404: _BY_CODE["NoSuchKey"],
    405: _BY_CODE["MethodNotAllowed"],
    409: _BY_CODE["ConditionalRequestConflict"],
    412: _BY_CODE["PreconditionFailed"],
    416: _BY_CODE["InvalidRange"],
}
_NO_REDIRECT = "incorrectly configured region"  # obstore's text for a redirect without a location
_CONNECTION = (
    ("kind: Connect", "no connection to the server"),
    ("client error (Connect)", "no connection to the server"),  # delta-rs's text
    ("kind: Timeout", "the server did not respond in time"),
    ("EndpointConnectionError", "no connection to the server"),
    ("TimeoutError", "the server did not respond in time"),
)


def fault_of(error: Exception) -> S3Fault:
    """Return the meaning of an error of obstore or boto3. Unknown errors count as passing."""
    status, code, message = _parsed(error)
    if code.startswith("KMS.") or (code == "AccessDenied" and "kms:" in message):
        return S3Fault(
            kind=RefusalKind.LOCKED, text=f"its encryption key cannot be used ({code}): check KMS and its policy"
        )
    if code in _BY_CODE:
        kind, text = _BY_CODE[code]
        return S3Fault(kind=kind, text=text)
    if status in _BY_STATUS:
        kind, text = _BY_STATUS[status]
        return S3Fault(kind=kind, text=text)
    if isinstance(error, FileNotFoundError):
        return S3Fault(kind=RefusalKind.MISSING, text="the object does not exist")
    if _NO_REDIRECT in message:
        return S3Fault(kind=RefusalKind.SETTINGS, text=_ELSEWHERE)
    if status or code:
        return S3Fault(
            kind=RefusalKind.PASSING, text=f"S3 responded with {' '.join(str(part) for part in (status, code) if part)}"
        )
    described = f"{type(error).__name__} {message}"
    for fragment, text in _CONNECTION:
        if fragment in described:
            return S3Fault(kind=RefusalKind.PASSING, text=text)
    return S3Fault(kind=RefusalKind.PASSING, text=f"S3 cannot be reached: {_first_line(message)}")


def code_of(error: Exception) -> str:
    """Return S3's error code; "" if there is none."""
    return _parsed(error)[1]


def is_identity(error: Exception) -> bool:
    """Return True if S3 rejects the credentials themselves, for any request."""
    return code_of(error) in _IDENTITY_CODES


def is_of_s3(error: BaseException) -> TypeGuard[Exception]:
    """Return True if a library for S3 raised this; obstore also raises `FileNotFoundError`."""
    from botocore.exceptions import BotoCoreError, ClientError
    from obstore.exceptions import BaseError

    return isinstance(error, (BaseError, BotoCoreError, ClientError, FileNotFoundError))


def refuse(address: str, error: Exception) -> NoReturn:
    """Raise the Penstock exception for an S3 error at ``address``."""
    fault = fault_of(error)
    text = f"{address} cannot be used: {fault.text}."
    if fault.kind in (RefusalKind.PASSING, RefusalKind.CHANGED, RefusalKind.RANGE):
        raise TemporaryError(text) from None
    if fault.kind is RefusalKind.SETTINGS:
        raise ConfigurationError(text) from None
    if fault.kind is RefusalKind.NO_BUCKET:
        raise TableNowhere(text) from None
    if fault.kind in (RefusalKind.DENIED, RefusalKind.LOCKED):
        raise TableDenied(text) from None
    raise TableError(text) from None


def _parsed(error: Exception) -> tuple[int, str, str]:
    """Return status (or 0), code (or "") and text."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):  # botocore's ClientError
        code, status = str(response.get("Error", {}).get("Code", "")), _status_of(response)
        if code.isdigit():  # a HEAD response has no body, so botocore uses the status as the code
            status, code = status or int(code), ""
        return status, code, str(response.get("Error", {}).get("Message", ""))
    text = str(error)
    found_status, found_code = _STATUS.search(text), _CODE.search(text)
    return int(found_status[1]) if found_status else 0, found_code[1] if found_code else "", text


def _status_of(response: dict[str, dict[str, object]]) -> int:
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return status if isinstance(status, int) else 0


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return line if len(line) <= _TEXT_CHARS_MAX else line[:_TEXT_CHARS_MAX] + "..."


CONNECT_SECONDS = 5
READ_SECONDS = 30  # without receiving a byte, and until the first byte of a response
REQUEST_SECONDS = 600  # of one request including its body; a slow reader continues with another request
TRIES_MAX = 4
PING_READ_SECONDS = 10  # short, because a hanging request delays the detection of a recovered server
PING_TRIES_MAX = 2  # the caller repeats the ping
RETRY_SECONDS = 60

# boto3 renews credentials at least ten minutes before they expire, so the ones it returns are valid for that long.
_CREDENTIALS_TTL = timedelta(minutes=9)
_CONNECTIONS = 128  # as many as objects are opened at once
_SERVER_ERROR, _TOO_MANY_REQUESTS = 500, 429  # HTTP status codes of temporary errors
_AWS_ENDPOINT = ".amazonaws.com"
_REGIONS_UNSET = ("", "aws-global")
_REGION = "us-east-1"
_USER_AGENT = "penstock"
_TOKEN = "AWS_SESSION_TOKEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketLocation:
    """The endpoint and region used for a bucket."""

    endpoint_url: str
    region: str

    @property
    def is_plain(self) -> bool:
        """Return True if the endpoint has no TLS, which only a configured server can have."""
        return self.endpoint_url.startswith("http://")


@MadeOnce
def bucket_client(bucket: str, aws: Aws) -> "S3Store":
    """Return obstore's client of one bucket, shared by all threads of this process.

    Raises `ConfigurationError` if boto3, obstore, a region or credentials are missing.
    """
    require_aws()
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import S3Store

    aws.credentials()  # fails here with our own message, not at the first request
    location = location_of(bucket, aws)
    return S3Store(
        bucket,
        config={
            "aws_endpoint_url_s3": location.endpoint_url,  # both, so that neither is read from the environment
            "endpoint": location.endpoint_url,
            "region": location.region,
            "virtual_hosted_style_request": False,
            "request_payer": aws.requester_pays,
        },
        client_options={
            "allow_http": location.is_plain,
            "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
            "read_timeout": timedelta(seconds=READ_SECONDS),
            "timeout": timedelta(seconds=REQUEST_SECONDS),
            "user_agent": _USER_AGENT,
        },
        retry_config={
            "max_retries": TRIES_MAX - 1,
            "retry_timeout": timedelta(seconds=RETRY_SECONDS),
            "backoff": {
                "init_backoff": timedelta(milliseconds=100),
                "max_backoff": timedelta(seconds=5),
                "base": 2,
            },
        },
        credential_provider=Boto3CredentialProvider(aws.session(), ttl=_CREDENTIALS_TTL),
    )


def service_client(aws: Aws) -> Any:
    """Return boto3's client for S3, shared by all threads of this process. Raises `ConfigurationError`."""
    return _service_client(aws, READ_SECONDS, TRIES_MAX)


@MadeOnce
def _service_client(aws: Aws, read_seconds: float, tries_max: int) -> Any:
    require_aws()
    from botocore.config import Config

    aws.credentials()  # fails here with our own message, not at the first request
    return aws.client(
        "s3",
        config=Config(
            connect_timeout=CONNECT_SECONDS,
            read_timeout=read_seconds,
            max_pool_connections=_CONNECTIONS,
            retries={"mode": "standard", "total_max_attempts": tries_max},
            user_agent_extra=_USER_AGENT,
        ),
    )


@MadeOnce
def location_of(bucket: str, aws: Aws) -> BucketLocation:
    """Return the endpoint and region that boto3 finds in the settings, the environment and AWS's configuration files.

    For AWS itself, this asks S3 for the bucket's region, which may differ from that of the queues. Raises
    `ConfigurationError`.
    """
    if aws.endpoint_url is not None:  # nothing to look up, so save the time of creating a boto3 client
        return BucketLocation(endpoint_url=aws.endpoint_url, region=aws.session().region_name or _REGION)
    client = service_client(aws)
    endpoint, region = client.meta.endpoint_url, client.meta.region_name or ""
    if _AWS_ENDPOINT in endpoint and (there := region_of(bucket, client)) not in (None, region):
        moved = aws.session().client("s3", region_name=there)
        endpoint, region = moved.meta.endpoint_url, moved.meta.region_name
    return BucketLocation(endpoint_url=endpoint, region=_REGION if region in _REGIONS_UNSET else region)


def region_of(bucket: str, client: Any) -> str | None:
    """Return the bucket's region, which S3 reports even if access is denied; None if it does not.

    Raises `TemporaryError` if there is no response.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        response = client.head_bucket(Bucket=bucket)
    except ClientError as error:
        response = error.response
    except BotoCoreError as error:
        raise TemporaryError(f"s3://{bucket} cannot be used: {fault_of(error).text}.") from None
    text: str | None = response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return text


def ping_bucket(bucket: str, aws: Aws) -> None:
    """Raise `TemporaryError` if no server responds for the bucket, or a server responds that it cannot serve now.

    Any other response counts as available, for example a denied access or a missing bucket.
    """
    from botocore import exceptions

    try:
        _service_client(aws, PING_READ_SECONDS, PING_TRIES_MAX).head_bucket(Bucket=bucket)
    except exceptions.ClientError as error:
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if status >= _SERVER_ERROR or status == _TOO_MANY_REQUESTS:
            raise TemporaryError(f"s3://{bucket} cannot be used: {fault_of(error).text}.") from None
    except (exceptions.HTTPClientError, exceptions.ConnectionError) as error:
        raise TemporaryError(f"s3://{bucket} cannot be used: {fault_of(error).text}.") from None


def requester(aws: Aws) -> Mapping[str, str]:
    """Return the argument for boto3's calls that selects the payer of the request."""
    return {"RequestPayer": "requester"} if aws.requester_pays else {}


def delta_options(aws: Aws, bucket: str) -> dict[str, str]:
    """Return delta-rs's ``storage_options``.

    They contain secrets that expire: fetch them anew each time and do not store them.
    """
    location = location_of(bucket, aws)
    frozen = aws.credentials().get_frozen_credentials()
    options = {
        "aws_endpoint_url_s3": location.endpoint_url,
        "aws_endpoint_url": location.endpoint_url,
        "aws_region": location.region,
        "aws_virtual_hosted_style_request": "false",
        "aws_allow_http": "true" if location.is_plain else "false",
        "aws_access_key_id": frozen.access_key,
        "aws_secret_access_key": frozen.secret_key,
        "aws_conditional_put": "etag",  # S3 itself rejects a second writer of the same version
        "max_retries": str(TRIES_MAX - 1),
        "retry_timeout": f"{RETRY_SECONDS}s",
    }
    if frozen.token:
        options["aws_session_token"] = frozen.token
    elif os.environ.get(_TOKEN):  # delta-rs reads missing options from the environment
        raise ConfigurationError(
            f"The access key in use has no session token, and delta-rs takes another key's from {_TOKEN}: unset it."
        )
    if aws.requester_pays:
        options["aws_request_payer"] = "true"
    return options


def is_nameable(key: str) -> bool:
    """Return True if obstore sends this key to S3 unchanged. It rejects other keys or, worse, normalises them."""
    parts = key.split("/")
    return not any(part in ("", ".", "..") for part in parts) and not any(c < " " or c == "\x7f" for c in key)


def check_nameable(address: str, prefix: str) -> None:
    """Raise `UsageError` if files cannot be stored below the prefix."""
    if prefix and not is_nameable(prefix):
        raise UsageError(f"{address} cannot hold Penstock's files: its parts must not be empty, '.' or '..'.")
