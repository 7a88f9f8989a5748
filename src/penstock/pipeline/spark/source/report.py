"""Reports: the result of one reading of one partition, passed to the driver in files beside Spark.

Spark may read a partition never, once or several times in one run, and may stop a reading early. So each reading has an
id; it writes a mark before its first row and its report, atomically, after its last. A reading that was stopped early
leaves only the mark.

`summarise` combines the reports of a run, object by object: which rows count, which objects failed, what to repeat.

A report is an Arrow IPC file with a row per piece, because a batch may have 100,000 objects: `summarise` works on its
columns, and looks singly only at objects that failed, disagree or were cut. Their details are JSON in a column.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from itertools import chain
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
from penstock.messaging.wording import counted, worded
from penstock.pipeline.spark.source.contents import Quotes
from penstock.pipeline.spark.source.ddl import ROW
from penstock.pipeline.spark.source.formats import format_of
from penstock.pipeline.spark.source.plan import Numbers, Piece, PieceColumns, ReadPlan
from penstock.pipeline.spark.source.unknown import NO_UNKNOWN, UnknownField, UnknownFields, shown
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
            samples=_samples(details.get("samples", ())),
            failure=_loaded_failure(failure) if failure else None,
            broken_midway=values["broken_midway"],
            quotes=None if values["ends_open"] is None else Quotes(**{name: values[name] for name in _QUOTES}),
            unknown=_unknown(details),
        )

    def with_details(self) -> npt.NDArray[np.bool_]:
        """Return a flag per piece, set if it has details."""
        flags: npt.NDArray[np.bool_] = self._batch.column("details").is_valid().to_numpy(zero_copy_only=False)
        return flags

    def details(self, positions: Numbers) -> Iterator[tuple[int, Mapping[str, Any]]]:
        """Yield the object index and details of pieces that have some."""
        texts = self._batch.column("details").take(pa.array(positions)).to_pylist()
        yield from zip(self.objects[positions].tolist(), map(json.loads, texts), strict=True)


def _samples(stored: Iterable[Sequence[Any]]) -> list[tuple[int, str]]:
    return [(offset, reason) for offset, reason in stored]


def _unknown(details: Mapping[str, Any]) -> UnknownFields:
    stored = details.get("unknown")
    if stored is None:
        return NO_UNKNOWN
    fields = {name: UnknownField(rows=rows, first=first, ddl=ddl) for name, rows, first, ddl in stored["fields"]}
    return UnknownFields(fields=fields, others=stored["others"])


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
        details["unknown"] = {"fields": fields, "others": reading.unknown.others}
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
        self.files.write(self._path(_BEGUN), b"")

    def write(self, report: PartitionReport) -> None:
        """Write the report atomically."""
        self.files.write(self._path(_REPORT), _encoded(report))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReading:
    """The result of one object. ``rows`` counts rows read, before any transform."""

    rows: int
    lines_quarantined: int
    reasons: Mapping[str, int]  # lines_quarantined by `penstock.events.QuarantineReason`
    samples: Sequence[tuple[int, str]]  # offset and reason of the first of these lines
    bytes: int  # of the object as stored
    unknown: UnknownFields = NO_UNKNOWN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ObjectReadings(Mapping[int, ObjectReading]):
    """The results of the objects that count, by ascending index in the plan. Makes `ObjectReading`s on access."""

    objects: Numbers
    rows: Numbers
    lines_quarantined: Numbers
    bytes: Numbers
    reasons: Mapping[int, Mapping[str, int]]  # of the objects with bad lines
    samples: Mapping[int, Sequence[tuple[int, str]]]  # the same
    unknown: Mapping[int, UnknownFields] = field(default_factory=dict)  # of the objects with some

    @staticmethod
    def of(readings: Mapping[int, ObjectReading]) -> "ObjectReadings":
        """Return the columns of single readings."""
        ordered = sorted(readings.items())

        def column(values: Iterator[int]) -> Numbers:
            return np.fromiter(values, dtype=np.int64, count=len(ordered))

        return ObjectReadings(
            objects=column(index for index, _ in ordered),
            rows=column(reading.rows for _, reading in ordered),
            lines_quarantined=column(reading.lines_quarantined for _, reading in ordered),
            bytes=column(reading.bytes for _, reading in ordered),
            reasons={index: reading.reasons for index, reading in ordered if reading.reasons},
            samples={index: reading.samples for index, reading in ordered if reading.samples},
            unknown={index: reading.unknown for index, reading in ordered if reading.unknown},
        )

    def joined(self, other: "ObjectReadings") -> "ObjectReadings":
        """Return these readings and those of other objects."""
        order = np.argsort(objects := np.concatenate([self.objects, other.objects]))

        def column(one: Numbers, two: Numbers) -> Numbers:
            return np.concatenate([one, two])[order]

        return ObjectReadings(
            objects=objects[order],
            rows=column(self.rows, other.rows),
            lines_quarantined=column(self.lines_quarantined, other.lines_quarantined),
            bytes=column(self.bytes, other.bytes),
            reasons={**self.reasons, **other.reasons},
            samples={**self.samples, **other.samples},
            unknown={**self.unknown, **other.unknown},
        )

    def __getitem__(self, index: int) -> ObjectReading:
        at = int(np.searchsorted(self.objects, index))
        if at == len(self.objects) or self.objects[at] != index:
            raise KeyError(index)
        return ObjectReading(
            rows=int(self.rows[at]),
            lines_quarantined=int(self.lines_quarantined[at]),
            reasons=self.reasons.get(index, {}),
            samples=self.samples.get(index, []),
            bytes=int(self.bytes[at]),
            unknown=self.unknown.get(index, NO_UNKNOWN),
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self.objects.tolist())

    def __len__(self) -> int:
        return len(self.objects)


NO_READINGS = ObjectReadings.of({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The result of a run, by object index in its plan.

    If ``missing`` is not empty, read those partitions in a drain run and summarise again. If ``exclude`` is not empty,
    rows that must not count were released: discard the run's files and repeat the run without those objects. If
    ``recut`` is not empty, repeat it with those objects cut at these offsets. Otherwise every object is in ``readings``
    or ``failures``.
    """

    readings: ObjectReadings
    failures: Mapping[int, ObjectFailure]  # no row of these was released
    exclude: Mapping[int, ObjectFailure]
    recut: Mapping[int, Sequence[int]]  # objects with a piece that began inside a record
    missing: Sequence[int]  # partitions without a report
    quarantine: Sequence[DataFile]  # at most one file per partition, with paths relative to the quarantine table's root

    @property
    def rows(self) -> int:
        """Return the number of good lines read."""
        return int(self.readings.rows.sum())

    @property
    def lines_quarantined(self) -> int:
        """Return the number of bad lines."""
        return int(self.readings.lines_quarantined.sum())

    @property
    def bytes(self) -> int:
        """Return the total size of the objects read, as stored."""
        return int(self.readings.bytes.sum())


