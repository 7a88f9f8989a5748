"""Compute the ticks of scheduled handlers. Pure: every worker computes the same points in time."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from cronsim import CronSim, CronSimError

from penstock.errors import UsageError
from penstock.handlers.durations import Duration, seconds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Ticks at multiples of ``seconds`` since 1970: the same in every worker, no matter when it started."""

    seconds: float

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise UsageError(f"every={self.seconds:g} s is too often; the shortest interval is 1 s.")

    def at_or_before(self, now: float) -> float:
        """Return the last tick up to now, in epoch seconds."""
        return math.floor(now / self.seconds) * self.seconds

    def after(self, now: float) -> float:
        """Return the next tick."""
        return self.at_or_before(now) + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """Ticks of a cron expression, in UTC."""

    expression: str

    def __post_init__(self) -> None:

        try:
            next(CronSim(self.expression, datetime.now(UTC)))
        except CronSimError as error:
            raise UsageError(f"cron={self.expression!r} is not a cron expression: {error}.") from error
        except StopIteration:
            raise UsageError(f"cron={self.expression!r} never matches any date.") from None

    def at_or_before(self, now: float) -> float:
        """Return the last tick up to now, in epoch seconds."""
        return self._next(datetime.fromtimestamp(math.floor(now) + 1, UTC), reverse=True)

    def after(self, now: float) -> float:
        """Return the next tick."""
        return self._next(datetime.fromtimestamp(math.floor(now), UTC), reverse=False)

    def _next(self, moment: datetime, *, reverse: bool) -> float:

        return next(CronSim(self.expression, moment, reverse=reverse)).timestamp()


Schedule = Every | Cron


def schedule_of(every: Duration | None, cron: str | None) -> Schedule | None:
    """Return the schedule of a handler; None without either option. Raises `UsageError` for both or an invalid one."""
    if every is not None and cron is not None:
        raise UsageError("A handler has every=... or cron=..., not both.")
    if every is not None:
        return Every(seconds=seconds_of("every", every))
    return None if cron is None else Cron(expression=cron)
