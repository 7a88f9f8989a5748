"""Add owners, the apps that use a name of keys or objects, and a retention per work."""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import sqlalchemy as sa
from alembic import context, op
from sqlalchemy.dialects import mysql

from penstock.errors import ConfigurationError
from penstock.ledger.migrations.tools import (
    add_column,
    create_index,
    create_table,
    drop_column,
    drop_index,
    drop_table,
    has_column,
)

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

DIGEST = sa.LargeBinary(16).with_variant(mysql.BINARY(16), "mysql", "mariadb")
APP = sa.String(256)
WORD = sa.String(64)
HAS_EXPIRY = sa.text("expires_at IS NOT NULL")
MARK_ID = bytes(16)
PAGE_ROWS = 1_000
AnyRow: TypeAlias = "sa.Row[Any]"
WORKS = sa.table(
    "works",
    sa.column("work_id", DIGEST),
    *(sa.column(name, sa.Text) for name in ("handler", "key", "state", "app", "queue")),
)


def upgrade() -> None:
    create_table(
        "owners",
        sa.Column("owner_id", DIGEST, primary_key=True),
        sa.Column("kind", WORD, nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.Column("app", APP, nullable=False),
        sa.Column("queue", sa.Text, nullable=False),
        sa.Column("named", sa.Integer, nullable=False),
        sa.Column("plain", sa.Integer, nullable=False),
        sa.Column("first_seen_at", sa.Double, nullable=False),
        sa.Column("last_seen_at", sa.Double, nullable=False),
    )
    create_index("ix_owners_name", "owners", ["kind", "name"])
    add_column("works", sa.Column("app", APP))
    add_column("works", sa.Column("queue", sa.Text))
    add_column("works", sa.Column("retention_seconds", sa.Double))
    add_column("works", sa.Column("expires_at", sa.Double))
    create_index("ix_works_expires", "works", ["expires_at"], sqlite_where=HAS_EXPIRY, postgresql_where=HAS_EXPIRY)
    if context.config.attributes["revision_before"] is not None:
        _mark_as_upgraded()


def downgrade() -> None:
    """Restore the identities by which revision 0005 finds completed keys: by the handler's name alone.

    Refused if that is impossible for some of them, since their work would be done a second time, or never.
    """
    has_owners = has_column("works", "app") and has_column("works", "queue")  # an interrupted downgrade dropped one
    if has_owners and context.get_revision_argument() not in (None, "0001"):  # these drop the keys themselves
        _identify_by_handler()
    drop_index("ix_works_expires", "works")
    for name in ("expires_at", "retention_seconds", "queue", "app"):
        drop_column("works", name)
    drop_table("owners")


def _identify_by_handler() -> None:
    """Change the identities that contain app and queue. After an interruption, a second run changes the rest."""
    database = op.get_bind()
    owned = sa.select(WORKS.c.handler, WORKS.c.app, WORKS.c.queue).distinct()
    owners_of = Counter(row.handler for row in database.execute(owned))

    def is_found(row: AnyRow) -> bool:
        """Return True if the key's identity in revision 0005 is known and belongs to a single owner."""
        return owners_of[row.handler] == 1 and bool(row.work_id == _scoped(row, "key"))

    # A tick on record is of no use to 0005, and an attempt that completed nothing only tells of a failure.
    lost = [
        owners_of[row.handler] > 1
        for page in _pages()
        for row in page
        if row.state == "done" and not is_found(row) and row.work_id != _scoped(row, "tick")
    ]
    if lost:
        raise ConfigurationError(
            f"revision 0005 would not find {len(lost):,} completed keys of idempotent handlers in this ledger, and "
            f"their work would be done again: {sum(lost):,} because several apps or queues have a handler of that "
            f"name, {len(lost) - sum(lost):,} because the key is not stored in full; restore a backup "
            "from before the upgrade, or wait until these keys have expired"
        )
    change = sa.update(WORKS).where(WORKS.c.work_id == sa.bindparam("old")).values(work_id=sa.bindparam("new"))
    drop = sa.delete(WORKS).where(WORKS.c.work_id == sa.bindparam("old"))
    for page in _pages():
        changed = [{"old": row.work_id, "new": _digest(row.handler, row.key)} for row in page if is_found(row)]
        dropped = [{"old": row.work_id} for row in page if not is_found(row)]
        for statement, binds in ((change, changed), (drop, dropped)):
            if binds:
                database.execute(statement, binds)


def _pages() -> Iterator[Sequence[AnyRow]]:
    """Yield pages of the keys whose identities contain an app, ordered by identity."""
    page = sa.select(WORKS).where(WORKS.c.app.is_not(None)).order_by(WORKS.c.work_id).limit(PAGE_ROWS)
    after = b""
    while rows := op.get_bind().execute(page.where(WORKS.c.work_id > after)).all():
        yield [row for row in rows if row.work_id != _digest(row.handler, row.key)]
        after = rows[-1].work_id


def _scoped(row: AnyRow, purpose: str) -> bytes:
    return _digest("\0" + json.dumps([purpose, row.app, row.queue, row.handler]), row.key)


def _digest(scope: str, key: str) -> bytes:
    return hashlib.sha256(f"{scope}\0{key}".encode()).digest()[:16]


def _mark_as_upgraded() -> None:
    """Record that workers of an earlier version, which know keys by the handler's name alone, may use this ledger."""
    owners = sa.table("owners", sa.column("owner_id", DIGEST), *map(sa.column, _MARK))
    if op.get_bind().execute(sa.select(owners.c.owner_id).where(owners.c.kind == "ledger")).first() is None:
        op.get_bind().execute(owners.insert().values(owner_id=MARK_ID, **_MARK))


_MARK = {
    "kind": "ledger",
    "name": "upgraded",
    "app": "",
    "queue": "",
    "named": 0,
    "plain": 1,
    "first_seen_at": 0.0,
    "last_seen_at": 0.0,
}
