"""What work says of a service that it needs, and is told of it: the ledger, the store of its objects."""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class ServiceWatch(Protocol):
    """Hears how one service answers those who need it. Any thread may call it."""

    def asked(self) -> AbstractContextManager[None]:
        """Return what to put around a request: a `TemporaryError` in it says that the service is away (a `PartAway`
        says nothing), else it answers."""
        ...

    def claimed(self) -> None:
        """Note that the service did what work needs of it. That it answers says nothing of that, on a full disk."""
        ...

    def put_back_seconds(self) -> float:
        """Return for how long messages stay invisible that are released while it is away; 0 while it answers."""
        ...


class Unwatched:
    """A service that nothing is paused for."""

    def asked(self) -> AbstractContextManager[None]:
        return nullcontext()

    def claimed(self) -> None:
        """Nothing depends on it."""

    def put_back_seconds(self) -> float:
        return 0.0
