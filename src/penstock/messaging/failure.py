"""What a raised exception says, as text that may be stored and shown: never with the values of variables."""

import traceback as tracebacks
from dataclasses import dataclass

TRACEBACK_CHARS_MAX = 32_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An exception in words."""

    error_type: str
    error: str
    traceback: str

    @property
    def summary(self) -> str:
        """One line's worth: the type and what it says."""
        return f"{self.error_type}: {self.error}" if self.error else self.error_type


def failure_of(raised: BaseException) -> Failure:
    """Describe it; one that has a ``failure`` of its own, because it comes from another process, is described by that.

    Nothing that the exception's own methods do can make this raise.
    """
    described = vars(raised).get("failure")
    if isinstance(described, Failure):
        return described
    try:
        error = str(raised)
    except Exception:
        error = "(its text cannot be had)"
    try:
        # Local variables are left out: they hold secrets.
        text = "".join(tracebacks.TracebackException.from_exception(raised, capture_locals=False).format())
    except Exception:
        text = f"{type(raised).__name__}: {error}\n"
    return Failure(error_type=type(raised).__name__, error=error, traceback=text[-TRACEBACK_CHARS_MAX:])
