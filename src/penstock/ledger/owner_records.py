"""The values of owners: which app a name in a ledger belongs to."""

from dataclasses import dataclass
from typing import Literal

OwnerKind = Literal["keys", "objects"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedName:
    """A name that an app uses in the ledger, and the queue that feeds it.

    ``keys``: of a handler whose calls are recorded by key. ``objects``: of an object handler or a pipeline.
    """

    kind: OwnerKind
    name: str
    queue: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkOwner:
    """Whose keys those of a handler are; part of their identity.

    ``is_plain``: the keys are identified by the handler's name alone, because an earlier version recorded some of them.
    """

    app: str
    queue: str
    is_plain: bool = False
    purpose: Literal["key", "tick"] = "key"
