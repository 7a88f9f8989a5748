"""What a check of `penstock doctor` found."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from penstock.errors import PenstockError, TemporaryError


class FindingLevel(StrEnum):
    """What a finding means: a warning may be lived with, a failure may not."""

    OK = "ok"
    WARNING = "warning"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found, and what to do where it is not as it should be and what was found does not say so."""

    check: str
    verdict: FindingLevel
    found: str
    hint: str = ""


def guarded(
    check: str, look: Callable[[], tuple[FindingLevel, str]], *, hint: str = "", when_away: str = ""
) -> Finding:
    """Run a check. ``hint`` is given where the verdict is a warning, ``when_away`` where a server did not answer: all
    other errors of ours say themselves what to do."""
    try:
        verdict, found = look()
    except TemporaryError as error:
        return Finding(check=check, verdict=FindingLevel.FAILED, found=str(error), hint=when_away)
    except PenstockError as error:
        return Finding(check=check, verdict=FindingLevel.FAILED, found=str(error))
    except Exception as error:  # whatever is wrong with this machine, the other checks have their say
        return Finding(check=check, verdict=FindingLevel.FAILED, found=f"{type(error).__name__}: {error}")
    return Finding(check=check, verdict=verdict, found=found, hint=hint if verdict is FindingLevel.WARNING else "")
