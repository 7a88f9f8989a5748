"""Message bodies and their contracts: from a queue's model to bytes and back, across versions.

`decode` and `load` read JSON from untrusted senders: strict, bounded, and with a reason for every rejection. They
reject input that Python's own parser accepts but two readers could interpret differently: duplicate keys, NaN,
numbers that overflow, lone surrogates.

A `Queue` is the contract shared by sender and handler. A sender writes the type and the schema version of a body
into two attributes. A `BodyCodec` upcasts older versions, and leaves newer ones to a newer worker. Reading raises
`InvalidMessage` or `NewerMessage` and nothing else, for any input.
"""

import inspect
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json

from penstock.errors import ConfigurationError, InvalidMessage, NewerMessage, UsageError
from penstock.messaging.declarations import checks_class_options
from penstock.messaging.message import NO_ATTRIBUTES, Attributes, Message

NESTING_MAX = 100
INTEGER_DIGITS_MAX = 100
_SHOWN_CHARS_MAX = 60

_CONTAINERS = (b"{", b"[")
_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")
_ARCHIVES = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "a zip archive"}  # never decompressed, so a zip bomb is harmless

# A string (the closing quote is optional, so that an unclosed one takes one pass without restarts) or a bracket.
_TOKENS = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[\]{}]', re.DOTALL)
_SURROGATE_ESCAPES = re.compile(r"\\u[dD][89a-fA-F]")


def decode(body: bytes) -> str:
    """Return the body as text. It must be UTF-8 without a byte order mark."""
    if body[:1] in _CONTAINERS and 0 not in body[:4]:  # true of nearly all bodies: no need for the checks below
        return _decoded(body)
    if not body.strip():
        raise InvalidMessage("the body is empty; expected JSON")
    if body.startswith(_UTF8_BOM):
        raise InvalidMessage("the body starts with a byte order mark; send plain UTF-8")
    for magic, kind in _ARCHIVES.items():
        if body.startswith(magic):
            raise InvalidMessage(f"the body is {kind}; send plain UTF-8")
    if body.startswith(_UTF16_BOMS) or b"\0" in body[:4]:
        raise InvalidMessage("the body is UTF-16 or UTF-32; send UTF-8")
    return _decoded(body)


def load(text: str) -> object:
    """Return the one JSON value in the text."""
    if text.startswith("\ufeff"):
        raise InvalidMessage("the text starts with a byte order mark; send plain UTF-8")
    _check_nesting(text)
    try:
        value: object = _DECODER.decode(text)
        _check_surrogates(text, value)
    except json.JSONDecodeError as error:
        raise InvalidMessage(f"not JSON: {error.msg} at line {error.lineno} column {error.colno}") from None
    return value


def show(value: object) -> str:
    """Return a value for an error message: one short printable ASCII line, containers only by kind."""
    match value:
        case dict():
            return "an object"
        case list():
            return "a list"
        case str() if len(value) > _SHOWN_CHARS_MAX:
            return json.dumps(value[:_SHOWN_CHARS_MAX]) + "..."
        case _:
            return json.dumps(value)


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise InvalidMessage(f"the body is not UTF-8: byte 0x{body[error.start]:02x} at offset {error.start}") from None


def _check_nesting(text: str) -> None:
    # Python's parser recurses in C up to the process's recursion limit, which we do not control.
    if text.count("{") + text.count("[") <= NESTING_MAX:
        return
    depth = 0
    for token in _TOKENS.finditer(text):
        match text[token.start()]:
            case "{" | "[":
                depth += 1
                if depth > NESTING_MAX:
                    raise InvalidMessage(f"the JSON is nested deeper than {NESTING_MAX} levels")
            case "}" | "]":
                depth -= 1


def _object(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) == len(pairs):
        return members
    repeated, _ = Counter(name for name, _ in pairs).most_common(1)[0]
    raise InvalidMessage(f"the key {show(repeated)} appears twice in one JSON object")


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidMessage(f"{name} is not a JSON number")


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise InvalidMessage(f"the number {digits[:_SHOWN_CHARS_MAX]} is too large")
    return value


def _integer(digits: str) -> int:
    if len(digits) > INTEGER_DIGITS_MAX:
        raise InvalidMessage(f"an integer of {len(digits)} digits is too large; at most {INTEGER_DIGITS_MAX} are read")
    return int(digits)