def summarise(plan: ReadPlan) -> Summary:
    """Combine the reports of a plan's run. Call it again after a drain run."""
    known = load_readings(plan.reports)
    planned = PieceColumns.of(plan.partitions)
    found = [known.get(partition, PartitionReadings()) for partition in range(len(planned))]
    chosen = [readings.reports[0] for readings in found if readings.reports]
    missing = tuple(partition for partition, readings in enumerate(found) if not readings.reports)
    unknown = {index for partition in missing for index in planned.objects[planned.span(partition)].tolist()}
    leaked = dict(_leaks(found))
    looked_at = _looked_at(
        chosen, [*unknown, *leaked], count=len(plan.objects), ratio_max=plan.options.quarantine_ratio_max
    )
    if plan.options.evolve == "fail":
        for report in chosen:
            looked_at[report.objects[report.with_details()]] = True
    readings: dict[int, ObjectReading] = {}
    failures: dict[int, ObjectFailure] = {}
    recut: dict[int, Sequence[int]] = {}
    for index, pieces in _by_object(chosen, looked_at).items():
        cuts = None if index in unknown or _is_beyond(leaked.get(index)) else _cuts(pieces)
        if cuts is not None:
            leaked.pop(index, None)
            recut[index] = cuts
            continue
        failure = _failure(pieces)
        if failure is None and index not in unknown:
            readings[index] = _sum(pieces)
            if index not in plan.places:  # a replay reads bad lines only
                failure = _ratio_failure(readings[index], plan.options.quarantine_ratio_max)
            if failure is None and plan.options.evolve == "fail":
                failure = _unknown_failure(readings[index], plan, index)
        if failure is not None:
            failures[index] = failure
        if failure is not None and any(_let_out(piece) for piece in pieces):
            leaked.setdefault(index, failure)
    counting = {index: reading for index, reading in readings.items() if index not in failures | leaked}
    return Summary(
        readings=_plain(chosen, looked_at).joined(ObjectReadings.of(counting)),
        failures={index: failure for index, failure in failures.items() if index not in leaked},
        exclude=leaked,
        recut=recut,
        missing=missing,
        quarantine=tuple(report.quarantine for report in chosen if report.quarantine is not None),
    )


