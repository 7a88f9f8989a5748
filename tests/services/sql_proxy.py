"""The way to an SQL server through the fault proxy: faults are planned by request, and a COMMIT is told from the rest.

A plan is asked once for every request, in the order in which the requests come, and answers what becomes of it. So what
happens depends on counts and seeds, never on time.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from sqlalchemy.engine import URL, make_url
from tests.services.fault_proxy import (
    PATIENCE_SECONDS,
    Address,
    Afterwards,
    FaultProxy,
    Link,
    Trap,
    Way,
    end,
    received,
    sent,
)
from tests.services.sql_wire import MakeWire, MysqlWire, PostgresqlWire

LATE_BY = 2  # requests of others that come before one that is late
LATE_SECONDS = 10.0  # at most, where others wait for what it holds

WIRES: dict[str, MakeWire] = {"mysql": MysqlWire, "mariadb": MysqlWire, "postgresql": PostgresqlWire}


class Fate(Enum):
    """What becomes of a request."""

    PASS = "it is answered"
    CUT = "it does not reach the server, and the connection is reset"
    SWALLOW = "the server answers, and the connection is reset in place of the answer"
    LATE = "its connection ends, and it reaches the server after later requests of others"
    FREEZE = "it does not reach the server; nothing comes any more, and the connection stays open"
    MUTE = "the server answers; nothing comes any more, and the connection stays open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One that a client sent. Numbers count all that came through the proxy, from 1."""

    number: int
    connection: int
    sql: str
    commit: int | None  # its number among the COMMITs; None if it is something else
    before: str  # what its connection asked before it


@dataclass(slots=True, kw_only=True)
class Asked:
    """What came so far on one connection; of the thread that reads it."""

    connection: int
    last: str = ""


Plan = Callable[[Request], Fate]


def all_pass(_: Request) -> Fate:
    return Fate.PASS


def at_request(number: int, fate: Fate) -> Plan:
    """Of the n-th request that comes from when the plan is made."""
    return lambda request: fate if request.number == number else Fate.PASS


def at_commit(number: int, fate: Fate) -> Plan:
    return lambda request: fate if request.commit == number else Fate.PASS


def at_random_commits(chance: random.Random, fates: Sequence[Fate]) -> Plan:
    """Every COMMIT draws one, but for those of a connection's own settings."""

    def draw(request: Request) -> Fate:
        return Fate.PASS if request.commit is None or request.before.startswith("SET ") else chance.choice(fates)

    return draw


def at_random_requests(chance: random.Random, share: float, fates: Sequence[Fate]) -> Plan:
    """Of all requests such a share draws one."""
    return lambda request: chance.choice(fates) if chance.random() < share else Fate.PASS


