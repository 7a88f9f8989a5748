"""Addresses of systems as they may be said, in errors, logs and answers: without their passwords."""

import re

MASK = "***"

# To the last @: a password that was not escaped may hold anything, and rather too much is masked than too little.
_PASSWORD = re.compile(r"(?<=://)([^/?#@:\s]*):.*@", re.DOTALL)
_SECRET_PARAMETER = re.compile(r"([?&;][^=&;\s]*(?:pass|pwd|secret|token|auth)[^=&;\s]*=)[^&;\s]*", re.IGNORECASE)


def masked(text: str) -> str:
    """An address, or a text that holds one: its password and its secret parameters replaced by `MASK`."""
    return _SECRET_PARAMETER.sub(rf"\1{MASK}", _PASSWORD.sub(rf"\1:{MASK}@", text))
