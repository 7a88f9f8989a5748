"""What pipelines, and what they run on, need of the app that they are declared in."""

from collections.abc import Sequence
from typing import Any, Protocol

from penstock.app.incidents import Incidents
from penstock.config import Settings
from penstock.events import Listener
from penstock.messaging.broker import Broker
from penstock.monitoring.errors import ErrorHook


class HasQueue(Protocol):
    """A service, as far as it matters here."""

    @property
    def queue_name(self) -> str:
        """What it is fed from."""
        ...


class Home(Protocol):
    """The app."""

    @property
    def settings(self) -> Settings:
        """Its settings."""
        ...

    @property
    def broker(self) -> Broker:
        """Its broker, opened."""
        ...

    @property
    def incidents(self) -> Incidents:
        """What its broker tells of."""
        ...

    @property
    def ledger(self) -> Any:
        """Its `penstock.ledger.Ledger`, opened."""
        ...

    @property
    def name(self) -> str:
        """What the ledger calls it."""
        ...

    @property
    def is_named(self) -> bool:
        """Return True if somebody gave it that name."""
        ...

    @property
    def worker(self) -> str:
        """Who this process is."""
        ...

    @property
    def listeners(self) -> Sequence[Listener]:
        """Who hears its events."""
        ...

    @property
    def on_error(self) -> ErrorHook | None:
        """The user's hook for failures."""
        ...

    @property
    def services(self) -> Sequence[HasQueue]:
        """What is declared in it."""
        ...