def _check_surrogates(text: str, value: object) -> None:
    if "\\u" not in text or _SURROGATE_ESCAPES.search(text) is None:
        return
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"the JSON contains a lone surrogate, \\u{ord(error.object[error.start]):04x}: half a character"
        ) from None


_DECODER = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float, parse_int=_integer
)


Body = TypeVar("Body")
Upcast = Callable[[Any], Any]  # the JSON value of one version -> that of the next


@checks_class_options("Queue")
@dataclass(frozen=True, eq=False)  # no slots, because `Queue[Model](...)` sets an attribute
class Queue(Generic[Body]):
    """The contract of one queue; sender and handler import the same instance.

    Without a model, the handler receives the `Message` unchanged, and bodies to send are bytes, text or JSON values.
    With a model, bodies are validated.

    Args:
        name: The queue's name, URL or ARN.
        model: A pydantic model, or a type that msgspec supports.
        schema: The version of the model, from 1. It is sent in the attribute ``penstock-schema``. A message without
            it has the oldest version that an upcast starts from, or else the current one.
        type: The value of the attribute ``penstock-type``; by default the model's name.
        upcasts: A function from each older version to the next: ``{1: v1_to_v2}``.

    Raises:
        ConfigurationError: The name is empty, the schema version is below 1, or the upcasts have a gap.
    """

    name: str
    model: type[Body] | None = None
    schema: int = field(default=1, kw_only=True)
    type: str | None = field(default=None, kw_only=True)
    upcasts: Mapping[int, Upcast] = field(default_factory=dict, kw_only=True)

    def __post_init__(self) -> None:
        if not self.name:
            raise ConfigurationError("A queue needs a name, URL or ARN.")
        if self.schema < 1:
            raise ConfigurationError(f"The queue {self.name} has schema version {self.schema}; they begin with 1.")
        versions = sorted(self.upcasts)
        if versions and versions != list(range(versions[0], self.schema)):
            raise ConfigurationError(
                f"The upcasts of the queue {self.name} start from {', '.join(map(str, versions))}. Each leads to the "
                f"next version, so none may be missing up to version {self.schema}."
            )


TYPE_ATTRIBUTE = "penstock-type"
SCHEMA_ATTRIBUTE = "penstock-schema"
BODY_BYTES_MAX = 1024 * 1024  # larger bodies cannot be valid messages, and would take long to validate
PROBLEMS_SHOWN_MAX = 3


class BodyCodec(Generic[Body]):
    """Read and write the bodies of one queue. Created once per handler or sender. Thread-safe."""

    def __init__(self, queue: Queue[Body]) -> None:
        self._queue = queue
        self._type = queue.type or (None if queue.model is None else getattr(queue.model, "__name__", None))
        self._model = _model_of(queue)

    def encode(self, body: object) -> bytes:
        """Return the body as bytes. Raises `UsageError` if it does not fit the queue's model."""
        if self._model is None:
            return _plain_bytes(self._queue.name, body)
        try:
            return self._model.write(body)
        except Exception as error:
            model = _name(self._queue.model)
            raise UsageError(
                f"A body for the queue {self._queue.name} does not fit {model}: {_invalid_fields(error)}."
            ) from error

    def attributes(self) -> Attributes:
        """Return the attributes sent with every body."""
        if self._queue.model is None or self._type is None:
            return NO_ATTRIBUTES
        return MappingProxyType({TYPE_ATTRIBUTE: self._type, SCHEMA_ATTRIBUTE: str(self._queue.schema)})

    def decode(self, message: Message) -> Body | Message:
        """Return the typed body, or the message itself if the queue has no model.

        Raises `InvalidMessage` with the reason, or `NewerMessage` for an unknown type or a newer version.
        """
        if self._model is None:
            return message
        version = self._version(message.attributes)
        if len(message.body) > BODY_BYTES_MAX:
            raise InvalidMessage(f"the body has {len(message.body)} bytes; at most {BODY_BYTES_MAX} are read")
        written = load(decode(message.body))
        value = self._upcast(written, version)
        try:
            body: Body = self._model.read(value, message.body if version == self._queue.schema else None)
        except Exception as error:  # a user's validator may raise anything
            raise InvalidMessage(
                f"the body does not fit {_name(self._queue.model)}: {_invalid_fields(error)}"
            ) from error
        return body

    def _version(self, attributes: Attributes) -> int:
        """Return the version of the body. Raises `NewerMessage` if this code cannot read it."""
        type_name = attributes.get(TYPE_ATTRIBUTE)
        if type_name is not None and _text(type_name) != self._type:
            raise NewerMessage(f"its type is {show(_text(type_name))}, and this worker knows {self._type} only")
        version = _number(attributes.get(SCHEMA_ATTRIBUTE), default=self._unmarked())
        if version > self._queue.schema:
            raise NewerMessage(f"its schema is version {version}, and this worker knows {self._queue.schema}")
        return version

    def _unmarked(self) -> int:
        """Return the version of a body without one: senders unaware of versions write the first."""
        return min(self._queue.upcasts, default=self._queue.schema)

    def _upcast(self, value: object, version: int) -> object:
        while version < self._queue.schema:
            upcast = self._queue.upcasts.get(version)
            if upcast is None:
                raise InvalidMessage(f"its schema is version {version}, and no upcast starts from that version")
            try:
                value = upcast(value)
            except Exception as error:  # the user's code, on untrusted input
                raise InvalidMessage(f"upcasting it from version {version} failed: {_invalid_fields(error)}") from error
            version += 1
        return value


