"""Reports: the result of one reading of one partition, passed to the driver in files beside Spark.

Spark may read a partition never, once or several times in one run, and may stop a reading early. So each reading has an
id; it writes a mark before its first row and its report, atomically, after its last. A reading that was stopped early
leaves only the mark. Neither is synced to disk: no run continues after a power loss, and the next one reads anew.

A report is an Arrow IPC file with a row per piece, because a batch may have 100,000 objects: `summary.py` works on its
columns. What only some pieces have (failures, samples of bad lines, unknown fields) is JSON in a column.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from socket import gethostname
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import (
    DeviceFailed,
    ObjectCorrupt,
    ObjectDenied,
    ObjectError,
    ObjectGone,
    ObjectRefused,
    ObjectSuperseded,
)
from penstock.messaging.failure import FailureDetails
from penstock.pipeline.spark.source.contents import Quotes
from penstock.pipeline.spark.source.plan import Numbers, Piece
from penstock.pipeline.spark.source.unknown import NO_UNKNOWN, UnknownField, UnknownFields
from penstock.sinks.manifest import DataFile
from penstock.storage.files import Files

_BEGUN = ".begun"
_REPORT = ".arrow"
SAMPLES_MAX = 10  # bad lines of an object that its events show
READS_AT_ONCE = 16  # from S3
_TRACEBACK_CHARS_MAX = 4_000  # since many objects may fail alike

_NUMBERS = ("object", "start", "stop", "rows", "lines_quarantined")
_QUOTES = ("ends_open", "ends_open_if_open", "closes_at")  # null unless it is a CSV piece read to its end
_SCHEMA = pa.schema(
    [
        *(pa.field(name, pa.int64()) for name in _NUMBERS),
        ("failed", pa.bool_()),
        ("broken_midway", pa.bool_()),
        ("ends_open", pa.bool_()),
        ("ends_open_if_open", pa.bool_()),
        ("closes_at", pa.int64()),
        ("details", pa.string()),  # JSON; null for a piece without failure, bad lines and unknown fields
        ("digest", pa.string()),
    ]
)
_HEADER = b"penstock"  # the key of the header in the schema's metadata


class FailureKind(StrEnum):
    """Why an object's rows do not count."""

    DELETED = "gone"
    SUPERSEDED = "superseded"
    UNREADABLE = "unreadable"
    CORRUPT = "corrupt"  # permanent: another attempt would read the same bytes
    REFUSED = "refused"  # the host could not open it or read a range of it
    DENIED = "denied"  # refused for lack of permission
    DEVICE = "device"  # refused because the disk or file system fails there
    HOST = "host"  # refused, but the driver can read it: the host is at fault
    TOO_LARGE = "too_large"  # permanent: another attempt would find the same size
    QUARANTINE_RATIO = "quarantine_ratio"  # too many of its lines are bad
    DISAGREED = "disagreed"  # two readings in one run returned different results
    UNKNOWN_FIELD = "unknown_field"  # permanent: it has a field without a column, and that is not allowed
    REPLAYED_NOTHING = "replayed_nothing"  # permanent: no record begins at the lines of a replay


# Failures that may be limited to one host.
REFUSALS = frozenset({FailureKind.REFUSED, FailureKind.DENIED, FailureKind.DEVICE})
# often shared by many objects at once: see `penstock.pipeline.failures.Denials`
SHARED = frozenset({FailureKind.DENIED, FailureKind.DEVICE})


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFailure:
    """Why an object failed: a kind for the program, a reason for people."""

    kind: FailureKind
    reason: str
    host: str = ""  # the host that read it
    offset: int = 0  # start of the range that could not be read
    length_bytes: int = 0  # length of that range; 0: the object could not be opened
    raised: FailureDetails | None = None  # by a reader of the user's

    @staticmethod
    def of(error: ObjectError) -> "ObjectFailure":
        """Return the failure for a store's error."""
        failure = ObjectFailure(kind=_kind(error), reason=str(error), host=gethostname())
        if isinstance(raised := vars(error).get("failure"), FailureDetails):
            return replace(failure, raised=replace(raised, traceback=raised.traceback[-_TRACEBACK_CHARS_MAX:]))
        if isinstance(error, ObjectRefused):
            return replace(failure, offset=error.offset, length_bytes=error.length_bytes)
        return failure


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceReading:
    """The result of one reading of one piece. A failed piece that is not broken midway released no line."""

    piece: Piece
    rows: int = 0
    lines_quarantined: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)  # lines_quarantined by `penstock.events.QuarantineReason`
    samples: Sequence[tuple[int, str]] = ()  # offset and reason of the first of these lines
    failure: ObjectFailure | None = None
    broken_midway: bool = False  # it failed after some of its lines had been released
    quotes: Quotes | None = None  # for CSV pieces read to their end
    unknown: UnknownFields = NO_UNKNOWN
    digest: str | None = None  # SHA-256 of its bytes, and of the beginning before them; see beginnings.py


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReport:
    """One complete reading of one partition."""

    partition: int
    drain: bool  # read only for its report; its rows were discarded
    pieces: Sequence[PieceReading]
    quarantine: DataFile | None = None


