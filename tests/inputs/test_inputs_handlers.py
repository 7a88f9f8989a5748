"""Input of typed queues, a test per row: bad messages are dead-lettered with a reason, odd ones processed literally.

A real worker on the embedded queue gets each bad message between two good ones, which must be processed.
"""

import gzip
import io
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from penstock import App, Queue
from penstock.app.serving import serve
from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.messaging.death import death_of
from penstock.worker.shutdown import StopSignal


class Order(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=False)

    key: str
    count: int = 1
    price: float = 0.0


ORDERS = Queue("orders", Order)


class Case:
    """An app with its own queue file, and the orders that its handler saw."""

    def __init__(self, folder: Path) -> None:
        self.broker = SqliteBroker(folder / "queue.db", holder="test")
        self.app = App(broker=self.broker)
        self.seen: list[Order] = []
        self.app.handler(ORDERS, retry_base=0.001, max_retry_wait=0.002)(self.take)

    def take(self, order: Order) -> None:
        self.seen.append(order)

    def work(self, *bodies: bytes, attributes: dict[str, str] | None = None) -> None:
        self.app.send(ORDERS, Order(key="before"))
        for body in bodies:
            self.app.send("raw bytes", body)  # another queue, so that the body is not checked on sending
        self._move()
        self.app.send(ORDERS, Order(key="after"))
        serve(self.app, stop=StopSignal(), until=self._done, resident=False)

    def _move(self) -> None:
        while waiting := self.broker.receive("raw bytes", messages_max=10, lease_seconds=60):
            from penstock.messaging.message import Outgoing
            from penstock.messaging.settlement import Ack

            self.broker.send("orders", [Outgoing(body=one.message.body) for one in waiting])
            self.broker.settle([(one, Ack()) for one in waiting])

    def _done(self) -> bool:
        stats = self.broker.stats("orders")
        return not (stats.visible or stats.in_flight or stats.delayed)

    @property
    def keys(self) -> set[str]:
        assert len({order.key for order in self.seen}) == len(self.seen), "an order was taken twice"
        return {order.key for order in self.seen}

    @property
    def reasons(self) -> list[str]:
        dead = self.broker.browse("orders-dlq", messages_max=100)
        return [death.reason for message in dead if (death := death_of(message.attributes)) is not None]


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    made = Case(tmp_path)
    yield made
    made.broker.close()


def zipped() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb", b"\0" * 1_000_000)
    return made.getvalue()


BAD = {
    "row_01_empty": (b"", "empty"),
    "row_02_no_json": (b"hello", "not JSON"),
    "row_03_truncated": (b'{"key": "a', "not JSON"),
    "row_04_invalid_utf8": (b'{"key": "\xff"}', "not UTF-8"),
    "row_05_bom": (b'\xef\xbb\xbf{"key": "a"}', "byte order mark"),
    "row_06_utf16": ('{"key": "a"}'.encode("utf-16"), "UTF-16"),
    "row_07_nested": (b'{"key": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
    "row_08_nan": (b'{"key": "a", "price": NaN}', "NaN is not a JSON number"),
    "row_09_overflow": (b'{"key": "a", "price": 1e400}', "too large"),
    "row_10_digits": (b'{"key": "a", "count": ' + b"9" * 5_000 + b"}", "5000 digits"),
    "row_11_duplicate_keys": (b'{"key": "a", "key": "b"}', "appears twice"),
    "row_12_lone_surrogate": (b'{"key": "\\ud800"}', "lone surrogate"),
    "row_13_top_level_string": (b'"key"', "does not fit Order"),
    "row_14_top_level_list": (b'[{"key": "a"}]', "does not fit Order"),
    "row_26_pickle": (pickle.dumps({"key": "a"}), "not UTF-8"),
    "row_28_gzip_bomb": (gzip.compress(b"\0" * 1_000_000), "gzip"),
    "row_29_zip_bomb": (zipped(), "zip archive"),
    "row_33_wrong_field": (b'{"key": "a", "count": "many"}', "count: Input should be a valid integer"),
    "row_33_missing_field": (b'{"count": 2}', "key: Field required"),
}


@pytest.mark.parametrize(("body", "reason"), BAD.values(), ids=BAD)
def test_a_bad_message_is_dead_lettered_on_its_first_attempt(case: Case, body: bytes, reason: str) -> None:
    case.work(body)
    assert case.keys == {"before", "after"}
    (found,) = case.reasons
    assert reason in found


def test_row_23_an_unknown_version_waits_and_is_dead_lettered_in_the_end(case: Case) -> None:
    patient = Queue("orders", Order)
    impatient = App(broker=case.broker)
    impatient.handler(patient, newer_wait=0.2)(case.take)
    impatient.send(Queue("orders", Order, schema=2), Order(key="new"))
    serve(impatient, stop=StopSignal(), until=case._done, resident=False)
    assert case.keys == set()
    (reason,) = case.reasons
    assert "version 2" in reason
    assert "no newer worker" in reason


def test_row_25_a_body_over_the_limit_is_refused_when_it_is_sent(case: Case) -> None:
    from penstock.errors import PenstockError

    with pytest.raises(PenstockError, match="body of"):
        case.app.send(ORDERS, Order(key="x" * 2_000_000))


ODD = {
    "row_40_newline_and_ansi": "a\nb\x1b[31mred",
    "row_41_sql": "'; DROP TABLE messages; --",
    "row_42_script": "<script>alert(1)</script>",
    "row_43_case": "Data.csv",
    "row_44_trailing_blank": "a ",
    "row_45_emoji": "\U0001f600",
    "row_46_nfd": "か\u3099",
    "row_47_formula": "=cmd|'/c calc'!A1",
}


@pytest.mark.parametrize("key", ODD.values(), ids=ODD)
def test_an_odd_value_arrives_literally(case: Case, key: str) -> None:
    case.app.send(ORDERS, Order(key=key))
    case.work()
    assert case.keys == {key, "before", "after"}
    assert case.reasons == []


def test_row_48_unknown_fields_are_left_to_the_model(case: Case) -> None:
    case.work(b'{"key": "a", "added_later": [1, 2]}')
    assert case.keys == {"before", "a", "after"}


def test_row_62_a_forged_replay_counter_changes_nothing(case: Case) -> None:
    for forged in ("many", "-1", "9" * 40):
        case.app.send(ORDERS, Order(key=forged), attributes={"sqs-dlq-replay-nb": forged})
    case.work()
    assert case.keys == {"many", "-1", "9" * 40, "before", "after"}
