"""Settings: parsed once, checked, then frozen.

Precedence: flags and arguments > environment (``PENSTOCK_...``) > secrets directory > ``penstock.toml`` > default. No
other package reads the environment.
"""

from penstock.config.names import SECTIONS, SETTINGS_FILE, dotted, matching, name_of, section_of, variable
from penstock.config.reading import (
    EffectiveSettings,
    UnknownVariable,
    load_effective,
    load_settings,
    shown,
    unknown_variables,
    with_flags,
)
from penstock.config.settings import (
    JOBS,
    STOP_TIMEOUT_SECONDS_MAX,
    STOP_TIMEOUT_SECONDS_MIN,
    Audience,
    ReplayQueue,
    Settings,
    audience,
)

__all__ = [
    "JOBS",
    "SECTIONS",
    "SETTINGS_FILE",
    "STOP_TIMEOUT_SECONDS_MAX",
    "STOP_TIMEOUT_SECONDS_MIN",
    "Audience",
    "EffectiveSettings",
    "ReplayQueue",
    "Settings",
    "UnknownVariable",
    "audience",
    "dotted",
    "load_effective",
    "load_settings",
    "matching",
    "name_of",
    "section_of",
    "shown",
    "unknown_variables",
    "variable",
    "with_flags",
]
