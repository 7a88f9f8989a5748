"""Is anything late, unpublished or dead? Read from the state and the tables, without working on either."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.app.backends import has_workers_elsewhere
from penstock.app.dead_letters import letters_of_queue
from penstock.app.inspect import View, view
from penstock.app.places import Places
from penstock.app.queues import QueueStanding, messages_in, standings, tiers
from penstock.app.scope import Scope
from penstock.errors import PublishHalted
from penstock.events import Bus
from penstock.ledger.records import TERMINAL, ObjectState
from penstock.messaging.broker import names_dead_letters, names_second_tier
from penstock.replay.filters import Wanted

if TYPE_CHECKING:
    from penstock.app.tables import Tables
    from penstock.ledger.reconciliations import Reconciliation


UNNAMED = "no queue is named, so none was looked at: give --app, such as --app shop:app, or set queues"


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStanding:
    """How one pipeline stands now. Whether batches are visible is known where the table's folder is."""

    pipeline: str
    objects: Mapping[ObjectState, int]
    objects_replaced: int  # dead ones of which a later version was processed since
    batches_committed: int
    batches_unpublished: int | None
    table: str | None
    table_version: int | None
    disagreement: str | None  # why table and ledger are not of one history
    reconciled: "Reconciliation | None" = None  # the latest one


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How everything in a scope stands now, summed up. Messages are those of all queues but the dead letters'."""

    table: str | None  # None: an app's state
    table_version: int | None
    objects: Mapping[ObjectState, int]
    batches_committed: int
    batches_unpublished: int | None  # None: there is a pipeline whose table's folder is not known
    messages_visible: int
    messages_in_flight: int
    messages_delayed: int
    oldest_visible_message_age_seconds: float | None  # None where no message is visible
    dead_letters: int  # of both tiers, also those that wait for their replay
    workers: Sequence[str]
    objects_replaced: int = 0
    dead_letters_replaced: int = 0  # letters of those objects
    dead_letters_set_aside: int = 0  # those of the second tier, which nothing brings back by itself
    messages_unserved: int = 0  # in queues that no living worker serves, while some are there
    workers_elsewhere: bool = False  # there may be some on other hosts, which cannot be seen from here
    queues_unnamed: bool = False  # the broker has also strangers' queues, and nobody said which are ours: none counts
    disagreements: Sequence[str] = ()
    queues: Sequence[QueueStanding] = ()  # without those of dead letters
    pipelines: Sequence[PipelineStanding] = ()

    @property
    def verdict(self) -> str:
        """One line: what needs a person, the worst first."""
        return f"{self._verdict}; {UNNAMED}" if self.queues_unnamed else self._verdict

    @property
    def troubles(self) -> Sequence[str]:
        """What needs a person. Unfinished things are none while a worker is there to finish them, or may be on another
        host; the dead are none once a later version of the object was processed."""
        found = [f"table and ledger disagree: {why}" for why in self.disagreements]
        if not self.workers and not self.workers_elsewhere:
            found += self._waiting
        found += [
            f"{one.queue} is paused by its breaker: {one.breaker}" for one in self.queues if one.breaker is not None
        ]
        if self.messages_unserved:
            found.append(f"messages in queues that no worker serves: {self.messages_unserved:,}")
        if dead := self.objects.get(ObjectState.DEAD, 0) - self.objects_replaced:
            found.append(f"dead objects: {dead:,}")
        if letters := self.dead_letters - self.dead_letters_replaced:
            aside = self.dead_letters_set_aside
            found.append(f"dead letters: {letters:,}" + (f", {aside:,} of them set aside for people" if aside else ""))
        if self.objects_missing:
            found.append(f"objects missing at the latest reconcile: {self.objects_missing:,}")
        return found

    @property
    def objects_missing(self) -> int:
        """Objects that the latest reconcile of each pipeline found to be there and never processed."""
        return sum(one.reconciled.missing for one in self.pipelines if one.reconciled is not None)

    @property
    def objects_left(self) -> int:
        """Objects that are not in a terminal state."""
        return sum(number for state, number in self.objects.items() if state not in TERMINAL)

    @property
    def _verdict(self) -> str:
        if self.troubles:
            return "; ".join(self.troubles)
        if self.workers_elsewhere and not self.workers and self._messages:
            return f"messages waiting or in work: {self._messages:,}; workers of other hosts cannot be seen from here"
        return "at work" if self.objects_left or self.batches_unpublished else "all well"

    @property
    def _messages(self) -> int:
        return self.messages_visible + self.messages_in_flight + self.messages_delayed

    @property
    def _waiting(self) -> Sequence[str]:
        found = []
        if self.objects_left:
            found.append(f"objects waiting with no worker running: {self.objects_left:,}")
        elif self._messages:
            found.append(f"messages waiting with no worker running: {self._messages:,}")
        if self.batches_unpublished:
            found.append(f"batches committed and not yet published: {self.batches_unpublished:,}")
        return found