class LoadedReport:
    """One complete reading of one partition, as the driver loads it: columns, in the order of the plan's pieces."""

    def __init__(self, data: bytes) -> None:
        reader = pa.ipc.open_file(pa.py_buffer(data))
        header = json.loads(reader.schema.metadata[_HEADER])
        self._batch = reader.get_batch(0)
        self.partition: int = header["partition"]
        self.drain: bool = header["drain"]
        self.quarantine = DataFile(**header["quarantine"]) if header["quarantine"] else None
        self.objects, self.starts, self.stops, self.rows, self.lines_quarantined = (
            self._batch.column(name).to_numpy() for name in _NUMBERS
        )
        self.failed: npt.NDArray[np.bool_] = self._batch.column("failed").to_numpy(zero_copy_only=False)

    def reading(self, position: int) -> PieceReading:
        """Return the reading of one piece, by its position in the partition."""
        (values,) = self._batch.slice(position, 1).to_pylist()
        details = json.loads(values["details"] or "{}")
        failure = details.get("failure")
        return PieceReading(
            piece=Piece(object=values["object"], start=values["start"], stop=values["stop"]),
            rows=values["rows"],
            lines_quarantined=values["lines_quarantined"],
            reasons=details.get("reasons", {}),
            samples=samples_in(details),
            failure=_loaded_failure(failure) if failure else None,
            broken_midway=values["broken_midway"],
            quotes=None if values["ends_open"] is None else Quotes(**{name: values[name] for name in _QUOTES}),
            unknown=unknown_in(details),
            digest=values["digest"],
        )

    def digests(self, positions: Numbers) -> Iterator[tuple[int, int, str]]:
        """Yield object index, end and digest of pieces that have one."""
        texts = self._batch.column("digest").take(pa.array(positions)).to_pylist()
        columns = (self.objects[positions].tolist(), self.stops[positions].tolist(), texts)
        yield from ((index, stop, text) for index, stop, text in zip(*columns, strict=True) if text is not None)

    def with_details(self) -> npt.NDArray[np.bool_]:
        """Return a flag per piece, set if it has details."""
        flags: npt.NDArray[np.bool_] = self._batch.column("details").is_valid().to_numpy(zero_copy_only=False)
        return flags

    def details(self, positions: Numbers) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the object index and details of pieces that have some."""
        texts = self._batch.column("details").take(pa.array(positions)).to_pylist()
        yield from zip(self.objects[positions].tolist(), map(json.loads, texts), strict=True)


def samples_in(details: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return offset and reason of some bad lines of a piece with these details."""
    return [(offset, reason) for offset, reason in details.get("samples", ())]


def unknown_in(details: Mapping[str, Any]) -> UnknownFields:
    """Return the unknown fields of a piece with these details."""
    stored = details.get("unknown")
    if stored is None:
        return NO_UNKNOWN
    fields = {name: UnknownField(rows=rows, first=first, ddl=ddl) for name, rows, first, ddl in stored["fields"]}
    return UnknownFields(
        fields=fields,
        others=stored["others"],
        wrong_type=stored["wrong_type"],
        wrong_type_others=stored["wrong_type_others"],
    )


