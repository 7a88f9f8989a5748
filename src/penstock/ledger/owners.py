"""Register the names that each app uses in a ledger, so that two apps never share one by accident.

The names of pipelines and object handlers identify their rows, so each name belongs to one app. The identity of a
handler's keys contains app and queue, so handlers of the same name in two apps do not collide. An app without a name is
called after its module, which is a guess: if the guess could be wrong, the registration is refused.

A ledger that was upgraded holds keys that are identified by the handler's name alone, and workers of the earlier
version may still add some. The first app that registers the name keeps these identities. Another app with a handler of
that name is refused at each start as long as any of these keys exists, because some of them may be its own.

An app may give an SQS queue by name, URL or ARN. The identity of keys contains the spelling that the app registered
first, whichever it uses later. A ledger that already knew two spellings keeps both.

A lock on the row with the tables' revision serializes registrations.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, String, bindparam, column, exists, insert, select, table, update

from penstock.errors import ConfigurationError
from penstock.ledger.database import Database
from penstock.ledger.dialects import DatabaseNow
from penstock.ledger.records import OwnedName, WorkOwner, WorkState
from penstock.ledger.rows import AnyRow
from penstock.ledger.rules import storable
from penstock.ledger.schema import VERSION_TABLE, owners, works
from penstock.messaging.broker import same_queue

_LOCK = select(column("version_num", String)).select_from(table(VERSION_TABLE)).with_for_update()
_OF_NAME = select(owners).where(owners.c.kind == bindparam("of_kind"), owners.c.name == bindparam("of_name"))
_IS_UPGRADED = select(exists().where(owners.c.kind == "ledger"))
_HAS_OLD_KEYS = select(
    exists().where(
        works.c.state.in_([state.value for state in WorkState]),  # makes the index on state and handler usable
        works.c.handler == bindparam("of_name"),
        works.c.queue.is_(None),
    )
)
_ADD = insert(owners).values(first_seen_at=DatabaseNow(), last_seen_at=DatabaseNow())
_SEEN = (
    update(owners)
    .values(last_seen_at=DatabaseNow(), named=bindparam("is_named"), queue=bindparam("new_queue"))
    .where(owners.c.owner_id == bindparam("of_owner"))
)


class Owners:
    """The register of names. Thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def register(self, app: str, *, is_named: bool, uses: Sequence[OwnedName]) -> Mapping[str, WorkOwner]:
        """Register the names that an app uses; return the owner of each handler's keys, by the handler's name.

        Registers all names or none. ``is_named``: the app was given its name explicitly. Raises `ConfigurationError`
        for a name that belongs, or may belong, to another app.
        """

        def register(connection: Connection) -> Mapping[str, WorkOwner]:
            connection.execute(_LOCK).all()
            registration = _Registration(connection, storable(app), is_named=is_named, address=self._database.address)
            found = {use.name: registration.take(use) for use in uses}
            return {name: owner for name, owner in found.items() if owner is not None}

        return self._database.transact(register) if uses else {}

    def check(self, app: str, *, is_named: bool, uses: Sequence[OwnedName]) -> None:
        """Raise `ConfigurationError` if objects of these names belong to another app. Writes nothing.

        A name that no app has registered is free.
        """
        with self._database.reading() as connection:
            registration = _Registration(connection, storable(app), is_named=is_named, address=self._database.address)
            for use in uses:
                registration.check_objects(storable(use.name), storable(use.queue))


