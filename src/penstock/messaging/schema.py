"""Bodies and their contracts: from a queue's model to bytes and back, across versions.

A sender writes the type and the schema version of what it sends into two attributes. A reader upcasts what is older,
and leaves what is newer to a newer worker. Whatever a body holds, reading it raises `InvalidMessage` or `NewerMessage`,
nothing else.
"""

import inspect
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from penstock.errors import InvalidMessage, NewerMessage, UsageError
from penstock.messaging import strict_json
from penstock.messaging.message import NO_ATTRIBUTES, Attributes, Message
from penstock.messaging.queue import Queue

TYPE_ATTRIBUTE = "penstock-type"
SCHEMA_ATTRIBUTE = "penstock-schema"
BODY_BYTES_MAX = 1024 * 1024  # larger bodies are no messages of ours, and would take long to check
PROBLEMS_SHOWN_MAX = 3

Body = TypeVar("Body")


class Codec(Generic[Body]):
    """Reads and writes the bodies of one queue. Made once, used by any thread."""

    def __init__(self, queue: Queue[Body]) -> None:
        self._queue = queue
        self._type = queue.type or (None if queue.model is None else getattr(queue.model, "__name__", None))
        self._model = _model_of(queue)

    def encode(self, body: object) -> bytes:
        """The body as it is sent. Raises `UsageError` for one that does not fit the queue's model."""
        if self._model is None:
            return _plain_bytes(self._queue.name, body)
        try:
            return self._model.write(body)
        except Exception as error:
            raise UsageError(
                f"A body for the queue {self._queue.name} does not fit {_name(self._queue.model)}: {_told(error)}."
            ) from error

    def attributes(self) -> Attributes:
        """What is sent with every body."""
        if self._queue.model is None or self._type is None:
            return NO_ATTRIBUTES
        return MappingProxyType({TYPE_ATTRIBUTE: self._type, SCHEMA_ATTRIBUTE: str(self._queue.schema)})

    def decode(self, message: Message) -> Body | Message:
        """The typed body; the message itself where the queue has no model.

        Raises `InvalidMessage` with what does not fit, `NewerMessage` for a type or version this code does not know.
        """
        if self._model is None:
            return message
        version = self._version(message.attributes)
        if len(message.body) > BODY_BYTES_MAX:
            raise InvalidMessage(f"the body has {len(message.body)} bytes; at most {BODY_BYTES_MAX} are read")
        written = strict_json.load(strict_json.decode(message.body))
        value = self._upcast(written, version)
        try:
            body: Body = self._model.read(value, message.body if version == self._queue.schema else None)
        except Exception as error:  # a validator of the user's may raise anything
            raise InvalidMessage(f"the body does not fit {_name(self._queue.model)}: {_told(error)}") from error
        return body

    def _version(self, attributes: Attributes) -> int:
        """The version the body was written in, if we can read it."""
        type_name = attributes.get(TYPE_ATTRIBUTE)
        if type_name is not None and _text(type_name) != self._type:
            raise NewerMessage(
                f"its type is {strict_json.show(_text(type_name))}, and this worker knows {self._type} only"
            )
        version = _number(attributes.get(SCHEMA_ATTRIBUTE), default=self._unmarked())
        if version > self._queue.schema:
            raise NewerMessage(f"its schema is version {version}, and this worker knows {self._queue.schema}")
        return version

    def _unmarked(self) -> int:
        """What a body without a version is taken for: senders that know no versions write the first one."""
        return min(self._queue.upcasts, default=self._queue.schema)

    def _upcast(self, value: object, version: int) -> object:
        while version < self._queue.schema:
            upcast = self._queue.upcasts.get(version)
            if upcast is None:
                raise InvalidMessage(
                    f"its schema is version {version}, and nothing leads from there to the current one"
                )
            try:
                value = upcast(value)
            except Exception as error:  # the user's code, on whatever came
                raise InvalidMessage(f"upcasting it from version {version} failed: {_told(error)}") from error
            version += 1
        return value


class _Model(Protocol):
    """A model's two ways. Both raise whatever the model's library does."""

    def write(self, body: Any) -> bytes:
        """JSON of a value of the model, or of a mapping that makes one."""
        ...

    def read(self, value: object, text: bytes | None) -> Any:
        """A value of the model from a JSON value; ``text`` is its JSON, where nothing was changed since."""
        ...


class _Pydantic:
    """Reads JSON as JSON: what a strict model takes there (a date in a string) it refuses of a Python value."""

    def __init__(self, model: Any) -> None:
        from pydantic import TypeAdapter

        self._adapter: TypeAdapter[Any] = TypeAdapter(model)

    def write(self, body: Any) -> bytes:
        # What is written has to be readable: under the names that are read, and without computed fields.
        return self._adapter.dump_json(self._value(body), by_alias=True, round_trip=True)

    def read(self, value: object, text: bytes | None) -> Any:
        from pydantic_core import to_json

        return self._adapter.validate_json(to_json(value) if text is None else text)

    def _value(self, body: Any) -> Any:
        from pydantic import ValidationError

        try:
            return self._adapter.validate_python(body)
        except ValidationError:
            if not isinstance(body, Mapping):
                raise
            return self.read(body, None)  # a mapping may hold what JSON would


class _Msgspec:
    """Python's values are made by the same rules as JSON's, but for the keys of objects, which JSON has as texts."""

    def __init__(self, model: Any, msgspec: Any) -> None:
        self._model = model
        self._convert = msgspec.convert
        self._encoder = msgspec.json.Encoder()

    def write(self, body: Any) -> bytes:
        written: bytes = self._encoder.encode(self._convert(body, self._model) if isinstance(body, Mapping) else body)
        return written

    def read(self, value: object, text: bytes | None) -> Any:  # noqa: ARG002 - the signature is `_Model`'s
        return self._convert(value, self._model, str_keys=True)


def _model_of(queue: Queue[Any]) -> _Model | None:
    if queue.model is None:
        return None
    msgspec = sys.modules.get("msgspec")  # a model of msgspec's cannot be there without it
    if msgspec is not None and inspect.isclass(queue.model) and issubclass(queue.model, msgspec.Struct):
        return _Msgspec(queue.model, msgspec)
    return _Pydantic(queue.model)


def _plain_bytes(queue: str, body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode("utf-8")
    from pydantic_core import PydanticSerializationError, to_json

    try:
        return to_json(body)
    except PydanticSerializationError as error:
        raise UsageError(f"A body for the queue {queue} is neither bytes, text nor a JSON value: {error}.") from error


def _told(error: Exception) -> str:
    """Which field, and what was expected; values are left out, for they may be secrets."""
    details = getattr(error, "errors", None)
    if not callable(details):
        return f"{error}" if type(error).__module__.startswith("msgspec") else f"{type(error).__name__}: {error}"
    problems = details(include_url=False, include_input=False, include_context=False)
    told = [
        f"{'.'.join(map(str, problem['loc'])) or 'the body'}: {problem['msg']}"
        for problem in problems[:PROBLEMS_SHOWN_MAX]
    ]
    more = len(problems) - len(told)
    return "; ".join(told) + (f"; and {more} more" if more else "")


def _number(value: str | bytes | None, *, default: int) -> int:
    if value is None:
        return default
    text = _text(value)
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) >= 1):
        raise InvalidMessage(f"its attribute {SCHEMA_ATTRIBUTE} is {strict_json.show(text)}; it holds a number from 1")
    return int(text)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def _name(model: object) -> str:
    return getattr(model, "__name__", str(model))
