"""Outages of the stores that a worker's queues need: those of its sources, and those of tables in S3."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Protocol

from penstock.app.places import Places
from penstock.app.sources import Source
from penstock.handlers.outage import Outage, WatchedService, store_service


class MakeOutage(Protocol):
    """Make the `Outage` of one service for this worker."""

    def __call__(self, *, service: WatchedService, ping: Callable[[], object]) -> Outage: ...


class StoreOutages:
    """One `Outage` for each store or pair of stores, shared by all queues that need it. Used by one thread."""

    def __init__(self, make: MakeOutage) -> None:
        self._make = make
        self._made: dict[str, Outage] = {}

    def of(self, *places: Source) -> Outage:
        """Return the outage of work that needs all these places."""
        name = " and ".join(dict.fromkeys(place.address for place in places))
        if name not in self._made:
            self._made[name] = self._make(service=store_service(name), ping=partial(_ping, places))
        return self._made[name]

    def of_pipeline(self, source: Source, where: Places) -> Outage:
        """Return the outage of what its runs read, and of the table where it is in S3."""
        table = where.table
        return self.of(source, *(() if table.is_local else (Source(address=table.uri, aws=where.aws),)))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Ask all of them until the block ends; see `Outage.watching`."""
        with ExitStack() as stack:
            for outage in self._made.values():
                stack.enter_context(outage.watching())
            yield


def _ping(places: tuple[Source, ...]) -> None:
    for place in places:
        place.ping()
