"""Reports: what one reading of one partition gave, told through a side door.

Spark may read a partition never, once or several times in one run, and may stop a reading early. So each reading has an
id; it leaves a mark before its first row and its report, atomically, after its last. A reading that was stopped early
leaves the mark alone.
"""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from socket import gethostname
from typing import Any
from uuid import uuid4

from penstock.errors import DeviceFailed, ObjectDenied, ObjectError, ObjectGone, ObjectRefused, ObjectSuperseded
from penstock.pipeline.source.contents import Quotes
from penstock.pipeline.source.plan import Piece
from penstock.sinks.manifest import DataFile
from penstock.storage.files import Files

_BEGUN = ".begun"
_REPORT = ".json"
SAMPLES_MAX = 10  # bad lines of an object that its events show
READS_AT_ONCE = 16  # from S3


class FailureKind(StrEnum):
    """Why an object's rows do not count."""

    GONE = "gone"
    SUPERSEDED = "superseded"
    UNREADABLE = "unreadable"
    REFUSED = "refused"  # the host could not open it, or could not read a range of it
    DENIED = "denied"  # the same, for lack of permission
    DEVICE = "device"  # the same, because the disk or file system fails there
    HOST = "host"  # the same, but the driver can: the host is at fault
    TOO_LARGE = "too_large"  # another attempt would not make it smaller
    QUARANTINE_RATIO = "quarantine_ratio"  # too many of its lines are bad
    DISAGREED = "disagreed"  # two readings of one run saw different things


# May hold for one host only.
REFUSALS = frozenset({FailureKind.REFUSED, FailureKind.DENIED, FailureKind.DEVICE})
SHARED = frozenset({FailureKind.DENIED, FailureKind.DEVICE})  # often of many objects at once: see `denials`


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFailure:
    """Why, for machines and for people."""

    kind: FailureKind
    reason: str
    host: str = ""  # the one that read it
    offset: int = 0  # of the range that could not be read
    length_bytes: int = 0  # of the same; 0: the object could not be opened

    @staticmethod
    def of(error: ObjectError) -> "ObjectFailure":
        """What a store's error means."""
        failure = ObjectFailure(kind=_kind(error), reason=str(error), host=gethostname())
        if isinstance(error, ObjectRefused):
            return replace(failure, offset=error.offset, length_bytes=error.length_bytes)
        return failure


def _kind(error: ObjectError) -> FailureKind:
    match error:
        case ObjectGone():
            return FailureKind.GONE
        case ObjectSuperseded():
            return FailureKind.SUPERSEDED
        case ObjectDenied():
            return FailureKind.DENIED
        case DeviceFailed():
            return FailureKind.DEVICE
        case ObjectRefused():
            return FailureKind.REFUSED
        case _:
            return FailureKind.UNREADABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceReading:
    """What one reading of one piece gave. A failed piece that is not broken midway let nothing out."""

    piece: Piece
    rows: int = 0
    lines_quarantined: int = 0
    reasons: Mapping[str, int] = field(
        default_factory=dict
    )  # the same lines by `penstock.pipeline.source.lines.Reason`
    samples: Sequence[tuple[int, str]] = ()  # of the first of these lines: offset, reason
    failure: ObjectFailure | None = None
    broken_midway: bool = False  # it failed after some of its lines had left
    quotes: Quotes | None = None  # of CSV, read to its end


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One whole reading of one partition."""

    partition: int
    drain: bool  # read only for its report; its rows went nowhere
    pieces: Sequence[PieceReading]
    quarantine: DataFile | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReadings:
    """All that is known of the readings of one partition, reports in a fixed order."""

    reports: Sequence[Report] = ()
    unfinished: int = 0  # readings that began to hand out rows and left no report


@dataclass(slots=True)
class ReadingId:
    """The name of one reading, and its files."""

    files: Files  # where the run's reports lie
    partition: int
    token: str = field(default_factory=lambda: uuid4().hex)

    def mark_begun(self) -> None:
        """Say that rows may leave from now on."""
        self.files.write(self._path(_BEGUN), b"")

    def write(self, report: Report) -> None:
        """Leave the report: whole, or not at all."""
        self.files.write(self._path(_REPORT), json.dumps(asdict(report), separators=(",", ":")).encode())

    def _path(self, suffix: str) -> str:
        return f"p{self.partition:05}-{self.token}{suffix}"


def load_readings(files: Files) -> Mapping[int, PartitionReadings]:
    """Partition to its readings; partitions nobody began are missing."""
    names = [name for name in files.names() if not name.startswith(".")]  # the others are half written
    told = [name for name in names if name.endswith(_REPORT)]
    with ThreadPoolExecutor(1 if files.is_local else READS_AT_ONCE) as pool:
        texts = dict(zip(told, pool.map(files.read, told), strict=True))
    reports: dict[int, list[Report]] = {}
    unfinished: dict[int, int] = {}
    finished = {name.removesuffix(_REPORT) for name in told}
    for name in names:
        partition = int(name[1:].partition("-")[0])
        if name.endswith(_REPORT):
            reports.setdefault(partition, []).append(_report(json.loads(texts[name])))
        elif name.removesuffix(_BEGUN) not in finished:
            unfinished[partition] = unfinished.get(partition, 0) + 1
    return {
        partition: PartitionReadings(reports=reports.get(partition, ()), unfinished=unfinished.get(partition, 0))
        for partition in reports.keys() | unfinished.keys()
    }


def _report(values: Mapping[str, Any]) -> Report:
    quarantine = values["quarantine"]
    return Report(
        partition=values["partition"],
        drain=values["drain"],
        pieces=tuple(_reading(piece) for piece in values["pieces"]),
        quarantine=DataFile(**quarantine) if quarantine else None,
    )


def _reading(values: Mapping[str, Any]) -> PieceReading:
    failure = values["failure"]
    return PieceReading(
        piece=Piece(**values["piece"]),
        rows=values["rows"],
        lines_quarantined=values["lines_quarantined"],
        reasons=values["reasons"],
        samples=[(offset, reason) for offset, reason in values["samples"]],
        failure=ObjectFailure(**failure | {"kind": FailureKind(failure["kind"])}) if failure else None,
        broken_midway=values["broken_midway"],
        quotes=Quotes(**values["quotes"]) if values["quotes"] else None,
    )
