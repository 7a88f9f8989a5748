"""What must be true when a schedule has come to rest. Looks at table, files, queue and ledger from outside."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

from tests.simulation.fakes import POISON, WITH_ROWS, FakeTable, Kind, Thing, missing_files
from tests.simulation.harness import ATTEMPTS_MAX, QUEUE, Play, Violation

from penstock.ledger.records import ObjectRow, ObjectState

ENDS = {
    **dict.fromkeys(WITH_ROWS, ObjectState.PROCESSED),
    **dict.fromkeys(POISON, ObjectState.DEAD),
    Kind.GONE: ObjectState.GONE,
    Kind.SUPERSEDED: ObjectState.SUPERSEDED,
}
UNCONTROLLED = frozenset({"expired", "worker_died"})  # ends of an attempt that count, whoever was at fault


def judge(play: Play) -> None:
    """Raises `Violation` with the first sentence that is not true."""
    _rows_once(play)
    for table in (play.rows, play.quarantine):
        _table_sound(play, table)
    _batches_in_order(play)
    rows = play.ledger.objects(play.pipeline)
    ends = {
        row.key.decode(): [attempt.outcome for attempt in play.ledger.attempts_of(play.pipeline, row.object_id)]
        for row in rows
    }
    _objects_ended(play, rows, ends)
    _dead_letters_hold_the_poison(play, deaths=sum(outcomes.count("dead") for outcomes in ends.values()))


def demand(true: bool, sentence: str) -> None:
    if not true:
        raise Violation(sentence)


def _rows_once(play: Play) -> None:
    things = [thing for thing in play.world.things.values() if thing.kind in WITH_ROWS]
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
        (play.rows, [batch.manifest for batch in batches]),
        (play.quarantine, [batch.quarantine_manifest for batch in batches]),
    ):
        named = [file["path"].split("/")[1] for manifest in manifests if manifest for file in json.loads(manifest)]
        demand(table.attempts == named, "files became visible in another order than the batches have, or not all")


def _objects_ended(play: Play, rows: Sequence[ObjectRow], ends: Mapping[str, list[str]]) -> None:
    objects = {row.key.decode(): row for row in rows}
    demand(set(objects) == set(play.world.things), "the ledger does not know every object")
    for key, row in objects.items():
        thing = play.world.things[key]
        demand(row.state is ENDS[thing.kind], f"{key} is {thing.kind} and ended {row.state}")
        _charged_fairly(thing, row.attempts, ends[key])


def _charged_fairly(thing: Thing, attempts: int, ends: list[str]) -> None:
    """Crashes and failures count, being given back and faults of the machinery do not; nobody dies early."""
    uncontrolled = sum(end in UNCONTROLLED for end in ends)
    most = 1 + thing.charges + uncontrolled
    revived = ends.count("dead") > 1  # its attempts began anew
    least = 1 if revived else 1 + uncontrolled
    fair = f"{least} to {most} are fair"
    demand(least <= attempts <= most, f"{thing.ref.key} was charged {attempts} attempts, {fair}: {ends}")
    if thing.kind in POISON:
        demand(attempts >= ATTEMPTS_MAX, f"{thing.ref.key} is dead after {attempts} attempts")


def _dead_letters_hold_the_poison(play: Play, *, deaths: int) -> None:
    """A letter a death, and more than one death only where a message sent later asked for another try."""
    letters = play.broker.browse(f"{QUEUE}-dlq", messages_max=100)
    poison = {key for key, thing in play.world.things.items() if thing.kind in POISON}
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
    demand(named == poison, f"dead letters name {named}, the poison is {poison}")
    demand(invalid == play.invalid, f"{invalid} of {play.invalid} unreadable messages are dead letters")
    ids = Counter(letter.id for letter in letters)
    demand(max(ids.values(), default=0) <= 1, "a message is a dead letter twice")
    demand(len(letters) - invalid <= deaths, f"{len(letters) - invalid} letters for {deaths} deaths")
