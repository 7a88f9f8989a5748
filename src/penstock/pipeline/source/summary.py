"""What a run read, object by object, made of its reports: what counts, what failed, what has to be done again."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from penstock.pipeline.source.plan import ReadPlan
from penstock.pipeline.source.report import (
    REFUSALS,
    SAMPLES_MAX,
    FailureKind,
    ObjectFailure,
    PartitionReadings,
    PieceReading,
    Report,
    load_readings,
)
from penstock.sinks.manifest import DataFile


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectReading:
    """What one object gave. ``rows`` are those read, before any transform."""

    rows: int
    lines_quarantined: int
    reasons: Mapping[str, int]  # the same lines by `penstock.pipeline.source.lines.Reason`
    samples: Sequence[tuple[int, str]]  # the first of these lines: offset, reason
    bytes: int  # of the object as stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A run, by the objects' places in its plan.

    Where ``missing`` is not empty, read those partitions by a drain run and ask again. Where ``exclude`` is not empty,
    rows that do not count have left: the run must be repeated without those objects, and its files forgotten. Where
    ``recut`` is not empty, it must be repeated with those objects cut at these offsets. Else every object is in
    ``readings`` or ``failures``.
    """

    readings: Mapping[int, ObjectReading]
    failures: Mapping[int, ObjectFailure]  # no row of these has left
    exclude: Mapping[int, ObjectFailure]
    recut: Mapping[int, Sequence[int]]  # objects with a piece that began in the middle of a record
    missing: Sequence[int]  # partitions without a report
    quarantine: Sequence[DataFile]  # one file at most a partition, paths relative to the quarantine table's root

    @property
    def rows(self) -> int:
        """Good lines read."""
        return sum(reading.rows for reading in self.readings.values())

    @property
    def lines_quarantined(self) -> int:
        """Bad lines."""
        return sum(reading.lines_quarantined for reading in self.readings.values())

    @property
    def bytes(self) -> int:
        """Of the objects read, as stored."""
        return sum(reading.bytes for reading in self.readings.values())


def summarise(plan: ReadPlan) -> Summary:
    """Read the reports of a plan's run and decide; may be asked again after a drain run."""
    known = load_readings(plan.reports)
    found = [known.get(partition, PartitionReadings()) for partition in range(len(plan.partitions))]
    chosen = [readings.reports[0] for readings in found if readings.reports]
    missing = tuple(partition for partition, readings in enumerate(found) if not readings.reports)
    unknown = {piece.object for partition in missing for piece in plan.partitions[partition]}
    leaked = dict(_leaks(found))
    readings: dict[int, ObjectReading] = {}
    failures: dict[int, ObjectFailure] = {}
    recut: dict[int, Sequence[int]] = {}
    for index, pieces in _by_object(chosen).items():
        cuts = None if index in unknown or _is_beyond(leaked.get(index)) else _cuts(pieces)
        if cuts is not None:
            leaked.pop(index, None)
            recut[index] = cuts
            continue
        failure = _failure(pieces)
        if failure is None and index not in unknown:
            readings[index] = _sum(pieces)
            failure = _ratio_failure(readings[index], plan.options.quarantine_ratio_max)
        if failure is not None:
            failures[index] = failure
        if failure is not None and any(_let_out(piece) for piece in pieces):
            leaked.setdefault(index, failure)
    return Summary(
        readings={index: reading for index, reading in readings.items() if index not in failures | leaked},
        failures={index: failure for index, failure in failures.items() if index not in leaked},
        exclude=leaked,
        recut=recut,
        missing=missing,
        quarantine=tuple(report.quarantine for report in chosen if report.quarantine is not None),
    )


def _leaks(found: Sequence[PartitionReadings]) -> Iterator[tuple[int, ObjectFailure]]:
    """Objects that one reading saw otherwise than another one may have: what left is then anybody's guess."""
    for readings in found:
        if not readings.reports:
            continue
        told, *others = readings.reports
        untold = readings.unfinished > 0 or any(report.drain for report in readings.reports)
        for slot, piece in enumerate(told.pieces):
            if any(_differ(piece, other.pieces[slot]) for other in others):
                yield piece.piece.object, _disagreement([piece, *(other.pieces[slot] for other in others)])
            elif piece.failure is not None and untold:
                yield piece.piece.object, piece.failure


def _is_beyond(failure: ObjectFailure | None) -> bool:
    """Return True for a failure that has another cause than where the object was cut."""
    return failure is not None and failure.kind is not FailureKind.UNREADABLE


def _cuts(pieces: Sequence[PieceReading]) -> Sequence[int] | None:
    """Return where to cut the object if a piece of it began within quotes; None if none did.

    Every piece was read as if it began outside of quotes (see records.py); those before it show whether it did.
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
        if quotes is None:  # failed, or of no CSV: the rest stays together
            break
        within = quotes.ends_open_if_open if within else quotes.ends_open
    return tuple(cuts) if misread else None


def _differ(one: PieceReading, other: PieceReading) -> bool:
    def told(reading: PieceReading) -> tuple[int, int, bool]:
        return reading.rows, reading.lines_quarantined, reading.failure is None

    return told(one) != told(other)


def _disagreement(readings: Sequence[PieceReading]) -> ObjectFailure:
    failures = [reading.failure for reading in readings if reading.failure is not None]
    refused = next((failure for failure in failures if failure.kind in REFUSALS), None)
    if refused is not None:  # the readings may differ because their hosts do
        return refused
    counts = " and ".join(f"{reading.rows} rows, {reading.lines_quarantined} bad lines" for reading in readings)
    reason = f"readings of one run disagree: {counts}" + (f" ({failures[0].reason})" if failures else "")
    return ObjectFailure(kind=FailureKind.DISAGREED, reason=reason)


def _by_object(reports: Sequence[Report]) -> Mapping[int, Sequence[PieceReading]]:
    pieces: dict[int, list[PieceReading]] = {}
    for report in reports:
        for reading in report.pieces:
            pieces.setdefault(reading.piece.object, []).append(reading)
    return pieces


def _failure(pieces: Sequence[PieceReading]) -> ObjectFailure | None:
    return next((piece.failure for piece in pieces if piece.failure is not None), None)


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
    )


def _ratio_failure(reading: ObjectReading, ratio_max: float) -> ObjectFailure | None:
    lines = reading.rows + reading.lines_quarantined
    if reading.lines_quarantined <= ratio_max * lines:
        return None
    reason = f"{reading.lines_quarantined} of its {lines} lines are bad, more than the limit of {ratio_max:.0%}"
    return ObjectFailure(kind=FailureKind.QUARANTINE_RATIO, reason=reason)
