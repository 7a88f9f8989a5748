"""The summary of a run from columns is the same as the one from single readings, for any reports."""

import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from penstock.messaging.wording import counted, worded
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source.contents import Quotes
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece, ReadPlan
from penstock.pipeline.spark.source.report import (
    REFUSALS,
    SAMPLES_MAX,
    FailureKind,
    ObjectFailure,
    PartitionReport,
    PieceReading,
    ReadingId,
)
from penstock.pipeline.spark.source.summary import ObjectReading, summarise
from penstock.sinks.manifest import DataFile
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles


@dataclass(frozen=True)
class Run:
    """A plan's partitions, and what its readings left: reports, and marks of readings without one."""

    objects: int
    partitions: Sequence[Sequence[Piece]]
    reports: Sequence[PartitionReport]
    begun: Sequence[int]  # partitions
    ratio_max: float


def failures() -> st.SearchStrategy[ObjectFailure]:
    return st.builds(
        ObjectFailure,
        kind=st.sampled_from(list(FailureKind)),
        reason=st.text(max_size=5),
        host=st.sampled_from(["", "spark-1"]),
        offset=st.integers(0, 9),
        length_bytes=st.integers(0, 9),
    )


@st.composite
def piece_readings(draw: st.DrawFn, piece: Piece) -> PieceReading:
    reasons = draw(st.dictionaries(st.sampled_from(["malformed", "wrong type"]), st.integers(1, 4), max_size=2))
    is_quoted = draw(st.booleans())
    return PieceReading(
        piece=piece,
        rows=draw(st.integers(0, 5)),
        lines_quarantined=sum(reasons.values()),
        reasons=reasons,
        samples=draw(st.lists(st.tuples(st.integers(0, 99), st.text(max_size=3)), max_size=3)) if reasons else (),
        failure=draw(st.none() | failures()),
        broken_midway=draw(st.booleans()),
        quotes=Quotes(
            ends_open=draw(st.booleans()),
            ends_open_if_open=draw(st.booleans()),
            closes_at=draw(st.none() | st.integers(piece.start, piece.stop + 1)),
        )
        if is_quoted
        else None,
    )


@st.composite
def runs(draw: st.DrawFn) -> Run:
    """Return a run of some objects in one or more pieces; partitions have reports of none, one or several readings."""
    pieces: list[Piece] = []
    objects = draw(st.integers(0, 6))
    for index in range(objects):
        edges = sorted(draw(st.sets(st.integers(1, 98), max_size=2))) if draw(st.booleans()) else []
        pieces += [Piece(object=index, start=start, stop=stop) for start, stop in pairwise([0, *edges, 99])]
    count = draw(st.integers(1, 3))
    partitions: list[list[Piece]] = [[] for _ in range(count)]
    for piece in pieces:
        partitions[draw(st.integers(0, count - 1))].append(piece)
    reports: list[PartitionReport] = []
    for number, partition in enumerate(partitions):
        readings = [draw(piece_readings(piece)) for piece in partition]
        for repeat in range(draw(st.integers(0, 2))):
            if repeat and draw(st.booleans()):
                readings = [draw(piece_readings(piece)) for piece in partition]
            file = DataFile(path=f"data/{number}", size_bytes=1, rows=1, modified_at=0.5)
            reports.append(
                PartitionReport(
                    partition=number,
                    drain=draw(st.booleans()),
                    pieces=readings,
                    quarantine=draw(st.none() | st.just(file)),
                )
            )
    begun = draw(st.lists(st.integers(0, count - 1), max_size=2))
    ratio_max = draw(st.sampled_from([0.0, 0.3, 0.5, 1.0]))
    return Run(objects=objects, partitions=partitions, reports=reports, begun=begun, ratio_max=ratio_max)


