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
    except TemporaryError as error:
        return Finding(check=check, level=FindingLevel.FAILED, found=str(error), hint=when_unreachable)
    except PenstockError as error:
        return Finding(check=check, level=FindingLevel.FAILED, found=str(error))
    except Exception as error:  # any error: the other checks still run
        return Finding(check=check, level=FindingLevel.FAILED, found=f"{type(error).__name__}: {error}")
    return Finding(check=check, level=level, found=found, hint=hint if level is FindingLevel.WARNING else "")
