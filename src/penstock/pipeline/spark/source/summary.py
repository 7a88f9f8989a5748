"""Summaries: the reports of a run combined, object by object: which rows count, which objects failed, what to repeat.

`summarise` works on the reports' columns, and looks singly only at objects that failed, disagree or were cut.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from penstock.ledger.records import KnownBeginning
from penstock.messaging.wording import counted, worded
from penstock.pipeline.spark.source.beginnings import as_text, joined
from penstock.pipeline.spark.source.ddl import ROW
from penstock.pipeline.spark.source.formats import format_of
from penstock.pipeline.spark.source.plan import Numbers, PieceColumns, ReadPlan
from penstock.pipeline.spark.source.report import (
    REFUSALS,
    SAMPLES_MAX,
    FailureKind,
    LoadedReport,
    ObjectFailure,
    PartitionReadings,
    PieceReading,
    load_readings,
    samples_in,
    unknown_in,
)
from penstock.pipeline.spark.source.unknown import NO_UNKNOWN, UnknownFields, name_shown
from penstock.sinks.manifest import DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReading:
    """The result of one object. ``rows`` counts rows read, before any transform."""

    rows: int
    lines_quarantined: int
    reasons: Mapping[str, int]  # lines_quarantined by `penstock.events.QuarantineReason`
    samples: Sequence[tuple[int, str]]  # offset and reason of the first of these lines
    bytes: int  # of the object as stored
    unknown: UnknownFields = NO_UNKNOWN
    beginning: str | None = None  # what its next version may begin with, see beginnings.py
    grew: bool = False  # only appended lines were read


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
    beginnings: Mapping[int, str] = field(default_factory=dict)  # of the objects that have one
    grown: Collection[int] = ()  # those of which only appended lines were read

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
            beginnings={index: reading.beginning for index, reading in ordered if reading.beginning is not None},
            grown=frozenset(index for index, reading in ordered if reading.grew),
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
            beginnings={**self.beginnings, **other.beginnings},
            grown=frozenset(self.grown) | frozenset(other.grown),
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
            beginning=self.beginnings.get(index),
            grew=index in self.grown,
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
    looked_at[list(plan.places)] = True
    looked_at[list(plan.beginnings)] = True
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
            readings[index] = _sum(pieces, plan.objects[index].size_bytes)
            if index in plan.places:
                failure = _replay_failure(readings[index], plan, index)
            else:
                base = plan.beginnings[index] if readings[index].grew else None
                failure = _ratio_failure(readings[index], plan.options.quarantine_ratio_max, base)
            if failure is None and plan.options.evolve == "fail":
                failure = _unknown_failure(readings[index], plan, index)
        if failure is not None:
            failures[index] = failure
        if failure is not None and any(_let_out(piece) for piece in pieces):
            leaked.setdefault(index, failure)
    counting = {index: reading for index, reading in readings.items() if index not in failures | leaked}
    return Summary(
        readings=_plain(chosen, looked_at, hashes=plan.hashes).joined(ObjectReadings.of(counting)),
        failures={index: failure for index, failure in failures.items() if index not in leaked},
        exclude=leaked,
        recut=recut,
        missing=missing,
        quarantine=tuple(report.quarantine for report in chosen if report.quarantine is not None),
    )


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


def _plain(reports: Sequence[LoadedReport], looked_at: npt.NDArray[np.bool_], *, hashes: bool) -> ObjectReadings:
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
        samples={index: sorted(samples_in(details)) for index, details in detailed.items() if details["samples"]},
        unknown={index: unknown_in(details) for index, details in detailed.items() if "unknown" in details},
        beginnings=dict(chain.from_iterable(map(_beginnings, reports, at))) if hashes else {},
    )


def _beginnings(report: LoadedReport, positions: Numbers) -> Iterator[tuple[int, str]]:
    """Yield the beginnings of objects that were read in one piece. An empty object has none."""
    return ((index, as_text([(stop, digest)])) for index, stop, digest in report.digests(positions) if stop)


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


def _sum(pieces: Sequence[PieceReading], size_bytes: int) -> ObjectReading:
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
        beginning=joined({piece.piece.start: (piece.piece.stop, piece.digest) for piece in pieces}, size_bytes),
        grew=min(piece.piece.start for piece in pieces) > 0,
    )


def _ratio_failure(
    reading: ObjectReading, ratio_max: float, base: KnownBeginning | None = None
) -> ObjectFailure | None:
    """Return a failure for an object with too many bad lines. ``base``: the beginning, if it was not read again."""
    bad = reading.lines_quarantined + (0 if base is None else base.lines_quarantined)
    lines = reading.rows + bad + (0 if base is None else base.rows)
    if bad <= ratio_max * lines:
        return None
    are = worded(bad, "is", "are")
    of = f"{bad:,} of its {counted(lines, 'line')}"
    reason = f"{of} {are} bad, more than the limit of {ratio_max:.0%}"
    return ObjectFailure(kind=FailureKind.QUARANTINE_RATIO, reason=reason)


def _replay_failure(reading: ObjectReading, plan: ReadPlan, index: int) -> ObjectFailure | None:
    """Return a failure for a replay that read nothing: its lines would count as replayed, and be in no table."""
    if not plan.places[index] or reading.rows + reading.lines_quarantined:
        return None
    reason = (
        f"{plan.objects[index].uri} has no record that begins where its bad lines do, under the pipeline's present "
        "options: correct the quote, comment or other options and replay the lines again, or dismiss them"
    )
    return ObjectFailure(kind=FailureKind.REPLAYED_NOTHING, reason=reason)


def _unknown_failure(reading: ObjectReading, plan: ReadPlan, index: int) -> ObjectFailure | None:
    if not reading.unknown.fields:
        return None
    name, found = min(reading.unknown.fields.items(), key=lambda item: item[1].first)
    more = len(reading.unknown.fields) - 1
    others = f" (and {counted(more, 'other')})" if more else ""
    place = "row" if format_of(plan.options.format).position is ROW else "line at byte"
    reason = (
        f"{plan.objects[index].uri} has the field {name_shown(name)!r}{others}, first in the {place} {found.first}, "
        'and no column takes it: add a column to the schema, or keep such fields with evolve "rescue" or "add" '
        "(--evolve)"
    )
    return ObjectFailure(kind=FailureKind.UNKNOWN_FIELD, reason=reason)