class SqlProxy(FaultProxy):
    """A `FaultProxy` that a driver takes for the server at ``url``, which it reaches by the socket named there."""

    def __init__(self, url: str, plan: Plan = all_pass) -> None:
        parsed = make_url(url)
        self._wire = WIRES[parsed.get_backend_name()]
        self._plan = plan  # the rest under the condition's lock
        self._requests = 0
        self._commits = 0
        self._connections = 0
        self._faults: list[tuple[Request, Fate]] = []
        self._late: set[Link] = set()  # their last request is on its way
        self._come = 0  # how often those that are late were let come
        self._server_url = parsed
        super().__init__(address_of(parsed))

    @property
    def url(self) -> str:
        """The database's, by this way."""
        query = {
            name: value for name, value in self._server_url.query.items() if name not in ("host", "port", "unix_socket")
        }
        way = self._server_url.set(host="127.0.0.1", port=self.port, query=query)
        return way.render_as_string(hide_password=False)

    @property
    def faults(self) -> Sequence[tuple[Request, Fate]]:
        """Every request that was not just answered, and what became of it."""
        with self._changed:
            return tuple(self._faults)

    @property
    def requests(self) -> int:
        """How many came."""
        with self._changed:
            return self._requests

    @property
    def commits(self) -> int:
        with self._changed:
            return self._commits

    def follow(self, plan: Plan) -> None:
        """From now on. The numbers of requests go on."""
        with self._changed:
            self._plan = plan

    def wait_for_faults(self, count: int) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: len(self._faults) >= count, PATIENCE_SECONDS)
        assert came, f"{len(self.faults)} faults, and not {count}, came within {PATIENCE_SECONDS} s"

    def refuse(self) -> None:
        """Nobody listens at its port any more, until `welcome`; connections that are there go on."""
        self._stop_listening()

    def welcome(self) -> None:
        self._listen()

    def let_late_come(self) -> None:
        """What is late reaches the server, which has answered it when this returns."""
        with self._changed:
            self._come += 1
            self._changed.notify_all()
            came = self._changed.wait_for(lambda: not self._late, PATIENCE_SECONDS)
        assert came, "the server did not answer a late request"

    def heal(self) -> None:
        """All goes through from now on, and what is late comes."""
        with self._changed:
            self._plan = all_pass
            self._come += 1
        super().heal()

    # --- the way of the bytes

    def _pass_requests(self, link: Link) -> None:
        wire = self._wire()
        with self._changed:
            self._connections += 1
            asked = Asked(connection=self._connections)
        while data := received(link.client):
            pieces = wire.feed(data)
            if not all(self._goes_on(link, piece.data, self._noted(asked, piece.sql)) for piece in pieces):
                break
        if link.deaf:
            link.cut()
        elif not link.ending:
            end(link.server)
        self._leave(link)

    def _noted(self, asked: "Asked", sql: str | None) -> tuple[Request, Fate] | None:
        """Count a request and ask the plan; None for what is none."""
        if sql is None:
            return None
        with self._changed:
            self._requests += 1
            is_commit = sql.strip().rstrip(";").upper() == "COMMIT"
            self._commits += is_commit
            commit = self._commits if is_commit else None
            request = Request(
                number=self._requests, connection=asked.connection, sql=sql, commit=commit, before=asked.last
            )
            asked.last = sql
            fate = self._plan(request)
            if fate is not Fate.PASS:
                self._faults.append((request, fate))
            self._changed.notify_all()
        return request, fate

    def _goes_on(self, link: Link, data: bytes, noted: tuple[Request, Fate] | None) -> bool:
        """Do as planned; whether the connection has more to send."""
        request, fate = noted or (None, Fate.PASS)
        if fate is Fate.CUT:
            link.cut()
            return False
        if request is not None and fate is Fate.LATE:
            self._come_late(link, data, request)
            return False
        if fate is Fate.FREEZE:
            link.deaf = True
        elif fate is not Fate.PASS:
            link.trap = Trap(b"", Afterwards.CUT if fate is Fate.SWALLOW else Afterwards.HOLD)
        if not self._may_go_on(link, Way.REQUESTS):
            return False
        return link.deaf or sent(link, link.server, data)

    def _come_late(self, link: Link, data: bytes, late: Request) -> None:
        trap = link.trap = Trap(b"", Afterwards.CUT)
        with self._changed:
            self._late.add(link)
            before = self._come
        end(link.client)
        with self._changed:
            self._changed.wait_for(
                lambda: link.ending or self._come > before or self._requests >= late.number + LATE_BY, LATE_SECONDS
            )
        if sent(link, link.server, data):
            trap.sprung.wait(PATIENCE_SECONDS)
        with self._changed:
            self._late.discard(link)
            self._changed.notify_all()


def address_of(url: URL) -> Address:
    """Where the server listens: the unix socket that its URL names, or host and port."""
    socket_path, folder = url.query.get("unix_socket"), url.query.get("host")
    if isinstance(socket_path, str):
        return socket_path
    if isinstance(folder, str):
        return f"{folder}/.s.PGSQL.{url.query.get('port', '5432')}"
    assert url.host is not None, "the URL names no server"
    assert url.port is not None, "the URL names no port"
    return url.host, url.port
