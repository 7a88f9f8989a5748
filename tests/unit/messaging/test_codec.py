"""Bodies and their models: a handler decodes what a sender encoded, whatever names and types the model has."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel, ConfigDict, Field, computed_field

from penstock import Message, Queue
from penstock.errors import InvalidMessage, NewerMessage, UsageError
from penstock.messaging.schema import SCHEMA_ATTRIBUTE, TYPE_ATTRIBUTE, BodyCodec

ID = UUID("12345678-1234-5678-1234-567812345678")


class Renamed(BaseModel):
    id: int = Field(alias="orderId")


class Strict(BaseModel):
    model_config = ConfigDict(strict=True)
    id: UUID
    at: datetime
    tags: tuple[str, ...] = ()


class Encoded(BaseModel):
    model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64")
    data: bytes


class Narrow(BaseModel):
    model_config = ConfigDict(extra="forbid")
    price: int

    @computed_field  # type: ignore[prop-decorator] # as pydantic's manual has it
    @property
    def tax(self) -> int:
        return self.price // 5


class Numbered(msgspec.Struct):
    names: dict[int, str]
    id: UUID


@pytest.mark.parametrize(
    "body",
    [
        Renamed(orderId=7),
        Strict(id=ID, at=datetime(2026, 2, 3, tzinfo=UTC), tags=("a", "b")),
        Encoded(data=b"\xff\x00 hello"),
        Narrow(price=10),
        Numbered(names={1: "one"}, id=ID),
    ],
    ids=lambda body: type(body).__name__,
)
def test_a_sent_body_is_decoded_unchanged(body: Any) -> None:
    codec = BodyCodec(Queue("q", type(body)))
    assert codec.decode(message(codec.encode(body), **codec.attributes())) == body


def test_a_mapping_may_contain_json_values() -> None:
    codec = BodyCodec(Queue("q", Strict))
    sent = codec.encode({"id": str(ID), "at": "2026-02-03T00:00:00Z"})
    assert codec.decode(message(sent)) == Strict(id=ID, at=datetime(2026, 2, 3, tzinfo=UTC))
    with pytest.raises(UsageError, match="at: "):
        codec.encode({"id": str(ID), "at": "soon"})


def test_an_upcast_may_change_the_value_in_place_and_return_non_json_values() -> None:
    def to_second(value: dict[str, Any]) -> dict[str, Any]:
        value["at"] = datetime(2026, 2, 3, tzinfo=UTC)
        return value

    codec = BodyCodec(Queue("q", Strict, schema=2, upcasts={1: to_second}))
    unmarked = message(b'{"id": "12345678-1234-5678-1234-567812345678"}')
    for _ in range(2):
        assert codec.decode(unmarked) == Strict(id=ID, at=datetime(2026, 2, 3, tzinfo=UTC))


def test_a_type_attribute_in_bytes_is_accepted() -> None:
    codec = BodyCodec(Queue("q", Narrow))
    assert codec.decode(message(b'{"price": 1}', **{TYPE_ATTRIBUTE: b"Narrow"})) == Narrow(price=1)
    with pytest.raises(NewerMessage, match=r"\\\\xff"):
        codec.decode(message(b'{"price": 1}', **{TYPE_ATTRIBUTE: b"\xff"}))


@pytest.mark.parametrize("forged", ["0", "-1", "1.0", "", "²", "9" * 40, b"\xff", " 1", "1e3"])
def test_a_forged_version_is_refused(forged: str | bytes) -> None:
    with pytest.raises(InvalidMessage, match="has to be a number from 1"):
        BodyCodec(Queue("q", Narrow)).decode(message(b'{"price": 1}', **{SCHEMA_ATTRIBUTE: forged}))


def test_json_that_only_python_accepts_is_refused() -> None:
    for body in (b'{"price": 1, "price": 2}', b'{"price": NaN}', b'\xef\xbb\xbf{"price": 1}'):
        with pytest.raises(InvalidMessage):
            BodyCodec(Queue("q", Narrow)).decode(message(body))


def message(body: bytes, **attributes: Any) -> Message:
    return Message(id="m", body=body, enqueued_at=0.0, attributes=attributes)