# Failures that may be limited to one host.
REFUSALS = frozenset({FailureKind.REFUSED, FailureKind.DENIED, FailureKind.DEVICE})
# often shared by many objects at once: see `penstock.pipeline.failures.Denials`
SHARED = frozenset({FailureKind.DENIED, FailureKind.DEVICE})


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


def _leaks(found: Sequence[PartitionReadings]) -> Iterator[tuple[int, ObjectFailure]]:
    """Yield objects whose rows two readings may have released differently, so the rows in Spark cannot be trusted."""
    for readings in found:
        if not readings.reports:
            continue
        reported, *others = readings.reports
        unreported = readings.unfinished > 0 or any(report.drain for report in readings.reports)
        differing = np.zeros(len(reported.objects), dtype=np.bool_)
        for other in others:
            differing |= _differ(reported, other)
        for position in np.flatnonzero(differing | (reported.failed & unreported)).tolist():
            piece = reported.reading(position)
            if differing[position]:
                yield piece.piece.object, _disagreement([piece, *(other.reading(position) for other in others)])
            elif piece.failure is not None:
                yield piece.piece.object, piece.failure


def _looked_at(
    reports: Sequence[LoadedReport], objects: Sequence[int], *, count: int, ratio_max: float
) -> npt.NDArray[np.bool_]:
    """Mark the objects, by index, that cannot be summed up in columns.

    These are the given ones, and those that failed, have several pieces or too many bad lines.
    """
    marked = np.zeros(count, dtype=np.bool_)
    marked[list(objects)] = True
    pieces = np.zeros(count, dtype=np.int64)
    for report in reports:
        pieces += np.bincount(report.objects, minlength=count)
        lines = report.rows + report.lines_quarantined
        marked[report.objects[report.failed | (report.lines_quarantined > ratio_max * lines)]] = True
    return marked | (pieces > 1)


def _plain(reports: Sequence[LoadedReport], looked_at: npt.NDArray[np.bool_]) -> ObjectReadings:
    """Return the readings of all other objects: each has one piece, which was read to its end."""
    at = [np.flatnonzero(~looked_at[report.objects]) for report in reports]
    if not at:
        return NO_READINGS
    detailed = dict(
        chain.from_iterable(
            report.details(positions[report.with_details()[positions]])
            for report, positions in zip(reports, at, strict=True)
        )
    )

    def column(values: Sequence[Numbers]) -> Numbers:
        return np.concatenate([each[positions] for each, positions in zip(values, at, strict=True)])

    return ObjectReadings(
        objects=column([report.objects for report in reports]),
        rows=column([report.rows for report in reports]),
        lines_quarantined=column([report.lines_quarantined for report in reports]),
        bytes=column([report.stops - report.starts for report in reports]),
        reasons={index: details["reasons"] for index, details in detailed.items() if details["reasons"]},
        samples={
            index: sorted(_samples(details["samples"])) for index, details in detailed.items() if details["samples"]
        },
        unknown={index: _unknown(details) for index, details in detailed.items() if "unknown" in details},
    )


def _is_beyond(failure: ObjectFailure | None) -> bool:
    """Return True if the failure cannot be due to where the object was cut."""
    return failure is not None and failure.kind is not FailureKind.UNREADABLE


