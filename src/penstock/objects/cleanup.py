"""The interface of cleaners, which tag, move or delete objects at their source once their rows are published.

Each cleaner acts on exactly the version that was processed, never on a later one under the same key, and can be called
again after a crash at any point.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from penstock.objects.reference import ObjectRef

# Prefix of a file's temporary name during cleanup. The dot hides it from scans; staying in the same folder makes the
# renaming atomic.
ASIDE_PREFIX = ".penstock-cleanup-"


class CleanupOutcome(StrEnum):
    """The outcome for one object."""

    DONE = "done"
    ALREADY = "already"  # it was already in the desired state
    MISSING = "gone"  # not there any more; perhaps deleted by us before a crash
    CHANGED = "changed"  # another version is there and was left alone
    REFUSED = "refused"  # left as it is; a retry would be refused again


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupResult:
    """The result for one object. ``reason`` is set for refusals only, and is equal for equal causes."""

    outcome: CleanupOutcome
    reason: str = ""


DONE = CleanupResult(outcome=CleanupOutcome.DONE)
ALREADY = CleanupResult(outcome=CleanupOutcome.ALREADY)
MISSING = CleanupResult(outcome=CleanupOutcome.MISSING)
CHANGED = CleanupResult(outcome=CleanupOutcome.CHANGED)


def refused(reason: str) -> CleanupResult:
    """Return a refusal: the object stays as it is for this reason."""
    return CleanupResult(outcome=CleanupOutcome.REFUSED, reason=reason)


class Cleaner(Protocol):
    """An action on the objects of one source: tag, move or delete. Thread-safe."""

    def clean(self, ref: ObjectRef) -> CleanupResult:
        """Clean up this version. If it raises, nothing else was touched.

        Raises:
            ObjectDenied: Permissions are missing.
            TemporaryError: A retry may succeed.
            ConfigurationError: The store cannot do this for exactly one version.
        """
        ...


def second_name(name: str, ref: ObjectRef) -> str:
    """Return the fallback name of a moved object if its name is taken: the name plus the version's object id."""
    return f"{name}.{ref.object_id.hex()}"
