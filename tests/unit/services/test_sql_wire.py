"""The SQL proxy's parsing of two protocols: the ends of requests, and their SQL."""

import pytest
from tests.services.sql_wire import MysqlWire, Piece, PostgresqlWire, Wire


def packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


LOGIN = packet(1, b"my name")
BEGIN, COMMIT = packet(0, b"\x03BEGIN"), packet(0, b"\x03COMMIT")
PING = packet(0, b"\x0e")
LONG = packet(0, b"\x03" + b"x" * 0xFFFFFE) + packet(1, b"yz")
ENCRYPTION = (8).to_bytes(4, "big") + (80877103).to_bytes(4, "big")
START = (16).to_bytes(4, "big") + (196608).to_bytes(4, "big") + b"user\0me\0"
SIMPLE = message(b"Q", b"COMMIT\0")
PREPARED = message(b"P", b"one\0COMMIT\0\0\0") + message(b"B", b"\0one\0") + message(b"E", b"\0") + message(b"S", b"")
AGAIN = message(b"B", b"\0one\0") + message(b"E", b"\0") + message(b"S", b"")
COPIED = message(b"d", b"1\t2\n")

MYSQL = [(LOGIN, None), (BEGIN, "BEGIN"), (COMMIT, "COMMIT"), (PING, "(command 0e)")]
POSTGRESQL = [
    (ENCRYPTION, None),
    (START, None),
    (message(b"p", b"secret\0"), None),
    (SIMPLE, "COMMIT"),
    (PREPARED, "COMMIT"),
    (AGAIN, "COMMIT"),
    (COPIED, None),
    (message(b"X", b""), None),
]


@pytest.mark.parametrize("chunk_bytes", [1, 3, 10_000])
@pytest.mark.parametrize(("wire", "sent"), [(MysqlWire(), MYSQL), (PostgresqlWire(), POSTGRESQL)], ids=["my", "pg"])
def test_requests_are_split_correctly_in_chunks_of_any_size(
    wire: Wire, sent: list[tuple[bytes, str | None]], chunk_bytes: int
) -> None:
    wire = type(wire)()
    stream = b"".join(data for data, _ in sent)
    chunks = [stream[start : start + chunk_bytes] for start in range(0, len(stream), chunk_bytes)]
    assert [piece for chunk in chunks for piece in wire.feed(chunk)] == [
        Piece(data=data, sql=sql) for data, sql in sent
    ]


def test_a_mysql_request_may_be_longer_than_a_packet() -> None:
    wire = MysqlWire()
    assert list(wire.feed(LONG[:-1])) == []
    (piece,) = wire.feed(LONG[-1:])
    assert piece.data == LONG