def standing(scope: Scope) -> Standing:
    """Look at everything in the scope."""
    with view(scope) as seen:
        silent = seen.workers.silent()  # they may fetch from any queue
        workers = sorted({*silent, *(record.worker for record in seen.workers.records())})
        dead = {pipeline: _dead(seen, pipeline) for pipeline in seen.pipelines()}
        pipelines = [_pipeline(seen, pipeline, dead[pipeline].replaced) for pipeline in dead]
        letters_replaced = _letters_replaced(seen, dead.values())
        every = standings(scope.settings, seen.broker, seen.queues)
        letters, set_aside = _dead_letters(seen, every)
        unnamed = seen.queues is not None and not seen.queues
    queues = [one for one in every if not names_dead_letters(one.queue)]
    elsewhere = has_workers_elsewhere(scope.settings)
    ages = [age for one in queues if (age := one.oldest_visible_message_age_seconds) is not None]
    return Standing(
        table=None if scope.table is None else str(scope.table.table),
        table_version=None if scope.table is None else pipelines[0].table_version,
        objects={state: sum(one.objects[state] for one in pipelines) for state in ObjectState},
        batches_committed=sum(one.batches_committed for one in pipelines),
        batches_unpublished=_summed([one.batches_unpublished for one in pipelines]),
        messages_visible=sum(one.visible for one in queues),
        messages_in_flight=sum(one.in_flight for one in queues),
        messages_delayed=sum(one.delayed for one in queues),
        oldest_visible_message_age_seconds=max(ages, default=None),
        dead_letters=letters,
        workers=workers,
        objects_replaced=sum(one.objects_replaced for one in pipelines),
        dead_letters_replaced=letters_replaced,
        dead_letters_set_aside=set_aside,
        messages_unserved=_unserved(queues) if workers and not silent and not elsewhere else 0,
        workers_elsewhere=elsewhere,
        queues_unnamed=unnamed,
        disagreements=[one.disagreement for one in pipelines if one.disagreement is not None],
        queues=queues,
        pipelines=pipelines,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dead:
    """The dead objects of a pipeline, and the ids of the messages that named them."""

    replaced: int
    carriers_of_replaced: set[str]
    carriers_of_others: set[str]


def _dead(seen: View, pipeline: str) -> _Dead:
    replaced, others, count = set[str](), set[str](), 0
    for one in seen.dead_objects(pipeline):
        count += one.replaced
        if one.row.carrier is not None:
            (replaced if one.replaced else others).add(one.row.carrier.message_id)
    return _Dead(replaced=count, carriers_of_replaced=replaced, carriers_of_others=others)


def _pipeline(seen: View, pipeline: str, objects_replaced: int) -> PipelineStanding:
    row = seen.ledger.pipeline(pipeline)
    committed = row.next_seq - 1 if row else 0
    where = seen.scope.tables.get(pipeline)
    tables = None if where is None else _tables(seen, where)
    unpublished = 0 if committed == 0 or pipeline in seen.scope.tableless else None
    return PipelineStanding(
        pipeline=pipeline,
        objects=seen.ledger.counts(pipeline),
        objects_replaced=objects_replaced,
        batches_committed=committed,
        batches_unpublished=unpublished if tables is None else tables.unpublished(),
        table=None if where is None else str(where.table),
        table_version=None if tables is None else tables.version(),
        disagreement=None if tables is None else _disagreement(seen, pipeline, tables, committed),
        reconciled=seen.ledger.reconciliation(pipeline),
    )


def _tables(seen: View, where: Places) -> "Tables":
    """Only what lies in tables needs the packages of the extra. Raises `ConfigurationError` where they are missing."""
    from penstock.pipeline.extra import require_spark

    require_spark()
    from penstock.app.tables import Tables

    return Tables(where, seen.ledger, partition_by=None, bus=Bus())


def _disagreement(seen: View, pipeline: str, tables: "Tables", committed: int) -> str | None:
    """Why the next publish would halt; or that there is a table of which the ledger knows nothing at all."""
    from penstock.pipeline.publish import check_tip

    try:
        for sink in (tables.rows, tables.quarantine):
            check_tip(seen.ledger, sink.load(), pipeline=pipeline, where=sink.uri)
    except PublishHalted as halted:
        return str(halted)
    if committed == 0 and (version := tables.version()) is not None:
        return (
            f"the table {tables.rows.uri} has version {version}, and its ledger committed "
            "nothing to it: either another ledger is its own (--state), or it was there before the first batch"
        )
    return None


def _letters_replaced(seen: View, dead: Iterable[_Dead]) -> int:
    """How many letters are about nothing but objects of which a later version was processed.

    0 where the broker cannot show them.
    """
    if not seen.broker.capabilities.browsable:
        return 0
    carriers, others = set[str](), set[str]()
    for one in dead:
        carriers |= one.carriers_of_replaced
        others |= one.carriers_of_others
    if not (carriers := carriers - others):
        return 0
    letters = (
        letter
        for queue in seen.broker.queue_names()
        if names_dead_letters(queue)
        for letter in letters_of_queue(seen.broker, queue, Wanted())
    )
    return sum(letter.death is not None and letter.death.message_id in carriers for letter in letters)


def _dead_letters(seen: View, every: Sequence[QueueStanding]) -> tuple[int, int]:
    """How many are in the queues that hold such, and in those of the second tier; among the queues of strangers, of the
    scope's. A queue that several share counts once."""
    if seen.queues is None:
        names = {one.queue for one in every if names_dead_letters(one.queue)}
        second = {name for name in names if names_second_tier(name)}
    else:
        named = [(name,) * 2 if names_dead_letters(name) else tiers(seen.broker, name) for name in seen.queues]
        names = {name for pair in named for name in pair}
        second = {name for pair in named for name in pair[1:] if pair[0] != name or names_second_tier(name)}
    counts = {name: messages_in(seen.broker, name) for name in names}
    return sum(counts.values()), sum(counts[name] for name in second)


def _unserved(queues: Sequence[QueueStanding]) -> int:
    return sum(one.visible + one.in_flight + one.delayed for one in queues if not one.workers)


def _summed(numbers: Sequence[int | None]) -> int | None:
    return None if None in numbers else sum(number for number in numbers if number is not None)