def _cuts(pieces: Sequence[PieceReading]) -> Sequence[int] | None:
    """Return the new cuts of an object if one of its pieces began inside quotes; None if none did.

    Every piece was read as if it began outside of quotes (see csv_records.py); the pieces before it show if that was
    right.
    """
    cuts: list[int] = []
    within = misread = False
    for number, reading in enumerate(sorted(pieces, key=lambda reading: (reading.piece.start, reading.piece.stop))):
        piece, quotes = reading.piece, reading.quotes
        misread = misread or within
        if within:
            if quotes is not None and quotes.closes_at is not None and quotes.closes_at < piece.stop:
                cuts.append(quotes.closes_at)
        elif number:
            cuts.append(piece.start)
        if _is_beyond(reading.failure):
            return None
        if quotes is None:  # failed or not CSV: the rest stays together
            break
        within = quotes.ends_open_if_open if within else quotes.ends_open
    return tuple(cuts) if misread else None


def _differ(one: LoadedReport, other: LoadedReport) -> npt.NDArray[np.bool_]:
    differing: npt.NDArray[np.bool_] = one.rows != other.rows
    differing |= one.lines_quarantined != other.lines_quarantined
    differing |= one.failed != other.failed
    return differing


def _disagreement(readings: Sequence[PieceReading]) -> ObjectFailure:
    failures = [reading.failure for reading in readings if reading.failure is not None]
    refused = next((failure for failure in failures if failure.kind in REFUSALS), None)
    if refused is not None:  # the readings may differ because their hosts do
        return refused
    counts = " and ".join(
        f"{counted(reading.rows, 'row')}, {counted(reading.lines_quarantined, 'bad line')}" for reading in readings
    )
    reason = f"readings of one run disagree: {counts}" + (f" ({failures[0].reason})" if failures else "")
    return ObjectFailure(kind=FailureKind.DISAGREED, reason=reason)


def _by_object(
    reports: Sequence[LoadedReport], looked_at: npt.NDArray[np.bool_]
) -> Mapping[int, Sequence[PieceReading]]:
    pieces: dict[int, list[PieceReading]] = {}
    for report in reports:
        for position in np.flatnonzero(looked_at[report.objects]).tolist():
            reading = report.reading(position)
            pieces.setdefault(reading.piece.object, []).append(reading)
    return pieces


def _failure(pieces: Sequence[PieceReading]) -> ObjectFailure | None:
    """Return the failure of the first piece in the object that failed: its beginning tells best what it is."""
    failed = [piece for piece in pieces if piece.failure is not None]
    return min(failed, key=lambda piece: piece.piece.start).failure if failed else None


def _let_out(piece: PieceReading) -> bool:
    return piece.broken_midway or piece.rows > 0 or piece.lines_quarantined > 0


def _sum(pieces: Sequence[PieceReading]) -> ObjectReading:
    reasons: Counter[str] = Counter()
    for piece in pieces:
        reasons.update(piece.reasons)
    return ObjectReading(
        rows=sum(piece.rows for piece in pieces),
        lines_quarantined=sum(piece.lines_quarantined for piece in pieces),
        reasons=dict(reasons),
        samples=sorted(sample for piece in pieces for sample in piece.samples)[:SAMPLES_MAX],
        bytes=sum(piece.piece.stop - piece.piece.start for piece in pieces),
        unknown=UnknownFields.sum(piece.unknown for piece in pieces),
    )


def _ratio_failure(reading: ObjectReading, ratio_max: float) -> ObjectFailure | None:
    lines = reading.rows + reading.lines_quarantined
    if reading.lines_quarantined <= ratio_max * lines:
        return None
    are = worded(reading.lines_quarantined, "is", "are")
    of = f"{reading.lines_quarantined:,} of its {counted(lines, 'line')}"
    reason = f"{of} {are} bad, more than the limit of {ratio_max:.0%}"
    return ObjectFailure(kind=FailureKind.QUARANTINE_RATIO, reason=reason)


def _unknown_failure(reading: ObjectReading, plan: ReadPlan, index: int) -> ObjectFailure | None:
    if not reading.unknown:
        return None
    name, found = min(reading.unknown.fields.items(), key=lambda item: item[1].first)
    more = len(reading.unknown.fields) - 1
    others = f" (and {counted(more, 'other')})" if more else ""
    place = "row" if format_of(plan.options.format).position is ROW else "line at byte"
    reason = (
        f"{plan.objects[index].uri} has the field {shown(name)!r}{others}, first in the {place} {found.first}, and no "
        'column takes it: add a column to the schema, or keep such fields with evolve "rescue" or "add" (--evolve)'
    )
    return ObjectFailure(kind=FailureKind.UNKNOWN_FIELD, reason=reason)
