"""Settings as people and logs may see them."""

import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from penstock.messaging.addresses import MASK, masked

_SECRET_NAME = re.compile(r"(password|passwd|secret|token|credential|access[._-]?key)", re.IGNORECASE)
_SECRETS = frozenset({"sentry_dsn", "notify_urls"})  # whose names do not say so
_ADDRESSES = frozenset({"broker", "ledger"})  # settings that are addresses as a whole


def shown(name: str, value: Any) -> Any:
    """A setting's value for people and logs: what looks like a secret is masked, also inside addresses and tables."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_unset=True)
    if value is None or value == "":
        return value
    if _SECRET_NAME.search(name) or (name.partition(".")[0] in _SECRETS and value):
        return MASK  # whatever was written there, and whichever part of it
    if isinstance(value, Mapping):
        return {key: shown(str(key), inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):  # also where somebody wrote a list that should be none
        return [shown(name, inner) for inner in value]
    if isinstance(value, str):
        if name in _ADDRESSES and "://" not in value and ("@" in value or "?" in value):
            # the slip hides where the password begins
            return MASK
        return masked(value)
    return value
