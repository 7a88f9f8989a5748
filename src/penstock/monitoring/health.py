"""The health checks that a process offers its platform: live, ready and started, each a boolean with a sentence.

Live is false if a restart would help. Ready is true if the process does its work. Started is true once it has begun.
The code that knows the process implements the checks; this module defines only what the endpoint needs.
"""

from collections.abc import Callable
from dataclasses import dataclass

ProbeResult = tuple[bool, str]  # the sentence gives the reason, for people
HealthProbe = Callable[[], ProbeResult]


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """The three checks. Any thread may call them at any time; they return at once and contact no server."""

    live: HealthProbe
    ready: HealthProbe
    started: HealthProbe