class _Registration:
    """The registration of one app, in one transaction. `Owners.register` holds the lock; `Owners.check` does not."""

    def __init__(self, connection: Connection, app: str, *, is_named: bool, address: str) -> None:
        self._connection = connection
        self._app = app
        self._is_named = is_named
        self._address = address

    def take(self, use: OwnedName) -> WorkOwner | None:
        """Register one name; return the owner of its keys, if it has keys."""
        name, queue = storable(use.name), storable(use.queue)
        if use.kind == "objects":
            self._take_objects(name, queue)
            return None
        return self._take_keys(name, queue)

    def _take_objects(self, name: str, queue: str) -> None:
        row = self.check_objects(name, queue)
        if row is None:
            self._add("objects", name, queue, is_plain=True)
        else:
            self._update_seen(row, queue)

    def check_objects(self, name: str, queue: str) -> "AnyRow | None":
        """Return the row of a name; None if the name is free.

        Raises `ConfigurationError` if another app owns it, or if its queue changed and this app was not given a name.
        """
        rows = self._of_name("objects", name)
        if not rows:
            return None
        row = rows[0]
        if row.app != self._app:
            raise ConfigurationError(
                f"The objects of {name} in the ledger {self._address} belong to the app {row.app!r}, and this app is "
                f"{self._app!r}: if it is the same app, name it App(name={row.app!r}) (PENSTOCK_APP_NAME); if it is "
                "another one, give this object handler or pipeline a name of its own."
            )
        if not same_queue(row.queue, queue) and not self._is_named:
            raise ConfigurationError(
                f"The objects of {name} in the ledger {self._address} are fed from the queue {row.queue}, and here it "
                f"is {queue}: if this is another app, give the object handler or pipeline a name of its own; if it is "
                f"the same app with another queue, name it App(name={self._app!r}) (PENSTOCK_APP_NAME)."
            )
        return row

    def _take_keys(self, name: str, queue: str) -> WorkOwner:
        """Register a handler's keys; return their owner. One of several owners of a name has the old identity."""
        rows = self._of_name("keys", name)
        mine = [row for row in rows if row.app == self._app and same_queue(row.queue, queue)]
        mine.sort(key=lambda row: (row.queue != queue, not row.plain, row.first_seen_at, row.queue))
        if not (mine and mine[0].plain):
            self._refuse_beside_old_keys(name, queue, rows)
        if mine:
            self._update_seen(mine[0], mine[0].queue)
            return WorkOwner(app=self._app, queue=mine[0].queue, is_plain=bool(mine[0].plain))
        for row in rows:
            if same_queue(row.queue, queue) and not (row.named and self._is_named):
                raise ConfigurationError(
                    f"The keys of the handler {name} on the queue {queue} in the ledger {self._address} belong to the "
                    f"app {row.app!r}, and this app is {self._app!r}: if it is the same app, name it "
                    f"App(name={row.app!r}) (PENSTOCK_APP_NAME); if it is another one, give both of them a name, or "
                    "this handler a name=... of its own."
                )
        is_plain = not any(row.plain for row in rows) and bool(self._connection.execute(_IS_UPGRADED).scalar())
        self._add("keys", name, queue, is_plain=is_plain)
        return WorkOwner(app=self._app, queue=queue, is_plain=is_plain)

    def _refuse_beside_old_keys(self, name: str, queue: str, rows: Sequence[AnyRow]) -> None:
        """Raise if old keys of this name exist that another owner has taken over.

        Checked at every start: workers of the earlier version may have added keys of this app, which its new workers do
        not find.
        """
        taken = [row for row in rows if row.plain]
        if taken and self._connection.execute(_HAS_OLD_KEYS, {"of_name": name}).scalar():
            raise ConfigurationError(
                f"The ledger {self._address} holds keys of a handler {name} from workers of before its upgrade, which "
                f"name no app; the app {taken[0].app!r} (queue {taken[0].queue}) has taken them over, and some may "
                f"belong to this app, {self._app!r} (queue {queue}): give this handler a name=... of its own, or wait "
                "until these keys have expired."
            )

    def _of_name(self, kind: str, name: str) -> Sequence[AnyRow]:
        return self._connection.execute(_OF_NAME, {"of_kind": kind, "of_name": name}).all()

    def _add(self, kind: str, name: str, queue: str, *, is_plain: bool) -> None:
        identity = [kind, name] if kind == "objects" else [kind, name, self._app, queue]
        self._connection.execute(
            _ADD,
            {
                "owner_id": hashlib.sha256(json.dumps(identity).encode()).digest()[:16],
                "kind": kind,
                "name": name,
                "app": self._app,
                "queue": queue,
                "named": int(self._is_named),
                "plain": int(is_plain),
            },
        )

    def _update_seen(self, row: AnyRow, queue: str) -> None:
        # The row count is not checked: MySQL counts a row as unchanged if the rounded times are equal.
        self._connection.execute(_SEEN, {"of_owner": row.owner_id, "is_named": int(self._is_named), "new_queue": queue})