def _encoded(report: PartitionReport) -> bytes:
    """Return the report as an Arrow IPC file."""
    header = {
        "partition": report.partition,
        "drain": report.drain,
        "quarantine": None if report.quarantine is None else asdict(report.quarantine),
    }
    schema = _SCHEMA.with_metadata({_HEADER: json.dumps(header, separators=(",", ":"))})
    rows = [
        (
            one.piece.object,
            one.piece.start,
            one.piece.stop,
            one.rows,
            one.lines_quarantined,
            one.failure is not None,
            one.broken_midway,
            *((None,) * len(_QUOTES) if one.quotes is None else (getattr(one.quotes, name) for name in _QUOTES)),
            _details(one),
            one.digest,
        )
        for one in report.pieces
    ]
    columns = zip(*rows, strict=True) if rows else ((),) * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    data = pa.BufferOutputStream()
    with pa.ipc.new_file(data, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return bytes(data.getvalue())


def _loaded_failure(values: Mapping[str, Any]) -> ObjectFailure:
    raised = values["raised"] and FailureDetails(**values["raised"])
    return ObjectFailure(**{**values, "kind": FailureKind(values["kind"]), "raised": raised})


def _details(reading: PieceReading) -> str | None:
    if reading.failure is None and not reading.reasons and not reading.samples and not reading.unknown:
        return None
    details: dict[str, Any] = {
        "reasons": reading.reasons,
        "samples": reading.samples,
        "failure": None if reading.failure is None else asdict(reading.failure),
    }
    if reading.unknown:
        fields = [(name, one.rows, one.first, one.ddl) for name, one in reading.unknown.fields.items()]
        details["unknown"] = {
            "fields": fields,
            "others": reading.unknown.others,
            "wrong_type": dict(reading.unknown.wrong_type),
            "wrong_type_others": reading.unknown.wrong_type_others,
        }
    return json.dumps(details, separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionReadings:
    """All known readings of one partition, with the reports in a fixed order."""

    reports: Sequence[LoadedReport] = ()
    unfinished: int = 0  # readings that began to yield rows and left no report


@dataclass(slots=True)
class ReadingId:
    """Identifies one reading and names its files."""

    files: Files  # the run's folder of reports
    partition: int
    token: str = field(default_factory=lambda: uuid4().hex)

    def mark_begun(self) -> None:
        """Write the mark that rows may be released from now on."""
        self.files.write(self._path(_BEGUN), b"", durable=False)

    def write(self, report: PartitionReport) -> None:
        """Write the report atomically."""
        self.files.write(self._path(_REPORT), _encoded(report), durable=False)

    def _path(self, suffix: str) -> str:
        return f"p{self.partition:05}-{self.token}{suffix}"


def load_readings(files: Files) -> Mapping[int, PartitionReadings]:
    """Return the readings of each partition; partitions that no reading began are missing."""
    # a name with a leading dot is a half-written file
    names = [name for name in files.names() if not name.startswith(".")]
    reported = [name for name in names if name.endswith(_REPORT)]
    with ThreadPoolExecutor(1 if files.is_local else READS_AT_ONCE) as pool:
        contents = dict(zip(reported, pool.map(files.read, reported), strict=True))
    reports: dict[int, list[LoadedReport]] = {}
    unfinished: dict[int, int] = {}
    finished = {name.removesuffix(_REPORT) for name in reported}
    for name in names:
        partition = int(name[1:].partition("-")[0])
        if name.endswith(_REPORT):
            reports.setdefault(partition, []).append(LoadedReport(contents[name]))
        elif name.removesuffix(_BEGUN) not in finished:
            unfinished[partition] = unfinished.get(partition, 0) + 1
    return {
        partition: PartitionReadings(reports=reports.get(partition, ()), unfinished=unfinished.get(partition, 0))
        for partition in reports.keys() | unfinished.keys()
    }


def _kind(error: ObjectError) -> FailureKind:
    match error:
        case ObjectGone():
            return FailureKind.DELETED
        case ObjectSuperseded():
            return FailureKind.SUPERSEDED
        case ObjectDenied():
            return FailureKind.DENIED
        case DeviceFailed():
            return FailureKind.DEVICE
        case ObjectRefused():
            return FailureKind.REFUSED
        case ObjectCorrupt():
            return FailureKind.CORRUPT
        case _:
            return FailureKind.UNREADABLE
