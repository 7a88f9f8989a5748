"""The Protocol through which work reports how a service answers: the ledger, or the store of its objects."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class ServiceWatch(Protocol):
    """Records how one service answers the work that needs it. Any thread may call it."""

    def asked(self) -> AbstractContextManager[None]:
        """Return a context for one request: a `TemporaryError` in it means that the service is away, a normal end that
        it answers. A `PartAway` says nothing about the service."""
        ...

    def succeeded(self) -> None:
        """Note that a request did its work. An answer alone does not prove that: a ledger on a full disk answers."""
        ...

    def put_back_seconds(self) -> float:
        """Return for how long messages that are released now stay invisible; 0 while the service answers."""
        ...


class Unwatched:
    """A `ServiceWatch` that records nothing and pauses nothing."""

    def asked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def succeeded(self) -> None:
        """Do nothing."""

    def put_back_seconds(self) -> float:
        return 0.0
