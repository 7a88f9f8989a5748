"""When a scheduled handler is due. Pure: ticks are points in time that every worker computes alike."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime

from penstock.errors import UsageError
from penstock.handlers.durations import Duration, seconds_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Every:
    """Ticks at the multiples of so many seconds since 1970: the same in every worker, whenever it started."""

    seconds: float

    def __post_init__(self) -> None:
        if self.seconds < 1:
            raise UsageError(f"every={self.seconds:g} s is too often; a second is the least.")

    def at_or_before(self, now: float) -> float:
        """The last tick until now; epoch seconds."""
        return math.floor(now / self.seconds) * self.seconds

    def after(self, now: float) -> float:
        """The next tick."""
        return self.at_or_before(now) + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """Ticks by a cron expression, in UTC."""

    expression: str

    def __post_init__(self) -> None:
        from cronsim import CronSim, CronSimError

        try:
            next(CronSim(self.expression, datetime.now(UTC)))
        except CronSimError as error:
            raise UsageError(f"cron={self.expression!r} is no cron expression: {error}.") from error
        except StopIteration:
            raise UsageError(f"cron={self.expression!r} never comes true.") from None

    def at_or_before(self, now: float) -> float:
        """The last tick until now; epoch seconds."""
        return self._next(datetime.fromtimestamp(math.floor(now) + 1, UTC), reverse=True)

    def after(self, now: float) -> float:
        """The next tick."""
        return self._next(datetime.fromtimestamp(math.floor(now), UTC), reverse=False)

    def _next(self, moment: datetime, *, reverse: bool) -> float:
        from cronsim import CronSim

        return next(CronSim(self.expression, moment, reverse=reverse)).timestamp()


Schedule = Every | Cron


def schedule_of(every: Duration | None, cron: str | None) -> Schedule | None:
    """What a handler was declared with; None: neither. Raises `UsageError` for both, and for what is no schedule."""
    if every is not None and cron is not None:
        raise UsageError("A handler has every=... or cron=..., not both.")
    if every is not None:
        return Every(seconds=seconds_of("every", every))
    return None if cron is None else Cron(expression=cron)
