"""Looking at a state without working on it: nothing here claims, sends or settles."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from penstock.app.backends import SQLITE, open_broker, open_ledger
from penstock.app.queues import check_shared
from penstock.app.registry import Workers
from penstock.app.scope import Scope, is_there
from penstock.app.state import check_owner
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectRow, ObjectState
from penstock.messaging.broker import Broker, dead_letter_names, listed_name, names_dead_letters
from penstock.replay.letters import Letter

PAGE = 1_000  # objects, or messages, looked at in one go


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadObject:
    """An object that was given up on; ``replaced``: a later version of it was processed since."""

    pipeline: str
    row: ObjectRow
    replaced: bool


class View:
    """A scope, looked at. Ledger and broker are opened when first asked for; one that nobody made yet is an empty one
    in memory, since looking makes nothing."""

    def __init__(self, scope: Scope, closing: ExitStack) -> None:
        self.scope = scope
        self._closing = closing

    @cached_property
    def ledger(self) -> Ledger:
        settings = self.scope.settings
        ledger = open_ledger(settings) if is_there(settings.ledger) else Ledger.open("sqlite://")
        self._closing.callback(ledger.close)
        return ledger

    @cached_property
    def broker(self) -> Broker:
        """Raises `ConfigurationError` for a broker that only lives inside a process."""
        settings = self.scope.settings
        check_shared(settings)
        if settings.broker.startswith(SQLITE) and not is_there(settings.broker):
            from penstock.brokers.memory import MemoryBroker

            broker: Broker = MemoryBroker()
        else:
            broker = open_broker(settings, holder="")
        self._closing.callback(broker.close)
        return broker

    @property
    def several(self) -> bool:
        """Whether rows have to say whose they are."""
        return self.scope.pipeline is None

    def pipelines(self) -> Sequence[str]:
        """The ids of those that are meant. Raises `UsageError` for one that neither ledger nor app knows."""
        meant = self.scope.pipeline
        if meant is None:
            return [row.id for row in self.ledger.pipelines()]
        if meant not in self.scope.tables and self.ledger.pipeline(meant) is None:
            known = ", ".join(row.id for row in self.ledger.pipelines()) or "none"
            raise UsageError(f"The ledger {self.scope.name} knows no pipeline {meant}; its pipelines: {known}.")
        return [meant]

    @property
    def workers(self) -> Workers:
        """Those of the state folder."""
        return Workers(Path(self.scope.settings.state))

    @property
    def queues(self) -> Sequence[str] | None:
        """Those of the scope on a broker that has also queues of strangers; None: all that the broker knows of."""
        return None if self.broker.capabilities.creates_queues else self.scope.queues

    def dead_letter_queues(self, queue: str | None = None) -> Sequence[str]:
        """The queues whose names say that they hold dead letters; those of one queue alone, if named.

        Raises `UsageError` for a queue that the broker does not know of.
        """
        if queue is None and self.queues:
            return [name if names_dead_letters(name) else dead_letter_names(name)[0] for name in self.queues]
        known = self.broker.queue_names()
        letters = [name for name in known if names_dead_letters(name)]
        if queue is None:
            return letters
        queue = listed_name(queue)
        names = {queue, *dead_letter_names(queue)}
        if not names & set(known):
            raise UsageError(f"There is no queue {queue}; queues there are: {', '.join(known) or 'none'}.")
        return [name for name in letters if name in names]

    def letters(self, queue: str) -> Iterator[Letter]:
        """The dead letters in a queue that holds such, oldest first. Raises `ConfigurationError` where there are some
        and the broker cannot show them."""
        if not self.broker.capabilities.browsable and not self.broker.stats(queue).visible:
            return
        after: str | None = None
        while page := self.broker.browse(queue, messages_max=PAGE, after_id=after):
            for message in page:
                yield Letter(queue=queue, message=message)
            after = page[-1].id

    def dead_objects(self, pipeline: str) -> Iterator[DeadObject]:
        """The dead objects of a pipeline, by id."""
        after: bytes | None = None
        while page := self.ledger.objects(pipeline, state=ObjectState.DEAD, limit=PAGE, after=after):
            changed = self.ledger.other_versions(pipeline, {row.object_id for row in page}) > 0
            for row in page:
                yield DeadObject(pipeline=pipeline, row=row, replaced=changed and self._is_replaced(pipeline, row))
            after = page[-1].object_id

    def _is_replaced(self, pipeline: str, dead: ObjectRow) -> bool:
        """Whether a later version was processed; one that is archived counts where its file can be read."""
        versions = [*self.ledger.find(dead.uri)]
        if self.ledger.archives.count(pipeline):
            from penstock.app.archive_reading import find_archived

            archived = find_archived(self.ledger, dead.uri, self.scope.aws)
            versions += [(one.pipeline, one.retired.row) for one in archived if one.retired is not None]
        return any(
            row.state is ObjectState.PROCESSED
            and row.first_seen_at > dead.first_seen_at
            and (whose, row.bucket, row.key) == (pipeline, dead.bucket, dead.key)
            for whose, row in versions
        )


@contextmanager
def view(scope: Scope) -> Iterator[View]:
    """Look at what the scope means, until the block ends."""
    with ExitStack() as closing:
        seen = View(scope, closing)
        if scope.table is not None:
            check_owner(seen.ledger, scope.table)
        yield seen
