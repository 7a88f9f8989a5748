"""Read the environment variables of AWS's sample replayer, so that Penstock can replace it.

The sample is "replaying messages of a dead-letter queue with backoff and jitter". BACKOFF_RATE is the base in seconds,
MAX_ATTEMPS (the sample's spelling) the number of replays, MESSAGE_RETENTION_PERIOD the cap in seconds, and SQS_MAIN_URL
the queue that messages return to.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from penstock.errors import ConfigurationError
from penstock.messaging.replay import COUNT_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """The sample's settings; None if not set."""

    replays_max: int | None = None
    base_seconds: float | None = None
    cap_seconds: float | None = None
    queue: str | None = None  # a URL


def sample_settings(environ: Mapping[str, str]) -> SampleSettings:
    """Return the settings. Raises `ConfigurationError` for the first invalid value."""
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
            f"{name} in the environment is {text!r}: set the number of replays, a whole number from 0 to {COUNT_MAX}."
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
    """Return the value; None if it is unset or empty."""
    return environ.get(name, "").strip() or None
