"""Check that stopping fits into a platform's grace period: the platforms' limits, the budget, and the configuration."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from penstock.config import STOP_TIMEOUT_SECONDS_MAX, STOP_TIMEOUT_SECONDS_MIN
from penstock.errors import ConfigurationError
from penstock.handlers.durations import duration_text
from penstock.worker.settings import StopBudget, budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """A platform and the grace period after which it kills a process."""

    name: str
    default_seconds: float
    max_seconds: float | None
    pre_stop: bool  # it runs a hook first, within the same seconds
    line: str  # contains {seconds}
    where: str


PLATFORMS: Mapping[str, Platform] = MappingProxyType(
    {
        platform.name: platform
        for platform in (
            Platform(
                name="ecs",
                default_seconds=30,
                max_seconds=None,
                pre_stop=False,
                line='"stopTimeout": {seconds}',
                where="the container definition; on EC2 the agent's ECS_CONTAINER_STOP_TIMEOUT is the default",
            ),
            Platform(
                name="fargate",
                default_seconds=30,
                max_seconds=120,
                pre_stop=False,
                line='"stopTimeout": {seconds}',
                where="the container definition",
            ),
            Platform(
                name="kubernetes",
                default_seconds=30,
                max_seconds=None,
                pre_stop=True,
                line="terminationGracePeriodSeconds: {seconds}",
                where="the pod's spec",
            ),
            Platform(
                name="systemd",
                default_seconds=90,
                max_seconds=None,
                pre_stop=False,
                line="TimeoutStopSec={seconds}",
                where="the unit's [Service]",
            ),
            Platform(
                name="docker",
                default_seconds=10,
                max_seconds=None,
                pre_stop=False,
                line="stop_grace_period: {seconds}s",
                where="the compose file's service; or docker run --stop-timeout {seconds}",
            ),
        )
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPhase:
    """One phase of stopping, in order."""

    name: str
    seconds: float
    ends_at_seconds: float  # since the platform began to stop the worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StopPlan:
    """A stop budget that fits."""

    platform: str
    platform_seconds: float
    stop_timeout_seconds: float  # the rest for the worker: its setting
    parts: Sequence[StopPhase]
    platform_line: str
    platform_where: str
    setting_line: str  # of stop_timeout, and of drain if it was given


def plan(
    platform_name: str,
    *,
    platform_seconds: float | None = None,
    pre_stop_seconds: float = 0.0,
    drain_seconds: float | None = None,
) -> StopPlan:
    """Return how the grace period is spent; by default, the platform's default grace period.

    Raises `ConfigurationError` if stopping does not fit, or if the platform does not allow that much.
    """
    _check_bounds(platform_seconds, pre_stop_seconds, drain_seconds)
    platform = PLATFORMS[platform_name]
    granted = platform.default_seconds if platform_seconds is None else platform_seconds
    if platform.max_seconds is not None and granted > platform.max_seconds:
        raise ConfigurationError(
            f"{platform.name} grants at most {platform.max_seconds:g} s, and {granted:g} s were requested."
        )
    if pre_stop_seconds and not platform.pre_stop:
        raise ConfigurationError(
            f"{platform.name} has no hook before the signal; leave out the {pre_stop_seconds:g} s."
        )
    left = granted - pre_stop_seconds
    hook = f", of which the hook before the signal takes {pre_stop_seconds:g} s" if pre_stop_seconds else ""
    if left < STOP_TIMEOUT_SECONDS_MIN:
        raise ConfigurationError(
            f"{platform.name} grants {granted:g} s{hook}: the worker needs at least {STOP_TIMEOUT_SECONDS_MIN:g} s, so "
            f"grant {STOP_TIMEOUT_SECONDS_MIN + pre_stop_seconds:g} s or more."
        )
    try:
        found = budget(stop_timeout_seconds=left, drain_seconds=drain_seconds)
    except ConfigurationError as error:
        raise ConfigurationError(f"{platform.name} grants {granted:g} s{hook}: {error}.") from error
    seconds = f"{granted:g}"
    drain = "" if drain_seconds is None else f' and drain = "{duration_text(drain_seconds)}"'
    return StopPlan(
        platform=platform.name,
        platform_seconds=granted,
        stop_timeout_seconds=left,
        parts=_parts(found, pre_stop_seconds),
        platform_line=platform.line.format(seconds=seconds),
        platform_where=platform.where.format(seconds=seconds),
        setting_line=f'stop_timeout = "{duration_text(left)}"{drain}',
    )


def _check_bounds(*given_seconds: float | None) -> None:
    for seconds in given_seconds:
        if seconds is not None and not 0 <= seconds <= STOP_TIMEOUT_SECONDS_MAX:  # rejects NaN too
            raise ConfigurationError(
                f"{seconds:g} s is not a valid stop timeout; give at most {STOP_TIMEOUT_SECONDS_MAX:,.0f} s."
            )


def _parts(found: StopBudget, pre_stop_seconds: float) -> Sequence[StopPhase]:
    spent = (
        ("hook before the signal", pre_stop_seconds),
        ("stop fetching", found.intake_seconds),
        ("drain: work in flight continues", found.drain_seconds),
        ("release unfinished messages", found.release_seconds),
        ("flush settlements, logs, reports", found.flush_seconds),
        ("margin", found.margin_seconds),
    )
    parts: list[StopPhase] = []
    at_seconds = 0.0
    for name, seconds in spent:
        at_seconds += seconds
        if seconds or name != "hook before the signal":
            parts.append(StopPhase(name=name, seconds=seconds, ends_at_seconds=at_seconds))
    return parts
