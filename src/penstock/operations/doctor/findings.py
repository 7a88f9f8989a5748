"""The findings of `penstock doctor`."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import PenstockError, TemporaryError


class FindingLevel(StrEnum):
    """The severity of a finding: a warning can be tolerated, a failure cannot."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check. ``hint`` has the remedy if ``found`` does not."""

    check: str
    level: FindingLevel
    found: str
    hint: str = ""


def guarded(
    check: str, run: Callable[[], tuple[FindingLevel, str]], *, hint: str = "", when_unreachable: str = ""
) -> Finding:
    """Run a check and return its finding.

    ``hint`` is added to a warning, and ``when_unreachable`` if a server did not respond. Penstock's other errors
    contain their own remedy.
    """
    try:
        level, found = run()
    except Exception as error:  # any error: the other checks still run
        return failure(check, error, when_unreachable=when_unreachable)
    return Finding(check=check, level=level, found=found, hint=hint if level is FindingLevel.WARNING else "")


def failure(check: str, error: Exception, *, when_unreachable: str = "") -> Finding:
    """Return the finding of a check that raised. ``when_unreachable`` is the hint if a server did not respond."""
    return Finding(
        check=check,
        level=FindingLevel.FAILED,
        found=str(error) if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}",
        hint=when_unreachable if isinstance(error, TemporaryError) else "",
    )
