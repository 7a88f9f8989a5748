"""Who did what to a queue: replayed, purged, exported. Written before anything is done, and completed after.

An entry without an outcome is of something that is going on, or was killed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from json import dumps, loads
from typing import Any

from sqlalchemy import bindparam, select, update
from ulid import ULID

from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.rows import AnyRow
from penstock.ledger.rules import storable
from penstock.ledger.schema import audit

DETAILS_BYTES_MAX = 60_000  # MySQL keeps 65,535 in such a column
ENTRIES_MAX = 64  # of a list, where that is too much
TEXT_CHARACTERS_MAX = 500

_ONE = audit.c.id == bindparam("of_id")
_END = (
    update(audit)
    .values(messages=bindparam("so_many"), outcome=bindparam("how"), ended_at=DatabaseNow())
    .where(_ONE, audit.c.outcome.is_(None))
)
_LATEST = select(audit).order_by(audit.c.id.desc())


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One entry. Times are epoch seconds by the database's clock."""

    id: str
    action: str
    queue: str
    who: str
    details: Mapping[str, Any]  # what was asked for: filters, limits
    messages: int  # that it was done to
    outcome: str | None  # done, interrupted or failed; None: not ended
    began_at: float
    ended_at: float | None


class Audits:
    """The entries; none is ever changed after its end, and none deleted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._add = database.dialect.insert_or_ignore(audit)

    def begin(self, action: str, *, queue: str, who: str, details: Mapping[str, Any]) -> str:
        """Somebody is about to do something; answers the entry's id."""
        entry = str(ULID())
        row = {
            "id": entry,
            "action": action,
            "queue": storable(queue),
            "who": storable(who),
            "details": storable(_told(details)),
            "messages": 0,
        }
        add = self._add.values(began_at=DatabaseNow())
        self._database.transact(lambda connection: connection.execute(add, row))
        return entry

    def end(self, entry: str, *, messages: int, outcome: str) -> None:
        """What it came to."""
        binds = {"of_id": entry, "so_many": messages, "how": outcome}
        self._database.transact(lambda connection: connection.execute(_END, binds))

    def latest(self, *, limit: int, before: str | None = None) -> Sequence[AuditRow]:
        """The newest first; ``before``: the last id of the page before."""
        asked = _LATEST.limit(limit) if before is None else _LATEST.where(audit.c.id < before).limit(limit)
        with self._database.reading() as connection:
            return [_row(row) for row in connection.execute(asked)]


def _told(details: Mapping[str, Any]) -> str:
    """As JSON that every database can keep: of what is long only the beginning, and how many there were."""
    text, kept = dumps(details), ENTRIES_MAX
    while len(text) > DETAILS_BYTES_MAX and kept:
        text = dumps(_beginning(details, kept))
        kept //= 2
    return text


def _beginning(value: Any, kept: int) -> Any:
    if isinstance(value, str):
        return value[:TEXT_CHARACTERS_MAX]
    if isinstance(value, Mapping):
        return {name: _beginning(each, kept) for name, each in value.items()}
    if isinstance(value, list) and len(value) > kept:
        return [*(_beginning(each, kept) for each in value[:kept]), f"and {len(value) - kept:,} more"]
    return value


def _row(row: AnyRow) -> AuditRow:
    fields = dict(row._mapping)
    return AuditRow(**{**fields, "details": loads(fields["details"])})
