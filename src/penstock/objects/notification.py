"""Notifications: parse a message's body into the objects that it names, and write such bodies.

`parse` recognises the formats (S3 JSON, EventBridge, either of them wrapped by SNS, S3's test event), decodes keys
exactly once, and rejects unusable records with a reason that names the cause and the place. It is pure: it accesses no
store. Formats: "Event message structure" and "Using EventBridge" in the Amazon S3 user guide, "Parsing message formats"
in the SNS guide. Only S3 JSON percent-encodes keys, as an HTML form does; EventBridge does not encode them.

The shapes are Pydantic models. Unknown fields are allowed everywhere, since S3 adds some with every minor version.
Known fields are strict: no text instead of a number, no number instead of text. The exceptions
are commented with the stores that need them.

`announce` writes a notification in the format of S3's own, so that one parser reads both. It is used for local files
and for objects in S3 that S3 did not send a notification for.

`parse_others` drops the files that Penstock itself writes, and the objects that are none of the source's. A bucket that
sends notifications for all of its objects also sends them for a table in it: plans, logs and Parquet. If these were
processed, each batch would trigger the next one. Listings leave them out too.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from sys import intern
from typing import Annotated, TypeVar
from urllib.parse import quote_plus, unquote_plus

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from penstock.errors import InvalidMessage
from penstock.messaging import schema
from penstock.messaging.schema import show
from penstock.messaging.wording import counted
from penstock.objects.reference import LOCAL_BUCKET, ObjectRef, encode_key, key_bytes_max, uri_of
from penstock.objects.selection import Selection
from penstock.storage.address import S3Address

SIZE_BYTES_MAX = 2**63 - 1
URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")  # the beginning of a URL; no notification may name such a key

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
    """Return None for an invalid sequencer: it is not part of the identity, so the object can be processed."""
    return value if isinstance(value, str) and _SEQUENCER.fullmatch(value) else None


def _number(value: object) -> object:
    """Convert a number that a store wrote as text, as Ceph's documentation does for sizes."""
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else value


_Sequencer = Annotated[str | None, BeforeValidator(_sequencer)]
_SizeBytes = Annotated[int, Field(ge=0, le=SIZE_BYTES_MAX)]


