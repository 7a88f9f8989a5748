"""What becomes of an object at its source once its rows are published: the contract of those who tag, move or delete.

Every one of them acts on exactly the version that was processed, never on one that came later under the same key, and
can be asked again after a crash anywhere in its work.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from penstock.objects.reference import ObjectRef

# A file on its way out. The dot hides it from scans; it is in the same folder, so that renaming is one step.
ASIDE_PREFIX = ".penstock-cleanup-"


class CleanupOutcome(StrEnum):
    """How it went with one object."""

    DONE = "done"
    ALREADY = "already"  # it was as it is to be
    GONE = "gone"  # nothing is there, by whomever it was removed; perhaps by us, before a crash
    CHANGED = "changed"  # another version is there, which was left alone
    REFUSED = "refused"  # it stays as it is, and another try would meet the same


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanupResult:
    """What became of one object. ``reason`` is told of a refusal alone, and is the same for the same cause."""

    outcome: CleanupOutcome
    reason: str = ""


DONE = CleanupResult(outcome=CleanupOutcome.DONE)
ALREADY = CleanupResult(outcome=CleanupOutcome.ALREADY)
GONE = CleanupResult(outcome=CleanupOutcome.GONE)
CHANGED = CleanupResult(outcome=CleanupOutcome.CHANGED)


def refused(reason: str) -> CleanupResult:
    """The object stays as it is, for this reason."""
    return CleanupResult(outcome=CleanupOutcome.REFUSED, reason=reason)


class Cleaner(Protocol):
    """Tags, moves or deletes the objects of one source. Any thread may call it."""

    def clean(self, ref: ObjectRef) -> CleanupResult:
        """Do it to this version. Raises `ObjectDenied` without the right to it, `TemporaryError` where another try may
        succeed, `ConfigurationError` where the store cannot do it exactly; nothing else was touched then."""
        ...


def second_name(name: str, ref: ObjectRef) -> str:
    """What a moved object is called where its name is taken: an id of its key and version is added to it."""
    return f"{name}.{ref.object_id.hex()}"
