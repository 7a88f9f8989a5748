"""The shapes of the notifications that stores send, and the one sentence a body gets that does not fit.

Unknown fields are welcome everywhere: S3 adds some with every minor version. Known ones are taken strictly: no text
where a number belongs, no number where text belongs. The exceptions are named after the stores that need them.
"""

import re
from typing import Annotated, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from penstock.errors import InvalidMessage
from penstock.messaging.strict_json import show

SIZE_BYTES_MAX = 2**63 - 1

_BUCKET = re.compile(r"[A-Za-z0-9._-]{1,255}")
_MAJOR_2 = re.compile(r"2(\.\d{1,9})?", re.ASCII)
_TOKEN = re.compile(r"[!-~]{0,1024}")  # visible ASCII: version ids and ETags
_SEQUENCER = re.compile(r"[0-9A-Fa-f]{1,128}")
_DIGITS = re.compile(r"[0-9]{1,19}")


def _matching(pattern: re.Pattern[str], expected: str) -> AfterValidator:
    def check(value: str) -> str:
        if pattern.fullmatch(value) is None:
            raise PydanticCustomError("pattern", "{expected}", {"expected": expected})
        return value

    return AfterValidator(check)


_Bucket = Annotated[str, _matching(_BUCKET, "a bucket's name")]
_Token = Annotated[str, _matching(_TOKEN, "at most 1,024 visible ASCII characters")]


def _sequencer(value: object) -> object:
    """None for a sequencer that orders nothing. It identifies nothing either, so the object is read all the same."""
    return value if isinstance(value, str) and _SEQUENCER.fullmatch(value) else None


def _number(value: object) -> object:
    """The number that a store wrote as text; Ceph documents sizes like that."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


_Sequencer = Annotated[str | None, BeforeValidator(_sequencer)]
_SizeBytes = Annotated[int, Field(ge=0, le=SIZE_BYTES_MAX)]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class BucketShape(_Shape):
    """``bucket``, alike in both dialects."""

    name: _Bucket


class S3ObjectShape(_Shape):
    """``s3.object`` of a record; the key is percent-encoded as in a form."""

    key: str
    size: Annotated[_SizeBytes | None, BeforeValidator(_number)] = None  # absent if something was removed
    etag: _Token | None = Field(default=None, validation_alias=AliasChoices("eTag", "etag"))  # Ceph once wrote etag
    version_id: _Token | None = Field(default=None, alias="versionId")
    sequencer: _Sequencer = None


class S3EntityShape(_Shape):
    """``s3`` of a record."""

    bucket: BucketShape
    object: S3ObjectShape


class S3RecordShape(_Shape):
    """One of ``Records``. The version comes first, so that it is what a record of another major version is told."""

    event_version: Annotated[str, _matching(_MAJOR_2, '"2.x"')] = Field(alias="eventVersion")
    event_name: str = Field(alias="eventName")
    event_source: str = Field(default="aws:s3", alias="eventSource")
    s3: S3EntityShape


class BridgedObjectShape(_Shape):
    """``detail.object`` of an EventBridge notification; the key is literal."""

    key: str
    size: _SizeBytes | None = None
    etag: _Token | None = None
    version_id: _Token | None = Field(default=None, alias="version-id")
    sequencer: _Sequencer = None


class BridgedDetailShape(_Shape):
    """``detail`` of an EventBridge notification."""

    bucket: BucketShape
    object: BridgedObjectShape


class BridgedShape(_Shape):
    """An EventBridge notification."""

    version: Annotated[str, _matching(re.compile("0"), '"0"')] = "0"
    source: Annotated[str, _matching(re.compile(r"aws\.s3"), '"aws.s3"')]
    event_name: str = Field(alias="detail-type")
    detail: BridgedDetailShape


class EnvelopeShape(_Shape):
    """What SNS puts around a message, unless raw delivery is switched on."""

    message: str = Field(alias="Message")


_S = TypeVar("_S", bound=_Shape)


def fit(shape: type[_S], value: object) -> _S:
    """The value in that shape. Raises `InvalidMessage` saying where it does not fit, and what was expected."""
    try:
        return shape.model_validate(value)
    except ValidationError as error:
        raise InvalidMessage(_sentence(error.errors(include_url=False)[0])) from None


def _sentence(detail: ErrorDetails) -> str:
    where = ".".join(str(part) for part in detail["loc"]) or "it"
    match detail["type"]:
        case "missing":
            return f"{where} is missing"
        case "model_type":
            return f"{where} must be an object, not {show(detail['input'])}"
        case _:
            expected = detail["msg"].removeprefix("Input should be ")
            return f"{where} must be {expected}, not {show(detail['input'])}"