class _Shape(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class BucketShape(_Shape):
    """``bucket``, the same in both formats."""

    name: _Bucket


class S3ObjectShape(_Shape):
    """``s3.object`` of a record; the key is form-percent-encoded."""

    key: str
    size: Annotated[_SizeBytes | None, BeforeValidator(_number)] = None  # absent in removals
    etag: _Token | None = Field(default=None, validation_alias=AliasChoices("eTag", "etag"))  # Ceph once wrote etag
    version_id: _Token | None = Field(default=None, alias="versionId")
    sequencer: _Sequencer = None


class S3EntityShape(_Shape):
    """``s3`` of a record."""

    bucket: BucketShape
    object: S3ObjectShape


class S3RecordShape(_Shape):
    """One of ``Records``. The version is validated first, to reject records of another major version for it."""

    event_version: Annotated[str, _matching(_MAJOR_2, '"2.x"')] = Field(alias="eventVersion")
    event_name: str = Field(alias="eventName")
    event_source: str = Field(default="aws:s3", alias="eventSource")
    s3: S3EntityShape


class BridgedObjectShape(_Shape):
    """``detail.object`` of an EventBridge notification; the key is not encoded."""

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
    """The envelope of SNS around a message, unless raw delivery is enabled."""

    message: str = Field(alias="Message")


_S = TypeVar("_S", bound=_Shape)


def fit(shape: type[_S], value: object) -> _S:
    """Validate the value. Raise `InvalidMessage` with the field that does not fit and the expected value."""
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


LOCAL_SOURCE = "penstock:local"  # the event source of local files, reserved for them
BODY_BYTES_MAX = 2**20  # the maximum size of an SQS message
_PROBLEMS_MAX = 20

_CREATED = "ObjectCreated"
_BRIDGED_CREATED = "Object Created"

# Events that announce no new content. An unknown event is rejected: a dead-lettered message is better than an object
# silently missed. The last six families come from other stores with S3's format.
_S3_OTHER = frozenset(
    {
        "ObjectRemoved",
        "ObjectRestore",
        "ObjectTagging",
        "ObjectAcl",
        "ObjectAnnotation",
        "LifecycleExpiration",
        "LifecycleTransition",
        "IntelligentTiering",
        "Replication",
        "ReducedRedundancyLostObject",
        "ObjectAccessed",
        "ObjectLifecycle",
        "ObjectSynced",
        "ObjectTransition",
        "LifecycleDelMarkerExpiration",
        "Scanner",
    }
)
_S3_OF_BUCKETS = frozenset({"BucketCreated", "BucketRemoved"})  # MinIO; their key is empty
# MinIO reports these changes, which leave the content alone, as creations.
_CREATED_NOTHING = frozenset({"PutTagging", "DeleteTagging", "PutRetention", "PutLegalHold"})
_BRIDGED_OTHER = frozenset(
    {
        "Object Deleted",
        "Object Restore Initiated",
        "Object Restore Completed",
        "Object Restore Expired",
        "Object Tags Added",
        "Object Tags Deleted",
        "Object ACL Updated",
        "Object Storage Class Changed",
        "Object Access Tier Changed",
    }
)

_MINIO_SOURCE = "minio:s3"
_EMPTY_ETAG = "d41d8cd98f00b204e9800998ecf8427e"  # MD5 of no bytes


class NotificationKind(StrEnum):
    """The subject of a notification."""

    RECORDS = "records"
    TEST_EVENT = "test_event"  # S3 tests the path to the queue: acked and counted
    EMPTY = "empty"  # `Records: []`: acked and counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Ignored:
    """A record without new content (removed, tagged, moved to another tier). It is skipped."""

    event: str
    uri: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Notification:
    """The parsed message. Its objects are processed even if ``problems`` cause the message to be dead-lettered."""

    kind: NotificationKind
    objects: tuple[ObjectRef, ...] = ()  # each object version once, in order of appearance
    ignored: tuple[Ignored, ...] = ()
    problems: tuple[str, ...] = ()  # of invalid records; at most 20, and a count of the rest

    @property
    def size_bytes(self) -> int:
        """The total size of all objects."""
        return sum(ref.size_bytes for ref in self.objects)

    @property
    def reason(self) -> str | None:
        """The reason to dead-letter the message after its valid records are processed; None if all are valid."""
        return "; ".join(self.problems) or None


def parse(body: bytes, *, buckets_allowed: frozenset[str] | None) -> Notification:
    """Parse a message's body. ``buckets_allowed=None`` allows every bucket.

    Raises `InvalidMessage`, and no other error, if none of its records is valid.
    """
    if len(body) > BODY_BYTES_MAX:
        raise InvalidMessage(f"the body has {len(body):,} bytes; at most {BODY_BYTES_MAX:,} are read")
    if (announced := _ANNOUNCED.fullmatch(body)) is not None:
        return _read_announced(announced, buckets_allowed)
    document = _object(schema.load(schema.decode(body)))
    if "Type" not in document or "Records" in document:
        return _read(document, buckets_allowed)
    try:
        return _read(_unwrap(document), buckets_allowed)
    except InvalidMessage as error:
        raise InvalidMessage(f"SNS envelope: {error}") from None


def _object(document: object) -> Mapping[str, object]:
    if not isinstance(document, dict):
        raise InvalidMessage(f"a notification is a JSON object, not {show(document)}")
    return document


def _unwrap(document: Mapping[str, object]) -> Mapping[str, object]:
    if document["Type"] != "Notification":
        raise InvalidMessage(f'Type must be "Notification", not {show(document["Type"])}')
    inner = _object(schema.load(fit(EnvelopeShape, document).message))
    if "Type" in inner and "Records" not in inner:
        raise InvalidMessage("Message is wrapped once more; only one envelope is opened")
    return inner


def _read(document: Mapping[str, object], buckets_allowed: frozenset[str] | None) -> Notification:
    if "Records" in document:
        return _read_records(document["Records"], buckets_allowed)
    if "detail-type" in document:
        return _notification([_read_bridged(document, buckets_allowed)], [])
    if document.get("Event") == "s3:TestEvent":
        return Notification(kind=NotificationKind.TEST_EVENT)
    raise InvalidMessage("Records is missing, and it is neither an EventBridge notification nor a test event")


def _read_records(records: object, buckets_allowed: frozenset[str] | None) -> Notification:
    if not isinstance(records, list):
        raise InvalidMessage(f"Records must be a list, not {show(records)}")
    if not records:
        return Notification(kind=NotificationKind.EMPTY)
    read: list[ObjectRef | Ignored] = []
    problems: list[str] = []
    for number, record in enumerate(records, start=1):
        try:
            read.append(_read_record(record, buckets_allowed))
        except InvalidMessage as error:
            problems.append(f"record {number}: {error}")
    return _notification(read, problems)


def _notification(read: Sequence[ObjectRef | Ignored], problems: Sequence[str]) -> Notification:
    shown = list(problems[:_PROBLEMS_MAX])
    if len(problems) > len(shown):
        shown.append(f"and {counted(len(problems) - len(shown), 'more record')} like these")
    if not read:
        raise InvalidMessage("; ".join(shown))
    distinct: dict[bytes, ObjectRef] = {}
    for item in read:
        if isinstance(item, ObjectRef):
            distinct.setdefault(item.object_id, item)
    return Notification(
        kind=NotificationKind.RECORDS,
        objects=tuple(distinct.values()),
        ignored=tuple(item for item in read if isinstance(item, Ignored)),
        problems=tuple(shown),
    )


def _read_record(record: object, buckets_allowed: frozenset[str] | None) -> ObjectRef | Ignored:
    shape = fit(S3RecordShape, record)
    bucket = _check_bucket(shape.s3.bucket.name, buckets_allowed, local=shape.event_source == LOCAL_SOURCE)
    event = shape.event_name.removeprefix("s3:")
    family, _, action = event.partition(":")
    if family in _S3_OF_BUCKETS:
        return Ignored(event=event, uri=uri_of(bucket, ""))
    if URL.match(shape.s3.object.key):
        # Stores encode the colon, so a literal key that looks like a URL does not match.
        raise InvalidMessage(f"the key is a URL: {show(shape.s3.object.key)}; expected the name inside the bucket")
    key = _check_key(unquote_plus(shape.s3.object.key, errors="surrogateescape"), bucket)
    if family == _CREATED and action not in _CREATED_NOTHING:
        return _reference(bucket, key, shape.s3.object, empty_unsaid=shape.event_source == _MINIO_SOURCE)
    if family in _S3_OTHER or family == _CREATED:
        return Ignored(event=event, uri=uri_of(bucket, key))
    raise InvalidMessage(f"eventName {show(shape.event_name)} is not known")


def _read_bridged(document: Mapping[str, object], buckets_allowed: frozenset[str] | None) -> ObjectRef | Ignored:
    shape = fit(BridgedShape, document)
    bucket = _check_bucket(shape.detail.bucket.name, buckets_allowed, local=False)
    key = _check_key(shape.detail.object.key, bucket)
    if shape.event_name == _BRIDGED_CREATED:
        return _reference(bucket, key, shape.detail.object)
    if shape.event_name in _BRIDGED_OTHER:
        return Ignored(event=shape.event_name, uri=uri_of(bucket, key))
    raise InvalidMessage(f"detail-type {show(shape.event_name)} is not known")


def _check_bucket(bucket: str, buckets_allowed: frozenset[str] | None, *, local: bool) -> str:
    if local != (bucket == LOCAL_BUCKET):
        # Otherwise a real bucket of that name would be read from this machine's disk.
        raise InvalidMessage(f'bucket "{LOCAL_BUCKET}" and event source "{LOCAL_SOURCE}" only go together')
    if buckets_allowed is not None and bucket not in buckets_allowed:
        raise InvalidMessage(f"bucket {show(bucket)} is not one this pipeline reads")
    return bucket


def _check_key(key: str, bucket: str) -> str:
    if not key:
        raise InvalidMessage("the key is empty")
    if "\0" in key:
        raise InvalidMessage(f"the key holds a NUL character: {show(key)}")
    length_bytes, bytes_max = len(key) if key.isascii() else len(encode_key(key)), key_bytes_max(bucket)
    if length_bytes > bytes_max:
        raise InvalidMessage(f"the key has {length_bytes:,} bytes; at most {bytes_max:,} are possible")
    return key


def _reference(
    bucket: str, key: str, shape: S3ObjectShape | BridgedObjectShape, *, empty_unsaid: bool = False
) -> ObjectRef:
    """Return the reference. ``empty_unsaid``: the store omits a size of 0, as MinIO does."""
    version_id = shape.version_id if shape.version_id not in ("", "null") else None
    etag = (shape.etag or "").strip('"') or None
    size_bytes = 0 if shape.size is None and (empty_unsaid or etag == _EMPTY_ETAG) else shape.size
    if size_bytes is None:
        raise InvalidMessage("the object's size is missing")
    if version_id is None and etag is None:
        # By size alone, two contents could count as one version, and the second would never be read.
        raise InvalidMessage("the object has neither a version id nor an ETag: its versions cannot be told apart")
    return ObjectRef(
        bucket=bucket,
        key=key,
        size_bytes=size_bytes,
        version_id=version_id,
        etag=etag,
        sequencer=shape.sequencer,
    )


OWN_SOURCE = "penstock:s3"  # an object in S3 for which Penstock sends the notification

# Exactly the bodies that `announce` writes, with values that the shapes accept and that need no JSON escape. They are
# read without the models, in a third of the time (measured); all others, and all invalid values, take the long way.
_ANNOUNCED = re.compile(
    rb'\{"Records":\[\{"eventVersion":"2\.1","eventSource":"(penstock:local|penstock:s3)",'
    rb'"eventName":"ObjectCreated:Put","s3":\{"bucket":\{"name":"([A-Za-z0-9._-]{1,255})"\},'
    rb'"object":\{"key":"([A-Za-z0-9%+/._~-]+)","size":(0|[1-9][0-9]{0,17}),"eTag":"([!#-\[\]-~]{1,1024})"'
    rb'(?:,"sequencer":"([0-9A-Fa-f]{1,128})")?\}\}\}\]\}'
)


_ENCODED = re.compile("[%+]")


def _read_announced(announced: re.Match[bytes], buckets_allowed: frozenset[str] | None) -> Notification:
    """Return the notification in a match of `_ANNOUNCED`. Raises the errors of `parse`."""
    source, name, key, size, etag, sequencer = announced.groups()
    try:
        bucket = _check_bucket(intern(name.decode()), buckets_allowed, local=source == LOCAL_SOURCE.encode())
        text = key.decode()
        ref = ObjectRef(
            bucket=bucket,
            key=_check_key(unquote_plus(text, errors="surrogateescape") if _ENCODED.search(text) else text, bucket),
            size_bytes=int(size),
            etag=etag.decode(),
            sequencer=None if sequencer is None else sequencer.decode(),
        )
    except InvalidMessage as error:
        raise InvalidMessage(f"record 1: {error}") from None
    return Notification(kind=NotificationKind.RECORDS, objects=(ref,))


_PLAIN_KEY = re.compile(r"[A-Za-z0-9/._~-]+")  # needs neither percent encoding nor JSON escapes
_PLAIN_VALUE = re.compile(r"[A-Za-z0-9._+=:-]+")


def announce(ref: ObjectRef) -> bytes:
    """Return the notification for one object. Equal objects yield equal bytes. The key is encoded as S3 does it."""
    etag, bucket, sequencer = ref.etag or "", ref.bucket, ref.sequencer
    if (
        ref.version_id is None
        and _PLAIN_KEY.fullmatch(ref.key)
        and _PLAIN_VALUE.fullmatch(etag)
        and _PLAIN_VALUE.fullmatch(bucket)
        and (sequencer is None or _SEQUENCER.fullmatch(sequencer))
    ):  # nearly always: the text that `json.dumps` would return, in a fifth of the time
        source = LOCAL_SOURCE if bucket == LOCAL_BUCKET else OWN_SOURCE
        order = "" if sequencer is None else f',"sequencer":"{sequencer}"'
        return (
            f'{{"Records":[{{"eventVersion":"2.1","eventSource":"{source}","eventName":"ObjectCreated:Put",'
            f'"s3":{{"bucket":{{"name":"{bucket}"}},"object":{{"key":"{ref.key}","size":{ref.size_bytes},'
            f'"eTag":"{etag}"{order}}}}}}}]}}'
        ).encode()
    return _dumped(ref)


def _dumped(ref: ObjectRef) -> bytes:
    described = {
        "key": quote_plus(ref.key_bytes, safe="/"),
        "size": ref.size_bytes,
        "eTag": ref.etag,
        "versionId": ref.version_id,
        "sequencer": ref.sequencer,
    }
    record = {
        "eventVersion": "2.1",
        "eventSource": LOCAL_SOURCE if ref.bucket == LOCAL_BUCKET else OWN_SOURCE,
        "eventName": "ObjectCreated:Put",
        "s3": {
            "bucket": {"name": ref.bucket},
            "object": {name: value for name, value in described.items() if value is not None},
        },
    }
    return json.dumps({"Records": [record]}, separators=(",", ":")).encode()


def parse_others(
    body: bytes,
    *,
    buckets_allowed: frozenset[str] | None,
    own: Sequence[S3Address],
    selection: Selection | None = None,
) -> Notification:
    """Parse like `parse`, but ignore objects below our ``own`` locations, and those that a source leaves out."""
    found = parse(body, buckets_allowed=buckets_allowed)
    left_out = {ref.object_id for ref in found.objects if _is_left_out(ref, own, selection)}
    if not left_out:
        return found
    return replace(
        found,
        objects=tuple(ref for ref in found.objects if ref.object_id not in left_out),
        ignored=(
            *found.ignored,
            *(Ignored(event="ObjectCreated", uri=ref.uri) for ref in found.objects if ref.object_id in left_out),
        ),
    )


def _is_left_out(ref: ObjectRef, own: Sequence[S3Address], selection: Selection | None) -> bool:
    if any(place.contains(ref.bucket, ref.key) for place in own):
        return True
    return selection is not None and selection.left_out(ref.key, ref.size_bytes) is not None
