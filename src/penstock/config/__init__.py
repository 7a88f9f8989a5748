"""Settings: read once, checked loudly, then frozen.

Precedence: what the caller gives (flags) > environment (``PENSTOCK_...``) > secrets directory > ``penstock.toml`` >
default. No other room reads the environment.
"""

from penstock.config.reading import (
    EffectiveSettings,
    load_effective,
    load_settings,
    shown,
    unknown_variables,
    with_flags,
)
from penstock.config.settings import (
    SETTINGS_FILE,
    STOP_TIMEOUT_SECONDS_MAX,
    STOP_TIMEOUT_SECONDS_MIN,
    ReplayQueue,
    Settings,
)

__all__ = [
    "SETTINGS_FILE",
    "STOP_TIMEOUT_SECONDS_MAX",
    "STOP_TIMEOUT_SECONDS_MIN",
    "EffectiveSettings",
    "ReplayQueue",
    "Settings",
    "load_effective",
    "load_settings",
    "shown",
    "unknown_variables",
    "with_flags",
]
