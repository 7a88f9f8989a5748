"""Check the final state of a schedule: table, files, queue and ledger, from outside."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.fakes import POISON, WITH_ROWS, FakeTable, Kind, SimulatedObject, missing_files
from tests.simulation.harness import ATTEMPTS_MAX, QUEUE, Schedule, Violation

from penstock.ledger.records import ObjectRow, ObjectState

ENDS = {
    **dict.fromkeys(WITH_ROWS, ObjectState.PROCESSED),
    **dict.fromkeys(POISON, ObjectState.DEAD),
    Kind.GONE: ObjectState.DELETED,
    Kind.SUPERSEDED: ObjectState.SUPERSEDED,
}
UNCONTROLLED = frozenset({"expired", "worker_died"})  # ends of an attempt that count, whatever their cause
FINAL = frozenset({"dead", "gone", "superseded"})  # ends that a later message may revoke


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """The expected end of an object, and the ends of its attempts by the ledger's timeline."""

    obj: SimulatedObject
    row: ObjectRow
    ends: Sequence[str]

    @property
    def unlucky(self) -> bool:
        """True if crashes had used up its attempts before its one bad read, which was then the last. A crash counts."""
        spent = sum(end in UNCONTROLLED for end in self.ends)
        return self.obj.kind is Kind.FLAKY and "dead" in self.ends and spent >= ATTEMPTS_MAX - 1

    @property
    def last_life(self) -> Sequence[str]:
        """The ends since a message last revived it; all of them if none did."""
        ended = [n for n, end in enumerate(self.ends[:-1], start=1) if end in FINAL]
        return self.ends[ended[-1] if ended else 0 :]

    @property
    def must_be(self) -> ObjectState:
        revived = self.ends[-1] != "dead"  # by a message sent after the failure
        return ObjectState.DEAD if self.unlucky and not revived else ENDS[self.obj.kind]

    @property
    def with_rows(self) -> bool:
        return self.must_be is ObjectState.PROCESSED


def judge(schedule: Schedule) -> None:
    """Raise `Violation` with the first check that fails."""
    rows = schedule.ledger.objects(schedule.pipeline)
    demand({row.key.decode() for row in rows} == set(schedule.world.objects), "the ledger does not have every object")
    fates = [_fate(schedule, row) for row in rows]
    for fate in fates:
        _check_end(fate)
    _check_rows(schedule, [fate.obj for fate in fates if fate.with_rows])
    for table in (schedule.rows, schedule.quarantine):
        _check_table(schedule, table)
    _check_batches(schedule)
    _check_dead_letters(schedule, fates)


def _fate(schedule: Schedule, row: ObjectRow) -> Fate:
    ends = [attempt.outcome for attempt in schedule.ledger.attempts_of(schedule.pipeline, row.object_id)]
    return Fate(obj=schedule.world.objects[row.key.decode()], row=row, ends=ends)


def demand(true: bool, sentence: str) -> None:
    if not true:
        raise Violation(sentence)


def _check_rows(schedule: Schedule, objects: Sequence[SimulatedObject]) -> None:
    rows = Counter(f"{obj.ref.key} {n}" for obj in objects for n in range(obj.rows))
    lines = Counter(f"{obj.ref.key} bad" for obj in objects if obj.kind is Kind.LINES)
    demand(Counter(schedule.rows.rows()) == rows, f"rows: {schedule.rows.rows()} instead of {dict(rows)}")
    demand(Counter(schedule.quarantine.rows()) == lines, f"quarantine: {schedule.quarantine.rows()}, not {dict(lines)}")


def _check_table(schedule: Schedule, table: FakeTable) -> None:
    demand(not missing_files(table), f"the table names missing files: {missing_files(table)}")
    abandoned = set(schedule.ledger.abandoned_attempts(schedule.pipeline))
    demand(not abandoned & set(table.attempts), "the table showed files of an abandoned attempt")
    for attempt_id in abandoned:
        left = list((table.root / "data" / attempt_id).rglob("*.parquet"))
        demand(not left, f"gc left {left}")


def _check_batches(schedule: Schedule) -> None:
    batches = schedule.ledger.batches(schedule.pipeline)
    demand([batch.seq for batch in batches] == list(range(1, len(batches) + 1)), "sequences have gaps")
    for table, manifests in (
        (schedule.rows, [batch.record.manifest for batch in batches]),
        (schedule.quarantine, [batch.record.quarantine_manifest for batch in batches]),
    ):
        named = [file["path"].split("/")[1] for manifest in manifests if manifest for file in json.loads(manifest)]
        demand(table.attempts == named, "files became visible in another order than the batches, or not all")


def _check_end(fate: Fate) -> None:
    """Check that crashes and failures count, releases and infrastructure faults do not, and no object fails early."""
    key, attempts = fate.obj.ref.key, fate.row.attempts
    demand(fate.row.state is fate.must_be, f"{key} is {fate.obj.kind} and ended {fate.row.state}")
    uncontrolled = sum(end in UNCONTROLLED for end in fate.last_life)  # a revived object begins with no attempts
    least, most = 1 + uncontrolled, 1 + fate.obj.counted_attempts + sum(end in UNCONTROLLED for end in fate.ends)
    expected = f"{least} to {most} are expected"
    demand(least <= attempts <= most, f"{key} has {attempts} counted attempts, {expected}: {fate.ends}")
    if fate.must_be is ObjectState.DEAD:
        demand(attempts >= ATTEMPTS_MAX, f"{key} is dead after {attempts} attempts")


def _check_dead_letters(schedule: Schedule, fates: Sequence[Fate]) -> None:
    """Check one dead letter per failure, and more failures than one only if a later message asked for a retry."""
    dead_letters = schedule.broker.browse(f"{QUEUE}-dlq", messages_max=100)
    deaths = sum(fate.ends.count("dead") for fate in fates)
    poison = {fate.obj.ref.key for fate in fates if fate.must_be is ObjectState.DEAD or fate.unlucky}
    named: set[str] = set()
    invalid = 0
    for dead_letter in dead_letters:
        try:
            keys = {record["s3"]["object"]["key"] for record in json.loads(dead_letter.body)["Records"]}
        except ValueError:
            invalid += 1
            continue
        demand(bool(keys & poison), f"a dead letter without poison: {keys}")
        named |= keys & poison
    # A revived object no longer needs its dead letter: an original message that is redelivered later is acked.
    lasting = {fate.obj.ref.key for fate in fates if fate.must_be is ObjectState.DEAD}
    demand(lasting <= named <= poison, f"dead letters name {named}, the poison is {poison}, {lasting} of it lasting")
    demand(invalid == schedule.invalid, f"{invalid} of {schedule.invalid} unreadable messages are dead letters")
    ids = Counter(dead_letter.id for dead_letter in dead_letters)
    demand(max(ids.values(), default=0) <= 1, "a message is a dead letter twice")
    demand(len(dead_letters) - invalid <= deaths, f"{len(dead_letters) - invalid} dead letters for {deaths} failures")