class _Model(Protocol):
    """Serialisation by one model library. Both methods raise that library's exceptions."""

    def write(self, body: Any) -> bytes:
        """Return a value of the model, or a mapping that makes one, as JSON."""
        ...

    def read(self, value: object, text: bytes | None) -> Any:
        """Return a value of the model from a JSON value; ``text`` is its JSON text if it was not upcast."""
        ...


class _Pydantic:
    """Validates JSON as JSON: a strict model accepts a date in a JSON string, but not in a Python string."""

    def __init__(self, model: Any) -> None:

        self._adapter: TypeAdapter[Any] = TypeAdapter(model)

    def write(self, body: Any) -> bytes:
        # The output must be readable again: with the aliases that are read, and without computed fields.
        return self._adapter.dump_json(self._value(body), by_alias=True, round_trip=True)

    def read(self, value: object, text: bytes | None) -> Any:

        return self._adapter.validate_json(to_json(value) if text is None else text)

    def _value(self, body: Any) -> Any:

        try:
            return self._adapter.validate_python(body)
        except ValidationError:
            if not isinstance(body, Mapping):
                raise
            return self.read(body, None)  # a mapping may hold JSON values


class _Msgspec:
    """Converts Python values by the same rules as JSON, except for the keys of objects, which are strings in JSON."""

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
    msgspec = sys.modules.get("msgspec")  # a msgspec model requires that msgspec is imported
    if msgspec is not None and inspect.isclass(queue.model) and issubclass(queue.model, msgspec.Struct):
        return _Msgspec(queue.model, msgspec)
    return _Pydantic(queue.model)


def _plain_bytes(queue: str, body: object) -> bytes:
    if isinstance(body, bytes):
        return body
    if isinstance(body, str):
        return body.encode("utf-8")

    try:
        return to_json(body)
    except PydanticSerializationError as error:
        raise UsageError(f"A body for the queue {queue} is neither bytes, text nor a JSON value: {error}.") from error


def _invalid_fields(error: Exception) -> str:
    """Return the invalid fields and the expected values. Actual values are left out, since they may be secrets."""
    details = getattr(error, "errors", None)
    if not callable(details):
        return f"{error}" if type(error).__module__.startswith("msgspec") else f"{type(error).__name__}: {error}"
    problems = details(include_url=False, include_input=False, include_context=False)
    shown = [
        f"{'.'.join(map(str, problem['loc'])) or 'the body'}: {problem['msg']}"
        for problem in problems[:PROBLEMS_SHOWN_MAX]
    ]
    more = len(problems) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")


def _number(value: str | bytes | None, *, default: int) -> int:
    if value is None:
        return default
    text = _text(value)
    if not (text.isascii() and text.isdigit() and 1 <= len(text) <= 9 and int(text) >= 1):
        raise InvalidMessage(f"its attribute {SCHEMA_ATTRIBUTE} is {show(text)}; it has to be a number from 1")
    return int(text)


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "backslashreplace")


def _name(model: object) -> str:
    return getattr(model, "__name__", str(model))