@given(run=runs())
def test_the_summary_from_columns_is_the_one_from_single_readings(run: Run) -> None:
    with tempfile.TemporaryDirectory() as folder:
        plan = ReadPlan(
            attempt_id="A",
            run=0,
            options=ReadOptions(quarantine_ratio_max=run.ratio_max),
            objects=[ObjectRef(bucket="b", key=str(index), size_bytes=99, etag="e") for index in range(run.objects)],
            partitions=run.partitions,
            source="",
            aws=Aws(),
            quarantine=LocalFiles(Path(folder, "quarantine")),
            work=LocalFiles(Path(folder, "work")),
        )
        for number, report in enumerate(run.reports):  # the tokens give the reports the order of the list
            ReadingId(plan.reports, report.partition, f"{number:032}").write(report)
        for number, partition in enumerate(run.begun):
            ReadingId(plan.reports, partition, f"f{number:031}").mark_begun()
        found = summarise(plan)
    expected = single_summary(run)
    assert dict(found.readings) == expected.readings
    assert (found.rows, found.lines_quarantined, found.bytes) == expected.totals
    assert found.failures == expected.failures
    assert found.exclude == expected.exclude
    assert {index: tuple(cuts) for index, cuts in found.recut.items()} == expected.recut
    assert found.missing == expected.missing
    assert list(found.quarantine) == expected.quarantine
    with_reasons = {index: one.reasons for index, one in expected.readings.items() if one.reasons}
    assert found.readings.reasons == with_reasons


# -- the oracle: the summary in Python, one reading at a time ---------------------------------------------------------


@dataclass(frozen=True)
class SinglePartition:
    """All readings of one partition."""

    reports: Sequence[PartitionReport]
    unfinished: int


@dataclass(frozen=True)
class SingleSummary:
    """The expected summary."""

    readings: Mapping[int, ObjectReading]
    failures: Mapping[int, ObjectFailure]
    exclude: Mapping[int, ObjectFailure]
    recut: Mapping[int, Sequence[int]]
    missing: Sequence[int]
    quarantine: Sequence[DataFile]

    @property
    def totals(self) -> tuple[int, int, int]:
        """Return the rows, the bad lines and the bytes of all objects that count."""
        values = self.readings.values()
        return sum(r.rows for r in values), sum(r.lines_quarantined for r in values), sum(r.bytes for r in values)


def single_summary(run: Run) -> SingleSummary:
    found = [
        SinglePartition(
            reports=[report for report in run.reports if report.partition == partition],
            unfinished=run.begun.count(partition),
        )
        for partition in range(len(run.partitions))
    ]
    chosen = [readings.reports[0] for readings in found if readings.reports]
    missing = tuple(partition for partition, readings in enumerate(found) if not readings.reports)
    unknown = {piece.object for partition in missing for piece in run.partitions[partition]}
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
            failure = _ratio_failure(readings[index], run.ratio_max)
        if failure is not None:
            failures[index] = failure
        if failure is not None and any(_let_out(piece) for piece in pieces):
            leaked.setdefault(index, failure)
    return SingleSummary(
        readings={index: reading for index, reading in readings.items() if index not in failures | leaked},
        failures={index: failure for index, failure in failures.items() if index not in leaked},
        exclude=leaked,
        recut=recut,
        missing=missing,
        quarantine=[report.quarantine for report in chosen if report.quarantine is not None],
    )


def _leaks(found: Sequence[SinglePartition]) -> Iterator[tuple[int, ObjectFailure]]:
    """Yield objects whose rows two readings may have released differently, so the rows in Spark cannot be trusted."""
    for readings in found:
        if not readings.reports:
            continue
        reported, *others = readings.reports
        unreported = readings.unfinished > 0 or any(report.drain for report in readings.reports)
        for index, piece in enumerate(reported.pieces):
            if any(_differ(piece, other.pieces[index]) for other in others):
                yield piece.piece.object, _disagreement([piece, *(other.pieces[index] for other in others)])
            elif piece.failure is not None and unreported:
                yield piece.piece.object, piece.failure


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


def _differ(one: PieceReading, other: PieceReading) -> bool:
    def reported(reading: PieceReading) -> tuple[int, int, bool]:
        return reading.rows, reading.lines_quarantined, reading.failure is None

    return reported(one) != reported(other)


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


def _by_object(reports: Sequence[PartitionReport]) -> Mapping[int, Sequence[PieceReading]]:
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
    are = worded(reading.lines_quarantined, "is", "are")
    of = f"{reading.lines_quarantined:,} of its {counted(lines, 'line')}"
    reason = f"{of} {are} bad, more than the limit of {ratio_max:.0%}"
    return ObjectFailure(kind=FailureKind.QUARANTINE_RATIO, reason=reason)
