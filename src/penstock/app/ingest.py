"""The main job: everything a folder holds, once, into a table.

scan -> announce -> worker (claim, Spark, commit, publish, ack) until every scanned object is terminal and published.
Run again after any death it goes on where the protocol stood; run again after success it finds nothing to do.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.app.kill import killing_probe
from penstock.app.pipeline import IngestRequest, Job, check
from penstock.app.places import Places, places, real
from penstock.app.state import State, check_owner, open_state
from penstock.app.tables import Tables
from penstock.app.wiring import Tools
from penstock.errors import PenstockError, UsageError
from penstock.events import BatchCommitted, Bus, Event, Listener, SourceScanned
from penstock.ledger.records import TERMINAL, ObjectState
from penstock.messaging.clock import SystemClock
from penstock.messaging.message import Outgoing
from penstock.messaging.steps import Probe, Step
from penstock.objects.announcement import announce
from penstock.objects.local import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import Scanner, ScanReport
from penstock.pipeline.session import Session
from penstock.worker.shutdown import StopSignal

ANNOUNCEMENTS_MAX = 5  # of one object by one ingest, before we say that something is wrong with it
SEND_CHUNK = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestReport:
    """What one ingest found and did. Objects are those of this scan; rows, lines and batches those of this process."""

    objects_found: int
    objects_processed: int
    objects_skipped: int  # processed before we came
    objects_dead: int
    objects_gone: int
    objects_superseded: int
    objects_unfinished: int  # only when stopped
    objects_new_versions: int  # files that were seen before in another version
    files_ignored: dict[str, int]  # why, how many
    rows_written: int
    lines_quarantined: int
    batches: int
    seconds: float
    table: str
    table_version: int | None  # None: no table yet
    quarantine_table: str | None  # None: nothing was ever quarantined
    schema: str | None
    stopped: bool  # before everything was scanned, finished and published
    problems: tuple[str, ...]  # what could not be looked at


def ingest(
    request: IngestRequest, *, stop: StopSignal, listeners: Sequence[Listener] = (), spark: Session | None = None
) -> IngestReport:
    """Do the main job; returns when every scanned object is terminal and published, or when stopped.

    ``spark`` is a session to work in; without one, one is started where there is something to do, and ended.

    Raises `UserError` with a sentence for what a person has to mend; what was committed until then stays.
    """
    tally = Tally()
    tools = Tools(
        stop=stop, clock=SystemClock(), bus=Bus(tally, *listeners), probe=killing_probe(request.settings.kill_at)
    )
    began_at = tools.clock.monotonic()
    where = places(request.table, request.state)
    source = _source_folder(request.source, where)
    transform = check(request)
    with open_state(where.state, probe=tools.probe) as state:
        state.free_what_the_dead_held()
        check_owner(state.ledger, where)
        state.ledger.ensure_pipeline(where.pipeline)
        tables = Tables(where, state.ledger, partition_by=request.partition_by, bus=tools.bus, probe=tools.probe)
        tables.publish()  # what an earlier process committed and did not live to publish
        scan = _scan(source, where, stop)
        goal = Goal(state, where, scan.objects, queue=where.queue(source), probe=tools.probe)
        tools.bus.emit(SourceScanned(source=str(source), found=len(scan.objects), unfinished=len(goal.unfinished)))
        if not goal.reached_before() and not stop.requested:
            goal.begin()
            job = Job(
                request=request,
                transform=transform,
                source=source,
                where=where,
                state=state,
                tables=tables,
                tools=tools,
            )
            job.serve(sample=scan.objects, until=goal.reached, spark=spark)
        tables.sweep()
        seconds = tools.clock.monotonic() - began_at
        return _report(where, state, tables, goal, scan, tally, asked_to_stop=stop.requested, seconds=seconds)


class Goal:
    """Every scanned object in a terminal state. Used by the thread that asks, one at a time."""

    def __init__(self, state: State, where: Places, objects: Sequence[ObjectRef], *, queue: str, probe: Probe) -> None:
        self._state = state
        self._pipeline = where.pipeline
        self._queue = queue
        self._probe = probe
        self._announcements: Counter[bytes] = Counter()
        self._refs = {ref.object_id: ref for ref in objects}
        self.before = state.ledger.states(self._pipeline, list(self._refs))
        self.unfinished = {object_id for object_id in self._refs if self.before.get(object_id) not in TERMINAL}

    def reached_before(self) -> bool:
        """Whether there is nothing to do, not even messages that a killed ingest did not live to settle."""
        return not self.unfinished and not self._state.broker.stats(self._queue).visible

    def begin(self) -> None:
        """Announce, unless messages of an ingest that was killed, or of one beside us, still wait: those are worked
        off first, and `reached` announces what they did not name. Else every death would double the queue."""
        if not self._messages():
            self.announce()

    def announce(self) -> None:
        """Send a notification for every unfinished object that nobody works on. Repeats do no harm."""
        live = self._state.ledger.live(self._pipeline, list(self.unfinished))
        missing = [ref for object_id, ref in self._refs.items() if object_id in self.unfinished - live]
        for start in range(0, len(missing), SEND_CHUNK):
            chunk = missing[start : start + SEND_CHUNK]
            self._state.broker.send(self._queue, [Outgoing(body=announce(ref)) for ref in chunk])
            self._probe(Step.ANNOUNCED)
        self._count(missing)

    def reached(self) -> bool:
        """Asked by the idle worker. Where messages are gone but objects are not done (a message was purged, or its
        sender died between two steps), they are announced again. Messages that only repeat what is done are worked
        off before we say yes, so that none stays behind."""
        states = self._state.ledger.states(self._pipeline, list(self.unfinished))
        self.unfinished = {object_id for object_id in self.unfinished if states.get(object_id) not in TERMINAL}
        if self.unfinished:
            self._state.free_what_the_dead_held()
            self.begin()
            return False
        return self._state.broker.stats(self._queue).visible == 0

    def states(self) -> dict[bytes, ObjectState]:
        """Where every scanned object stands now; what the ledger never saw is unprocessed."""
        known = self._state.ledger.states(self._pipeline, list(self._refs))
        return {object_id: known.get(object_id, ObjectState.UNPROCESSED) for object_id in self._refs}

    def _messages(self) -> int:
        stats = self._state.broker.stats(self._queue)
        return stats.visible + stats.in_flight + stats.delayed

    def _count(self, refs: Sequence[ObjectRef]) -> None:
        self._announcements.update(ref.object_id for ref in refs)
        for ref in refs:
            if self._announcements[ref.object_id] > ANNOUNCEMENTS_MAX:
                raise PenstockError(
                    f"{ref.uri} was announced {ANNOUNCEMENTS_MAX} times and is still not done, nor dead; look at "
                    f"`penstock objects show` and `penstock dead list`, and report it."
                )


class Tally:
    """Counts what this process committed. Written by the thread that emits, read when it is done."""

    def __init__(self) -> None:
        self.rows = 0
        self.lines_quarantined = 0
        self.batches = 0

    def __call__(self, event: Event) -> None:
        if isinstance(event, BatchCommitted):
            self.rows += event.rows
            self.lines_quarantined += event.lines_quarantined
            self.batches += 1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scan:
    objects: Sequence[ObjectRef]
    report: ScanReport
    complete: bool  # False: stopped in the middle


def _source_folder(source: str, where: Places) -> Path:
    if "://" in source and not source.startswith("file://"):
        raise UsageError(f"{source} is no local folder; this version reads local folders.")
    folder = real(source)
    if not folder.is_dir():
        what = "is a file; give the folder it lies in" if folder.exists() else "does not exist; give the folder to read"
        raise UsageError(f"The source {folder} {what}.")
    for own in (where.table, where.quarantine, where.state):
        if folder == own:
            raise UsageError(
                f"The source {folder} is a folder that Penstock writes itself; give another table or source."
            )
        if own in folder.parents:
            raise UsageError(f"The source {folder} lies in {own}, which Penstock writes itself; give another folder.")
    return folder


def _scan(source: Path, where: Places, stop: StopSignal) -> _Scan:
    scanner = Scanner(source, store=LocalStore(source), excluded=(where.table, where.quarantine, where.state))
    objects: list[ObjectRef] = []
    for chunk in scanner.chunks():
        objects.extend(chunk)
        if stop.requested:
            return _Scan(objects=objects, report=scanner.report(), complete=False)
    return _Scan(objects=objects, report=scanner.report(), complete=True)


def _report(
    where: Places,
    state: State,
    tables: Tables,
    goal: Goal,
    scan: _Scan,
    tally: Tally,
    *,
    asked_to_stop: bool,
    seconds: float,
) -> IngestReport:
    states = goal.states()
    count = Counter(states.values())
    unfinished = count[ObjectState.UNPROCESSED] + count[ObjectState.PROCESSING]
    skipped = sum(1 for before in goal.before.values() if before is ObjectState.PROCESSED)
    pipeline = state.ledger.pipeline(where.pipeline)
    return IngestReport(
        objects_found=len(scan.objects),
        objects_processed=count[ObjectState.PROCESSED] - skipped,
        objects_skipped=skipped,
        objects_dead=count[ObjectState.DEAD],
        objects_gone=count[ObjectState.GONE],
        objects_superseded=count[ObjectState.SUPERSEDED],
        objects_unfinished=unfinished,
        objects_new_versions=state.ledger.other_versions(where.pipeline, list(states)),
        files_ignored={str(reason): number for reason, number in scan.report.ignored.items()},
        rows_written=tally.rows,
        lines_quarantined=tally.lines_quarantined,
        batches=tally.batches,
        seconds=round(seconds, 3),
        table=str(where.table),
        table_version=tables.version(),
        quarantine_table=str(where.quarantine) if tables.has_quarantine() else None,
        schema=pipeline.source_schema if pipeline else None,
        stopped=asked_to_stop and (bool(unfinished) or not scan.complete or tables.unpublished() > 0),
        problems=tuple(scan.report.problems),
    )
