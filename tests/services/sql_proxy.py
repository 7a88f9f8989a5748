"""A fault proxy for an SQL server: faults are planned per request, and COMMITs are recognised.

A plan is called once for every request, in the order of arrival, and returns its fate. So faults depend on counts and
seeds, never on time.
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

LATE_BY = 2  # requests of other connections that overtake a late one
LATE_SECONDS = 10.0  # the limit, if others wait for locks of the late one

WIRES: dict[str, MakeWire] = {"mysql": MysqlWire, "mariadb": MysqlWire, "postgresql": PostgresqlWire}


class Fate(Enum):
    """The fate of a request."""

    PASS = "it is answered"
    CUT = "it does not reach the server, and the connection is reset"
    SWALLOW = "the server answers, and the connection is reset in place of the answer"
    LATE = "its connection ends, and it reaches the server after later requests of others"
    FREEZE = "it does not reach the server; no more bytes arrive, and the connection stays open"
    MUTE = "the server answers; no more bytes arrive, and the connection stays open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request of a client. Numbers count all requests through the proxy, from 1."""

    number: int
    connection: int
    sql: str
    commit: int | None  # its number among the COMMITs; None if it is something else
    before: str  # the previous request of its connection


@dataclass(slots=True, kw_only=True)
class Asked:
    """The last request of one connection. Used by the thread that reads it."""

    connection: int
    last: str = ""


Plan = Callable[[Request], Fate]


def all_pass(_: Request) -> Fate:
    return Fate.PASS


def at_request(number: int, fate: Fate) -> Plan:
    """Return a plan that gives the n-th request that fate."""
    return lambda request: fate if request.number == number else Fate.PASS


def at_commit(number: int, fate: Fate) -> Plan:
    return lambda request: fate if request.commit == number else Fate.PASS


def at_random_commits(chance: random.Random, fates: Sequence[Fate]) -> Plan:
    """Return a plan with a random fate for every COMMIT, except after a connection's own settings."""

    def draw(request: Request) -> Fate:
        return Fate.PASS if request.commit is None or request.before.startswith("SET ") else chance.choice(fates)

    return draw


def at_random_requests(chance: random.Random, share: float, fates: Sequence[Fate]) -> Plan:
    """Return a plan with a random fate for a share of all requests."""
    return lambda request: chance.choice(fates) if chance.random() < share else Fate.PASS


class SqlProxy(FaultProxy):
    """A `FaultProxy` that looks like the server at ``url`` to drivers, and connects to the socket named there."""

    def __init__(self, url: str, plan: Plan = all_pass) -> None:
        parsed = make_url(url)
        self._wire = WIRES[parsed.get_backend_name()]
        self._plan = plan  # the rest under the condition's lock
        self._requests = 0
        self._commits = 0
        self._connections = 0
        self._faults: list[tuple[Request, Fate]] = []
        self._late: set[Link] = set()  # with a late request that has not arrived
        self._releases = 0  # how often late requests were released
        self._server_url = parsed
        super().__init__(address_of(parsed))

    @property
    def url(self) -> str:
        """Return the database's URL through the proxy."""
        query = {
            name: value for name, value in self._server_url.query.items() if name not in ("host", "port", "unix_socket")
        }
        way = self._server_url.set(host="127.0.0.1", port=self.port, query=query)
        return way.render_as_string(hide_password=False)

    @property
    def faults(self) -> Sequence[tuple[Request, Fate]]:
        """Return every request whose fate was not PASS, with its fate."""
        with self._changed:
            return tuple(self._faults)

    @property
    def requests(self) -> int:
        """Return the number of requests."""
        with self._changed:
            return self._requests

    @property
    def commits(self) -> int:
        with self._changed:
            return self._commits

    def follow(self, plan: Plan) -> None:
        """Use a plan from now on. The numbers of requests continue."""
        with self._changed:
            self._plan = plan

    def wait_for_faults(self, count: int) -> None:
        with self._changed:
            happened = self._changed.wait_for(lambda: len(self._faults) >= count, PATIENCE_SECONDS)
        assert happened, f"{len(self.faults)} faults instead of {count} within {PATIENCE_SECONDS} s"

    def refuse(self) -> None:
        """Refuse new connections until `welcome`; existing ones continue."""
        self._stop_listening()

    def welcome(self) -> None:
        self._listen()

    def let_late_come(self) -> None:
        """Forward late requests, and return when the server has answered them."""
        with self._changed:
            self._releases += 1
            self._changed.notify_all()
            answered = self._changed.wait_for(lambda: not self._late, PATIENCE_SECONDS)
        assert answered, "the server did not answer a late request"

    def heal(self) -> None:
        """Forward everything from now on, late requests included."""
        with self._changed:
            self._plan = all_pass
            self._releases += 1
        super().heal()

    # --- forwarding

    def _pass_requests(self, link: Link) -> None:
        wire = self._wire()
        with self._changed:
            self._connections += 1
            asked = Asked(connection=self._connections)
        while data := received(link.client):
            pieces = wire.feed(data)
            if not all(self._apply(link, piece.data, self._count(asked, piece.sql)) for piece in pieces):
                break
        if link.deaf:
            link.cut()
        elif not link.ending:
            end(link.server)
        self._leave(link)

    def _count(self, asked: "Asked", sql: str | None) -> tuple[Request, Fate] | None:
        """Count a request and return it with its fate, or None if the bytes are no request."""
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

    def _apply(self, link: Link, data: bytes, noted: tuple[Request, Fate] | None) -> bool:
        """Apply the fate to a request. Return True if the connection may send more."""
        request, fate = noted or (None, Fate.PASS)
        if fate is Fate.CUT:
            link.cut()
            return False
        if request is not None and fate is Fate.LATE:
            self._forward_late(link, data, request)
            return False
        if fate is Fate.FREEZE:
            self._deafen(link)
        elif fate is not Fate.PASS:
            link.trap = Trap(b"", Afterwards.CUT if fate is Fate.SWALLOW else Afterwards.HOLD)
        if not self._may_go_on(link, Way.REQUESTS):
            return False
        return link.deaf or sent(link, link.server, data)

    def _forward_late(self, link: Link, data: bytes, late: Request) -> None:
        trap = link.trap = Trap(b"", Afterwards.CUT)
        with self._changed:
            self._late.add(link)
            before = self._releases
        end(link.client)
        with self._changed:
            self._changed.wait_for(
                lambda: link.ending or self._releases > before or self._requests >= late.number + LATE_BY, LATE_SECONDS
            )
        if sent(link, link.server, data):
            trap.sprung.wait(PATIENCE_SECONDS)
        with self._changed:
            self._late.discard(link)
            self._changed.notify_all()


def address_of(url: URL) -> Address:
    """Return the server's address: the unix socket in its URL, or host and port."""
    socket_path, folder = url.query.get("unix_socket"), url.query.get("host")
    if isinstance(socket_path, str):
        return socket_path
    if isinstance(folder, str):
        return f"{folder}/.s.PGSQL.{url.query.get('port', '5432')}"
    assert url.host is not None, "the URL names no server"
    assert url.port is not None, "the URL names no port"
    return url.host, url.port
