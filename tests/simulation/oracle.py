"""Check the end of a schedule: table, files, queue and ledger, from outside."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.simulation.fakes import POISON, WITH_ROWS, FakeTable, Kind, Thing, missing_files
from tests.simulation.harness import ATTEMPTS_MAX, QUEUE, Play, Violation

from penstock.ledger.records import ObjectRow, ObjectState

ENDS = {
    **dict.fromkeys(WITH_ROWS, ObjectState.PROCESSED),
    **dict.fromkeys(POISON, ObjectState.DEAD),
    Kind.GONE: ObjectState.DELETED,
    Kind.SUPERSEDED: ObjectState.SUPERSEDED,
}
UNCONTROLLED = frozenset({"expired", "worker_died"})  # ends of an attempt that count, whoever was at fault
FINAL = frozenset({"dead", "gone", "superseded"})  # ends that a message sent later may revoke


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """How an object may end, and how its attempts ended, by the ledger's timeline."""

    thing: Thing
    row: ObjectRow
    ends: Sequence[str]

    @property
    def unlucky(self) -> bool:
        """Crashes had used up its attempts before its one bad read, which was its last then. A crash counts."""
        spent = sum(end in UNCONTROLLED for end in self.ends)
        return self.thing.kind is Kind.FLAKY and "dead" in self.ends and spent >= ATTEMPTS_MAX - 1

    @property
    def last_life(self) -> Sequence[str]:
        """The ends since a message last gave it another life; all of them where none did."""
        ended = [n for n, end in enumerate(self.ends[:-1], start=1) if end in FINAL]
        return self.ends[ended[-1] if ended else 0 :]

    @property
    def must_be(self) -> ObjectState:
        revived = self.ends[-1] != "dead"  # by a message that was sent after the death
        return ObjectState.DEAD if self.unlucky and not revived else ENDS[self.thing.kind]

    @property
    def with_rows(self) -> bool:
        return self.must_be is ObjectState.PROCESSED


def judge(play: Play) -> None:
    """Raises `Violation` with the first sentence that is not true."""
    rows = play.ledger.objects(play.pipeline)
    demand({row.key.decode() for row in rows} == set(play.world.things), "the ledger does not know every object")
    fates = [_fate(play, row) for row in rows]
    for fate in fates:
        _ended_well(fate)
    _rows_once(play, [fate.thing for fate in fates if fate.with_rows])
    for table in (play.rows, play.quarantine):
        _table_sound(play, table)
    _batches_in_order(play)
    _dead_letters_hold_the_poison(play, fates)


def _fate(play: Play, row: ObjectRow) -> Fate:
    ends = [attempt.outcome for attempt in play.ledger.attempts_of(play.pipeline, row.object_id)]
    return Fate(thing=play.world.things[row.key.decode()], row=row, ends=ends)


def demand(true: bool, sentence: str) -> None:
    if not true:
        raise Violation(sentence)


def _rows_once(play: Play, things: Sequence[Thing]) -> None:
    rows = Counter(f"{thing.ref.key} {n}" for thing in things for n in range(thing.rows))
    lines = Counter(f"{thing.ref.key} bad" for thing in things if thing.kind is Kind.LINES)
    demand(Counter(play.rows.rows()) == rows, f"rows: {play.rows.rows()} instead of {dict(rows)}")
    demand(Counter(play.quarantine.rows()) == lines, f"quarantine: {play.quarantine.rows()}, not {dict(lines)}")


def _table_sound(play: Play, table: FakeTable) -> None:
    demand(not missing_files(table), f"the table names missing files: {missing_files(table)}")
    abandoned = set(play.ledger.abandoned_attempts(play.pipeline))
    demand(not abandoned & set(table.attempts), "the table showed files of an abandoned attempt")
    for attempt_id in abandoned:
        left = list((table.root / "data" / attempt_id).rglob("*.parquet"))
        demand(not left, f"gc left {left}")


def _batches_in_order(play: Play) -> None:
    batches = play.ledger.batches(play.pipeline)
    demand([batch.seq for batch in batches] == list(range(1, len(batches) + 1)), "sequences have gaps")
    for table, manifests in (
        (play.rows, [batch.record.manifest for batch in batches]),
        (play.quarantine, [batch.record.quarantine_manifest for batch in batches]),
    ):
        named = [file["path"].split("/")[1] for manifest in manifests if manifest for file in json.loads(manifest)]
        demand(table.attempts == named, "files became visible in another order than the batches have, or not all")


def _ended_well(fate: Fate) -> None:
    """Crashes and failures count, being given back and faults of the machinery do not; nobody dies early."""
    key, attempts = fate.thing.ref.key, fate.row.attempts
    demand(fate.row.state is fate.must_be, f"{key} is {fate.thing.kind} and ended {fate.row.state}")
    uncontrolled = sum(end in UNCONTROLLED for end in fate.last_life)  # a life begins with no attempts
    least, most = 1 + uncontrolled, 1 + fate.thing.charges + sum(end in UNCONTROLLED for end in fate.ends)
    fair = f"{least} to {most} are fair"
    demand(least <= attempts <= most, f"{key} was charged {attempts} attempts, {fair}: {fate.ends}")
    if fate.must_be is ObjectState.DEAD:
        demand(attempts >= ATTEMPTS_MAX, f"{key} is dead after {attempts} attempts")


def _dead_letters_hold_the_poison(play: Play, fates: Sequence[Fate]) -> None:
    """Check one dead letter per failure, and more failures than one only if a later message asked for a retry."""
    letters = play.broker.browse(f"{QUEUE}-dlq", messages_max=100)
    deaths = sum(fate.ends.count("dead") for fate in fates)
    poison = {fate.thing.ref.key for fate in fates if fate.must_be is ObjectState.DEAD or fate.unlucky}
    named: set[str] = set()
    invalid = 0
    for letter in letters:
        try:
            keys = {record["s3"]["object"]["key"] for record in json.loads(letter.body)["Records"]}
        except ValueError:
            invalid += 1
            continue
        demand(bool(keys & poison), f"a dead letter without poison: {keys}")
        named |= keys & poison
    # One that died and was revived needs no letter any more: where its carrier comes again after that, it is acked.
    lasting = {fate.thing.ref.key for fate in fates if fate.must_be is ObjectState.DEAD}
    demand(lasting <= named <= poison, f"dead letters name {named}, the poison is {poison}, {lasting} of it lasting")
    demand(invalid == play.invalid, f"{invalid} of {play.invalid} unreadable messages are dead letters")
    ids = Counter(letter.id for letter in letters)
    demand(max(ids.values(), default=0) <= 1, "a message is a dead letter twice")
    demand(len(letters) - invalid <= deaths, f"{len(letters) - invalid} letters for {deaths} deaths")
