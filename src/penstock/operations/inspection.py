"""Read-only access to a scope: nothing here claims, sends or settles."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

from penstock.app.backends import ledger_exists
from penstock.app.brokers import broker_exists, open_broker
from penstock.app.queues import check_shared
from penstock.app.registry import Workers
from penstock.app.scope import Scope, scope_ledger
from penstock.brokers.memory.broker import MemoryBroker
from penstock.errors import UsageError
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectRow, ObjectState
from penstock.messaging.broker import Broker
from penstock.objects.replays import is_replay
from penstock.operations.archived_objects import find_archived

PAGE = 1_000  # objects per query


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedObjectRow:
    """A failed object. ``replaced``: a later version of it was processed since."""

    pipeline: str
    row: ObjectRow
    replaced: bool


class ScopeView:
    """A read-only view of a scope. Ledger and broker are opened on first use.

    A ledger or queue that does not exist yet is replaced by an empty one in memory, since viewing creates nothing; with
    ``make``, the queue is created.
    """

    def __init__(self, scope: Scope, closing: ExitStack, *, make: bool = False) -> None:
        self.scope = scope
        self._closing = closing
        self._make = make

    @cached_property
    def ledger(self) -> Ledger:
        ledger = scope_ledger(self.scope) if ledger_exists(self.scope.settings) else Ledger.open("sqlite://")
        self._closing.callback(ledger.close)
        return ledger

    @cached_property
    def broker(self) -> Broker:
        """The scope's broker. Raises `ConfigurationError` for a broker that lives inside one process."""
        settings = self.scope.settings
        check_shared(settings)
        if not self._make and not broker_exists(settings):
            broker: Broker = MemoryBroker()
        else:
            broker = open_broker(settings, holder="")
        self._closing.callback(broker.close)
        return broker

    @property
    def several(self) -> bool:
        """True if rows have to name their pipeline."""
        return self.scope.pipeline is None

    def pipelines(self) -> Sequence[str]:
        """Return the ids of the selected pipelines. Raises `UsageError` for one that neither ledger nor app knows."""
        meant = self.scope.pipeline
        if meant is None:
            return [row.id for row in self.ledger.pipelines()]
        if meant not in self.scope.tables and self.ledger.pipeline(meant) is None:
            known = ", ".join(row.id for row in self.ledger.pipelines()) or "none"
            raise UsageError(f"The ledger {self.scope.name} knows no pipeline {meant}; its pipelines: {known}.")
        return [meant]

    @property
    def workers(self) -> Workers:
        """The workers of the data directory."""
        return Workers(Path(self.scope.settings.data_dir))

    @property
    def queues(self) -> Sequence[str] | None:
        """The scope's queues on a broker shared with other systems; None: all queues that the broker knows."""
        return None if self.broker.capabilities.creates_queues else self.scope.queues

    def failed_objects(
        self,
        pipeline: str,
        *,
        state: ObjectState = ObjectState.DEAD,
        uri_contains: str | None = None,
        page: int = PAGE,
    ) -> Iterator[FailedObjectRow]:
        """Yield the failed objects of a pipeline, or those in another terminal ``state``, by id.

        Reads one page ahead.
        """
        after: bytes | None = None
        failed = partial(self.ledger.objects, pipeline, state=state, uri_contains=uri_contains, limit=page)
        while rows := failed(after=after):
            changed = self.ledger.other_versions(pipeline, {row.object_id for row in rows}) > 0
            for row in rows:
                yield FailedObjectRow(pipeline=pipeline, row=row, replaced=changed and self._is_replaced(pipeline, row))
            after = rows[-1].object_id

    def _is_replaced(self, pipeline: str, failed: ObjectRow) -> bool:
        """Return True if a later version was processed. An archived version counts if its file can be read."""
        versions = [*self.ledger.find(failed.uri)]
        if self.ledger.archives.count(pipeline):
            archived = find_archived(self.ledger, failed.uri, self.scope.aws)
            versions += [(one.pipeline, one.retired.row) for one in archived if one.retired is not None]
        return any(
            row.state is ObjectState.PROCESSED
            and row.first_seen_at > failed.first_seen_at
            and not is_replay(row.version_id, row.etag)
            and (whose, row.bucket, row.key) == (pipeline, failed.bucket, failed.key)
            for whose, row in versions
        )


@contextmanager
def view(scope: Scope, *, make: bool = False) -> Iterator[ScopeView]:
    """Yield a view of the scope. With ``make``, a missing queue is created, for commands that send messages."""
    with ExitStack() as closing:
        seen = ScopeView(scope, closing, make=make)
        if scope.table is not None:
            _ = seen.ledger  # refuse the ledger of another table at once
        yield seen
