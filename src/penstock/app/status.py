"""Is anything late, unpublished or dead? Read from the state and the table, without working on either."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.app.inspect import view
from penstock.app.places import Places
from penstock.app.tables import Tables
from penstock.events import Bus
from penstock.ledger.records import ObjectState


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How a pipeline stands now. Messages are those of all its sources."""

    table: str
    table_version: int | None
    objects: Mapping[ObjectState, int]
    batches_committed: int
    batches_unpublished: int
    messages_visible: int
    messages_in_flight: int
    messages_delayed: int
    dead_letters: int
    workers: Sequence[str]

    @property
    def verdict(self) -> str:
        """One line: what needs a person, the worst first."""
        left = self.objects.get(ObjectState.UNPROCESSED, 0) + self.objects.get(ObjectState.PROCESSING, 0)
        troubles = []
        if left and not self.workers:
            troubles.append(f"{left:,} objects wait and no worker runs")
        if self.batches_unpublished and not self.workers:
            troubles.append(f"{self.batches_unpublished:,} batches are committed and not published")
        if dead := self.objects.get(ObjectState.DEAD, 0):
            troubles.append(f"{dead:,} objects are dead")
        if self.dead_letters:
            troubles.append(f"{self.dead_letters:,} dead letters")
        if troubles:
            return "; ".join(troubles)
        return "at work" if left else "all well"


def standing(places: Places) -> Standing:
    """Look at the pipeline of these places."""
    with view(places) as seen:
        tables = Tables(places, seen.ledger, partition_by=None, bus=Bus())
        row = seen.ledger.pipeline(places.pipeline)
        letters = set(seen.dead_letter_queues())
        stats = [seen.broker.stats(queue) for queue in seen.broker.queue_names() if queue not in letters]
        return Standing(
            table=str(places.table),
            table_version=tables.version(),
            objects=seen.ledger.counts(places.pipeline),
            batches_committed=row.next_seq - 1 if row else 0,
            batches_unpublished=tables.unpublished(),
            messages_visible=sum(stat.visible for stat in stats),
            messages_in_flight=sum(stat.in_flight for stat in stats),
            messages_delayed=sum(stat.delayed for stat in stats),
            dead_letters=sum(seen.broker.stats(queue).visible for queue in letters),
            workers=seen.living_workers(),
        )
