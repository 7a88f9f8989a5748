"""Just enough of the protocols of MySQL's and PostgreSQL's clients to separate requests and recognise a COMMIT.

A wire parses one connection: it gets the client's bytes as they arrive, and yields the same bytes in whole pieces. It
cannot parse an encrypted connection, so the tests' servers use none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Bytes that belong together. ``sql`` is set if they end a request, after which the server answers."""

    data: bytes
    sql: str | None = None


class Wire(Protocol):
    """A parser that cuts a client's bytes at the ends of requests."""

    def feed(self, data: bytes) -> Iterator[Piece]: ...


MYSQL_HEAD_BYTES = 4  # length, and the packet's number within its request
MYSQL_PACKET_BYTES_MAX = 0xFFFFFF  # a packet of this length continues in the next one
MYSQL_COM_QUERY = 3


class MysqlWire:
    """The parser for MySQL. Commands begin with packet number 0; other numbers belong to the handshake."""

    def __init__(self) -> None:
        self._left = b""

    def feed(self, data: bytes) -> Iterator[Piece]:
        self._left += data
        while (end := self._end()) is not None:
            whole, self._left = self._left[:end], self._left[end:]
            yield Piece(data=whole, sql=_mysql_sql(whole))

    def _end(self) -> int | None:
        """Return the offset of the end of the first request, or None if it is incomplete."""
        at = 0
        while len(self._left) >= at + MYSQL_HEAD_BYTES:
            length = int.from_bytes(self._left[at : at + 3], "little")
            at += MYSQL_HEAD_BYTES + length
            if length < MYSQL_PACKET_BYTES_MAX:
                return at if len(self._left) >= at else None
        return None


def _mysql_sql(whole: bytes) -> str | None:
    if whole[3] != 0:
        return None
    command = whole[MYSQL_HEAD_BYTES : MYSQL_HEAD_BYTES + 1]
    if command != bytes([MYSQL_COM_QUERY]):
        return f"(command {command.hex()})"
    return whole[MYSQL_HEAD_BYTES + 1 :].decode("utf-8", "replace")


POSTGRESQL_HEAD_BYTES = 5  # the kind of a message, and its length without the kind
POSTGRESQL_PLAIN = {80877103, 80877104}  # request encryption; the real start follows


class PostgresqlWire:
    """The parser for PostgreSQL. All messages except the first have a kind. A simple query or a Sync ends a request."""

    def __init__(self) -> None:
        self._left = b""
        self._started = False
        self._gathered = b""  # messages of a request that has not ended
        self._asked = ""
        self._prepared: dict[bytes, str] = {}  # SQL by the name of its statement

    def feed(self, data: bytes) -> Iterator[Piece]:
        self._left += data
        while (whole := self._message()) is not None:
            if not self._started:
                self._started = int.from_bytes(whole[4:8], "big") not in POSTGRESQL_PLAIN
                yield Piece(data=whole)
                continue
            self._gathered += whole
            self._read(whole[:1], whole[POSTGRESQL_HEAD_BYTES:])
            if whole[:1] in b"QS":
                yield Piece(data=self._taken(), sql=self._asked)
                self._asked = ""
            elif whole[:1] not in b"PBDEC":  # the server may need all others before a Sync, such as copied data
                yield Piece(data=self._taken())

    def _message(self) -> bytes | None:
        kind = 1 if self._started else 0
        if len(self._left) < kind + 4:
            return None
        end = kind + int.from_bytes(self._left[kind : kind + 4], "big")
        if len(self._left) < end:
            return None
        whole, self._left = self._left[:end], self._left[end:]
        return whole

    def _read(self, kind: bytes, body: bytes) -> None:
        words = body.split(b"\0")
        if kind == b"Q":
            self._asked = _text(words[0])
        elif kind == b"P":
            self._prepared[words[0]] = self._asked = _text(words[1])
        elif kind == b"B":
            self._asked = self._prepared.get(words[1], "")

    def _taken(self) -> bytes:
        taken, self._gathered = self._gathered, b""
        return taken


def _text(sql: bytes) -> str:
    return sql.decode("utf-8", "replace")


MakeWire = Callable[[], Wire]
