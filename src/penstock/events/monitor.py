"""What the monitor meets, and what is seen of queues whose ages nobody tells."""

from dataclasses import dataclass

from penstock.events.bus import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorStarted(Event):
    """The monitor looks at these, and answers at ``address``."""

    address: str
    sources: tuple[str, ...]  # of broker, ledger and tables, those that it asks
    queues: tuple[str, ...]
    pipelines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LookFailed(Event):
    """The monitor cannot see something: its gauges are gone until it can. Told once while it lasts.

    ``source`` is broker, cloudwatch, ledger or tables.
    """

    source: str
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LookRecovered(Event):
    """The monitor sees it again."""

    source: str
    away_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSeenEmpty(Event):
    """A receive that waited for a message of the queue brought none, on a broker that tells no ages."""

    queue: str
