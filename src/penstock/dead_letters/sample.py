"""The settings of AWS's sample replayer, "replaying messages of a dead-letter queue with backoff and jitter", as it
reads them from its environment: whoever has it deployed can put Penstock in its place.

BACKOFF_RATE is the base in seconds, MAX_ATTEMPS (that is how it spells it) how often a letter comes back,
MESSAGE_RETENTION_PERIOD the cap in seconds, SQS_MAIN_URL the queue that letters come back to.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import ConfigurationError
from penstock.messaging.replay import COUNT_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """What the sample's variables say; None for one that is not set."""

    replays_max: int | None = None
    base_seconds: float | None = None
    cap_seconds: float | None = None
    queue: str | None = None  # a URL


def sample_settings(environ: Mapping[str, str]) -> SampleSettings:
    """What is set there. Raises `ConfigurationError` for the first value that does not fit."""
    return SampleSettings(
        replays_max=_count(environ, "MAX_ATTEMPS"),
        base_seconds=_seconds(environ, "BACKOFF_RATE"),
        cap_seconds=_seconds(environ, "MESSAGE_RETENTION_PERIOD"),
        queue=_url(environ, "SQS_MAIN_URL"),
    )


def _count(environ: Mapping[str, str], name: str) -> int | None:
    text = _text(environ, name)
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or int(text) > COUNT_MAX:
        raise ConfigurationError(
            f"{name} in the environment is {text!r}: it is how often a dead letter comes back, a whole number from 0 "
            f"to {COUNT_MAX}."
        )
    return int(text)


def _seconds(environ: Mapping[str, str], name: str) -> float | None:
    text = _text(environ, name)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigurationError(f"{name} in the environment is {text!r}: it is a number of seconds above 0.")
    return seconds


def _url(environ: Mapping[str, str], name: str) -> str | None:
    text = _text(environ, name)
    if text is not None and not text.startswith(("https://", "http://")):
        raise ConfigurationError(f"{name} in the environment is {text!r}: it is the URL of a queue on SQS.")
    return text


def _text(environ: Mapping[str, str], name: str) -> str | None:
    """The value; None where it is not set, or set to nothing."""
    return environ.get(name, "").strip() or None
