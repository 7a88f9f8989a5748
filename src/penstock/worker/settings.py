"""The worker's settings, validated once and then frozen, and the time budget of a stop."""

from dataclasses import dataclass

from penstock.errors import ConfigurationError
from penstock.messaging.backoff import Random, backoff_seconds

RELEASE_SECONDS = 3.0  # time to release unfinished messages
FLUSH_SECONDS = 2.0  # time to apply the last settlements
INTAKE_SECONDS = 1.0  # from the signal until nothing more is fetched
CLAIMS_END_EARLIER_SECONDS = 1.0  # than the leases of their messages
MARGIN_SECONDS = 2.0  # for the interpreter's exit and slow machines


@dataclass(frozen=True, slots=True, kw_only=True)
class StopBudget:
    """The division of the time between a platform's SIGTERM and its SIGKILL, in this order."""

    intake_seconds: float
    drain_seconds: float  # work in flight continues; an open poll may end in this time too
    release_seconds: float  # unfinished messages are released
    flush_seconds: float  # the last settlements are applied, interrupted threads end
    margin_seconds: float
    stop_timeout_seconds: float  # the total


def budget(
    *,
    stop_timeout_seconds: float,
    drain_seconds: float | None = None,
    release_seconds: float = RELEASE_SECONDS,
    flush_seconds: float = FLUSH_SECONDS,
    poll_wait_seconds: float = 0.0,
) -> StopBudget:
    """Divide the stop timeout; by default draining gets the time that the other steps leave (timeout - 8 s).

    Raises `ConfigurationError` if the steps do not fit: when the platform kills a worker before it has released its
    messages, each of them is delayed by the rest of its lease.
    """
    rest = INTAKE_SECONDS + release_seconds + flush_seconds + MARGIN_SECONDS
    drain = stop_timeout_seconds - rest if drain_seconds is None else drain_seconds
    if min(drain, release_seconds, flush_seconds) < 0:
        raise ConfigurationError(
            f"a stop timeout of {stop_timeout_seconds:g} s leaves no time to drain: stopping, releasing and flushing "
            f"take {rest:g} s; give the worker a longer stop timeout"
        )
    if drain_seconds is not None and drain + rest > stop_timeout_seconds:
        raise ConfigurationError(
            f"draining for {drain:g} s does not fit a stop timeout of {stop_timeout_seconds:g} s: the rest of stopping "
            f"takes {rest:g} s; drain at most {max(stop_timeout_seconds - rest, 0.0):g} s or raise the stop timeout "
            "(settings worker.drain and worker.stop_timeout)"
        )
    if poll_wait_seconds > INTAKE_SECONDS + drain:
        raise ConfigurationError(
            f"a poll that waits {poll_wait_seconds:g} s outlasts the {drain:g} s of draining, and polls are never cut "
            "short; shorten the poll or raise the stop timeout"
        )
    return StopBudget(
        intake_seconds=INTAKE_SECONDS,
        drain_seconds=drain,
        release_seconds=release_seconds,
        flush_seconds=flush_seconds,
        margin_seconds=MARGIN_SECONDS,
        stop_timeout_seconds=stop_timeout_seconds,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """The limits and intervals of a worker. Raises `ConfigurationError` for numbers that cannot work together."""

    concurrency: int = 100  # slots, shared by all executions on the pool and on the event loop
    fetch_max: int = 50  # maximum of messages per receive; a consumer may override it
    poll_wait_seconds: float = 0.0  # how long a receive may wait in the broker while the worker is idle
    idle_floor_seconds: float = 0.05
    idle_ceiling_seconds: float = 1.0
    # The first poll waits up to this long, so that workers of one deploy do not poll all at once.
    start_jitter_seconds: float = 0.1
    lease_seconds: float = 60.0
    heartbeat_seconds: float | None = None  # None: a third of the lease
    settle_max: int = 500  # maximum of settlements (and lease extensions) per call
    upkeep_seconds: float = 5.0  # between two runs of a background job of an idle consumer
    retry_base_seconds: float = 0.2  # backoff of failed calls to the broker
    retry_cap_seconds: float = 5.0
    backoff_base_seconds: float = 1.0  # backoff of failed work
    backoff_cap_seconds: float = 60.0
    stop_timeout_seconds: float = 30.0
    drain_seconds: float | None = None  # None: the rest of the stop timeout
    release_seconds: float = RELEASE_SECONDS
    flush_seconds: float = FLUSH_SECONDS
    turn_seconds_max: float = 300.0  # a turn at the broker that takes longer is hung
    upkeep_seconds_max: float = 3_600.0  # the same for a background job, which publishes, sweeps and cleans up

    def __post_init__(self) -> None:
        for name in ("concurrency", "fetch_max", "settle_max"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: set it to at least 1")
        for name in ("idle_floor_seconds", "lease_seconds", "retry_base_seconds", "backoff_base_seconds"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}: it has to be more than 0")
        if self.idle_ceiling_seconds < self.idle_floor_seconds:
            raise ConfigurationError("idle_ceiling_seconds is below idle_floor_seconds; raise it")
        if not 0 <= self.start_jitter_seconds <= self.idle_ceiling_seconds:
            raise ConfigurationError(
                f"start_jitter_seconds is {self.start_jitter_seconds:g}: it has to be between 0 and "
                f"idle_ceiling_seconds ({self.idle_ceiling_seconds:g})"
            )
        if not 0 < self.heartbeat_interval_seconds <= self.lease_seconds / 2:
            raise ConfigurationError(
                f"a heartbeat every {self.heartbeat_interval_seconds:g} s cannot keep a lease of "
                f"{self.lease_seconds:g} s: a single failed heartbeat would lose it; use a third of the lease"
            )
        _ = self.budget

    @property
    def heartbeat_interval_seconds(self) -> float:
        """Seconds between two heartbeats."""
        return self.lease_seconds / 3 if self.heartbeat_seconds is None else self.heartbeat_seconds

    @property
    def claim_seconds(self) -> float:
        """Seconds from the start of a beat to the end of the claims that it extends; shorter than a message lease."""
        return self.lease_seconds - min(CLAIMS_END_EARLIER_SECONDS, self.lease_seconds / 10)

    @property
    def claim_response_seconds(self) -> float:
        """Timeout in seconds of each response from an extender of claims during a heartbeat.

        A call waits for up to four responses (a connection, its settings, the check of an old connection, the call),
        which must fit between two heartbeats.
        """
        return self.heartbeat_interval_seconds / 4

    def retry_seconds(self, tries: int, random: Random) -> float:
        """Return the wait in seconds after this many failed calls to the broker in a row."""
        return backoff_seconds(
            attempt=tries, base_seconds=self.retry_base_seconds, cap_seconds=self.retry_cap_seconds, random=random
        )

    def backoff_seconds(self, attempt: int, random: Random) -> float:
        """Return the wait in seconds after this many failures of the work in a row."""
        return backoff_seconds(
            attempt=attempt, base_seconds=self.backoff_base_seconds, cap_seconds=self.backoff_cap_seconds, random=random
        )

    @property
    def endangered_seconds(self) -> float:
        """Seconds left of a lease that was not extended for one and a half heartbeats."""
        return self.lease_seconds - 1.5 * self.heartbeat_interval_seconds

    @property
    def budget(self) -> StopBudget:
        """The time budget of a stop."""
        return budget(
            stop_timeout_seconds=self.stop_timeout_seconds,
            drain_seconds=self.drain_seconds,
            release_seconds=self.release_seconds,
            flush_seconds=self.flush_seconds,
            poll_wait_seconds=self.poll_wait_seconds,
        )
