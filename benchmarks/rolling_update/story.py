"""The acts of the simulation, and the result of each."""

import signal
from dataclasses import dataclass, field

from benchmarks.rolling_update.scraper import Sample

WORKERS = 3
CONCURRENCY = 20
LEASE_SECONDS = 6
STOP_TIMEOUT_SECONDS = 10  # of which work in flight has 2 s: all but 8
SHORT_SECONDS = (0.05, 0.1, 0.3, 0.5, 1.0)
LONG_SECONDS = 6.0
LONG_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Act:
    """The method of replacement, and the work of the handlers meanwhile."""

    title: str
    says: str
    signal: signal.Signals
    long_share: float


ACTS = (
    Act(
        title="By SIGTERM",
        says="Every handler ends within a second, less than the two seconds that a stop timeout of ten leaves for work "
        "in flight. The worker receives no more messages, finishes those in flight, and ends.",
        signal=signal.SIGTERM,
        long_share=0.0,
    ),
    Act(
        title="By SIGTERM, with handlers that take too long",
        says="One message in twenty takes six seconds. At the drain deadline, unfinished messages are released first "
        "and interrupted then. Another worker receives them at once, and no attempt is counted.",
        signal=signal.SIGTERM,
        long_share=LONG_SHARE,
    ),
    Act(
        title="By SIGKILL",
        says="A killed worker logs nothing. Its messages stay in flight until their leases expire; then other "
        "workers receive them and count them as orphaned, the only trace of the kill.",
        signal=signal.SIGKILL,
        long_share=0.0,
    ),
)


@dataclass(frozen=True, kw_only=True)
class Moment:
    at: float
    actor: str
    event: str


@dataclass(kw_only=True)
class Story:
    """The result of one act."""

    act: Act
    began_at: float
    moments: list[Moment] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)  # of those that were replaced, by pid
    signalled_at: dict[int, float] = field(default_factory=dict)  # when they got their signal, by pid
    exits: list[float] = field(default_factory=list)  # seconds from the signal to the end
