"""Add views for SQL users: identities as text and times in readable form."""

from alembic import op
from sqlalchemy.exc import DBAPIError

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

VIEWS = ("penstock_objects", "penstock_keys")
DENIED = 1142  # MySQL and MariaDB: no right to create views, which is one of its own there


def upgrade() -> None:
    dialect = op.get_bind().dialect
    head = "CREATE SQL SECURITY INVOKER VIEW" if dialect.name in ("mysql", "mariadb") else "CREATE VIEW"
    drop_views()
    for name, select in zip(VIEWS, (_objects(dialect.name), _keys(dialect.name)), strict=True):
        try:
            op.execute(f"{head} {name} AS {select}")
        except DBAPIError as error:  # MySQL goes on with the transaction after that; others never raise it
            if getattr(error.orig, "args", (None,))[0] != DENIED:
                raise


def downgrade() -> None:
    drop_views()


def drop_views() -> None:
    for name in VIEWS:
        op.execute(f"DROP VIEW IF EXISTS {name}")


def _objects(dialect: str) -> str:
    quote = "`" if dialect in ("mysql", "mariadb") else '"'
    latest = (
        "(SELECT MAX(COALESCE(a.ended_at, a.started_at))"
        " FROM object_attempts oa JOIN attempts a ON a.id = oa.attempt_id"
        " WHERE oa.object_id = o.object_id AND oa.pipeline = o.pipeline)"
    )
    ended = f"COALESCE(o.ended_at, {latest}, o.first_seen_at)"
    return (
        "SELECT o.pipeline, o.bucket,"
        " CASE WHEN o.bucket = 'file' THEN SUBSTR(o.uri, 8) ELSE SUBSTR(o.uri, LENGTH(o.bucket) + 7) END"
        " AS object_key,"
        " o.uri, o.version_id, o.state AS status, o.size_bytes, o.charged - o.refunds AS attempts,"
        f" o.{quote}rows{quote} AS rows_read, o.lines_quarantined, o.batch_seq,"
        f" {_time(dialect, 'o.first_seen_at')} AS created_at, {_time(dialect, ended)} AS updated_at,"
        " t.worker, o.reason"
        " FROM objects o LEFT JOIN attempts t ON t.id = o.attempt_id"
    )


def _keys(dialect: str) -> str:
    quote = "`" if dialect in ("mysql", "mariadb") else '"'
    updated = "COALESCE(w.ended_at, w.started_at)"
    return (
        f"SELECT w.app, w.queue, w.handler, w.{quote}key{quote} AS work_key, w.state AS status, w.attempts,"
        f" {_time(dialect, 'w.first_seen_at')} AS created_at, {_time(dialect, updated)} AS updated_at,"
        f" {_time(dialect, 'w.expires_at')} AS expires_at,"
        " w.worker, w.outcome, w.last_reason AS reason"
        " FROM works w"
    )


def _time(dialect: str, seconds: str) -> str:
    """Return SQL for a UTC time with at least milliseconds; text on SQLite, which has no type for it."""
    if dialect == "postgresql":
        return f"to_timestamp({seconds})"
    if dialect == "sqlite":
        return f"strftime('%Y-%m-%d %H:%M:%f', {seconds}, 'unixepoch')"
    return f"TIMESTAMPADD(MICROSECOND, ROUND({seconds} * 1000000), TIMESTAMP '1970-01-01 00:00:00')"
