"""Is anything late, unpublished or dead? Read from the state and the table, without working on either."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.app.inspect import view
from penstock.app.places import Places
from penstock.app.tables import Tables
from penstock.events import Bus
from penstock.ledger.records import TERMINAL, ObjectState


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
    oldest_visible_message_age_seconds: float | None  # None where no message is visible
    dead_letters: int
    workers: Sequence[str]

    @property
    def verdict(self) -> str:
        """One line: what needs a person, the worst first."""
        if self.troubles:
            return "; ".join(self.troubles)
        return "at work" if self.objects_left or self.batches_unpublished else "all well"

    @property
    def troubles(self) -> Sequence[str]:
        """What needs a person. Unfinished things are none while a worker is there to finish them."""
        dead = self.objects.get(ObjectState.DEAD, 0)
        found = []
        if not self.workers:
            messages = self.messages_visible + self.messages_in_flight + self.messages_delayed
            if self.objects_left:
                found.append(f"objects waiting with no worker running: {self.objects_left:,}")
            elif messages:
                found.append(f"messages waiting with no worker running: {messages:,}")
            if self.batches_unpublished:
                found.append(f"batches committed and not yet published: {self.batches_unpublished:,}")
        if dead:
            found.append(f"dead objects: {dead:,}")
        if self.dead_letters:
            found.append(f"dead letters: {self.dead_letters:,}")
        return found

    @property
    def objects_left(self) -> int:
        """Objects that are not in a terminal state."""
        return sum(number for state, number in self.objects.items() if state not in TERMINAL)


def standing(places: Places) -> Standing:
    """Look at the pipeline of these places."""
    with view(places) as seen:
        tables = Tables(places, seen.ledger, partition_by=None, bus=Bus())
        row = seen.ledger.pipeline(places.pipeline)
        letters = set(seen.dead_letter_queues())
        stats = [seen.broker.stats(queue) for queue in seen.broker.queue_names() if queue not in letters]
        ages = [age for stat in stats if (age := stat.oldest_visible_message_age_seconds) is not None]
        return Standing(
            table=str(places.table),
            table_version=tables.version(),
            objects=seen.ledger.counts(places.pipeline),
            batches_committed=row.next_seq - 1 if row else 0,
            batches_unpublished=tables.unpublished(),
            messages_visible=sum(stat.visible for stat in stats),
            messages_in_flight=sum(stat.in_flight for stat in stats),
            messages_delayed=sum(stat.delayed for stat in stats),
            oldest_visible_message_age_seconds=max(ages, default=None),
            dead_letters=sum(seen.broker.stats(queue).visible for queue in letters),
            workers=seen.living_workers(),
        )
