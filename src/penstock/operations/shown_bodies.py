"""The content of messages for people: bodies, attributes and error texts, harmless and without secrets.

`shown_body`, `download`, `shown_attributes` and `shown_text` obey the settings `web.hide_bodies` and `web.redact`.
Every page that shows content of a message uses them, so that no page shows what another one hides.

Their texts have no control characters but line feeds and tabs, and no characters that reorder or hide others. They are
not escaped for HTML: templates do that.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from penstock.config import Settings
from penstock.messaging.addresses import MASK
from penstock.messaging.death import DEATH_ATTRIBUTE, EARLIER_DEATHS_ATTRIBUTE, SET_ASIDE_ATTRIBUTE
from penstock.messaging.message import Attributes, Message
from penstock.operations.redaction import NotJson, RedactedText, Redaction, compact, pretty

SHOWN_CHARS_MAX = 64 * 1024  # of a body or an error text
SCANNED_BYTES_MAX = 4 * 1024 * 1024  # of a download; brokers take 1 MiB, but other programs may write to their files
ATTRIBUTE_CHARS_MAX = 4 * 1024
ATTRIBUTES_MAX = 200
DOWNLOAD_NAME = "message.bin"  # fixed: a name from outside could end in .exe, or hold a line break
_MARGIN_CHARS = 1_024  # inspected beyond what is shown
_HEX_CHARS_A_BYTE = 5  # of the dump
_HEX_ROW = 16
_OWN_SECTIONS = frozenset({DEATH_ATTRIBUTE, EARLIER_DEATHS_ATTRIBUTE, SET_ASIDE_ATTRIBUTE})

# Control characters, characters that reorder text or are invisible, and lone surrogates. Line feed and tab stay.
_UNPRINTABLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\xa0\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202f"
    "\u205f-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ud800-\udfff\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)


class BodyForm(StrEnum):
    """How a body is shown."""

    EMPTY = "empty"
    JSON = "json"
    TEXT = "text"
    HEX = "hex"
    HIDDEN = "hidden"


class HiddenReason(StrEnum):
    """Why a body is not shown."""

    SETTING = "setting"  # web.hide_bodies
    UNREADABLE = "unreadable"  # it names a secret, but where the secret's value ends is unknown, as it is not JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownBody:
    """A body for people. ``text`` still has to be escaped for HTML."""

    form: BodyForm
    text: str  # empty if it is hidden
    size_bytes: int  # of the whole body as stored
    cut: bool = False  # there is more than `text`
    redacted: int = 0  # number of values replaced in `text`
    hidden: HiddenReason | None = None
    downloadable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownAttribute:
    """An attribute for people. ``value`` is None if values are hidden by the settings."""

    name: str
    value: str | None
    size_bytes: int
    redacted: bool = False
    cut: bool = False
    binary: bool = False


def shown_body(message: Message, settings: Settings, *, chars_max: int = SHOWN_CHARS_MAX) -> ShownBody:
    """Return the body of a message as JSON, text or hex, without secrets, and at most ``chars_max`` characters of it.

    Its cost does not grow with the body. A body that is not JSON and names a secret is hidden as a whole.
    """
    body, redaction = message.body, _redaction(settings)
    if settings.web_hide_bodies:
        return _hidden(body, HiddenReason.SETTING)
    if not body.strip():
        return ShownBody(form=BodyForm.EMPTY, text="", size_bytes=len(body), downloadable=bool(body))
    text = _decoded(body)
    if text is None:
        return _shown_hex(body, redaction, chars_max)
    try:
        return _shown(BodyForm.JSON, pretty(text, redaction, chars_max=chars_max), body)
    except NotJson:
        if redaction.is_mentioned(text[: chars_max + _MARGIN_CHARS]):
            return _hidden(body, HiddenReason.UNREADABLE)
    cut = RedactedText(text=text[:chars_max], cut=len(text) > chars_max)
    return _shown(BodyForm.TEXT, cut, body)


def download(message: Message, settings: Settings) -> bytes | None:
    """Return the whole body without secrets, or None if it may not be seen.

    Only the values of secrets are replaced; a body without any is returned byte by byte. A body over
    `SCANNED_BYTES_MAX` that names a secret is not returned.
    """
    body, redaction = message.body, _redaction(settings)
    if settings.web_hide_bodies:
        return None
    if not redaction.names:
        return body
    text = _decoded(body)
    if text is None:
        return None if redaction.is_mentioned(body.decode("latin-1")) else body
    if redaction.is_absent(text):
        return body
    if len(body) > SCANNED_BYTES_MAX:
        return None
    try:
        redacted = compact(text, redaction)
    except NotJson:
        return None if redaction.is_mentioned(text) else body
    return redacted.text.encode() if redacted.redacted else body


def shown_attributes(attributes: Attributes, settings: Settings) -> Sequence[ShownAttribute]:
    """Return the first `ATTRIBUTES_MAX` attributes by name, without those of a death, which pages show on their own."""
    names = sorted(attributes.keys() - _OWN_SECTIONS)
    return [_shown_attribute(name, attributes[name], settings) for name in names[:ATTRIBUTES_MAX]]


def shown_text(text: str, settings: Settings, *, chars_max: int = SHOWN_CHARS_MAX) -> RedactedText:
    """Return an error text, such as a reason or a traceback, without secrets. The end is kept if it is too long."""
    cut = text[-chars_max:]
    redacted = _redaction(settings).text(cut)
    return RedactedText(text=printable(redacted.text), redacted=redacted.redacted, cut=len(cut) < len(text))


def printable(text: str) -> str:
    """Return the text with control characters, and those that reorder or hide text, as visible escapes."""
    return _UNPRINTABLE.sub(_escape, text)


def _shown(form: BodyForm, text: RedactedText, body: bytes) -> ShownBody:
    return ShownBody(form=form, text=printable(text.text), size_bytes=len(body), cut=text.cut, redacted=text.redacted)


def _hidden(body: bytes, reason: HiddenReason) -> ShownBody:
    return ShownBody(form=BodyForm.HIDDEN, text="", size_bytes=len(body), hidden=reason, downloadable=False)


def _shown_hex(body: bytes, redaction: Redaction, chars_max: int) -> ShownBody:
    part = body[: max(chars_max // _HEX_CHARS_A_BYTE, _HEX_ROW)]
    if redaction.is_mentioned(body[: len(part) + _MARGIN_CHARS].decode("latin-1")):
        return _hidden(body, HiddenReason.UNREADABLE)
    rows = (_hex_row(part[at : at + _HEX_ROW], at) for at in range(0, len(part), _HEX_ROW))
    return ShownBody(form=BodyForm.HEX, text="\n".join(rows), size_bytes=len(body), cut=len(body) > len(part))


def _hex_row(row: bytes, at: int) -> str:
    letters = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
    return f"{at:08x}  {row.hex(' '):<{3 * _HEX_ROW}} {letters}"


def _shown_attribute(name: str, value: str | bytes, settings: Settings) -> ShownAttribute:
    redaction, shown_name = _redaction(settings), printable(name[:ATTRIBUTE_CHARS_MAX])
    binary = isinstance(value, bytes)
    size = len(value) if isinstance(value, bytes) else len(value.encode("utf-8", "surrogatepass"))
    if settings.web_hide_bodies:
        return ShownAttribute(name=shown_name, value=None, size_bytes=size, binary=binary)
    if redaction.names_secret(name):
        return ShownAttribute(name=shown_name, value=MASK, size_bytes=size, redacted=True, binary=binary)
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    redacted = _redacted_value(text, redaction)
    if binary and not redacted.redacted:
        redacted = RedactedText(text=text.encode("latin-1")[:ATTRIBUTE_CHARS_MAX].hex(" "))
    return ShownAttribute(
        name=shown_name,
        value=printable(redacted.text[:ATTRIBUTE_CHARS_MAX]),
        size_bytes=size,
        redacted=redacted.redacted > 0,
        cut=redacted.cut or len(redacted.text) > ATTRIBUTE_CHARS_MAX or (binary and size > ATTRIBUTE_CHARS_MAX),
        binary=binary,
    )


def _redacted_value(text: str, redaction: Redaction) -> RedactedText:
    try:
        return compact(text, redaction, chars_max=ATTRIBUTE_CHARS_MAX)
    except NotJson:
        head = text[: 2 * ATTRIBUTE_CHARS_MAX]
        if head.lstrip()[:1] in ("{", "[") and redaction.is_mentioned(head):
            return RedactedText(text=MASK, redacted=1)
        return redaction.text(head)


def _decoded(body: bytes) -> str | None:
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _redaction(settings: Settings) -> Redaction:
    return _redaction_of(tuple(settings.web_redact))


@lru_cache(maxsize=8)
def _redaction_of(names: tuple[str, ...]) -> Redaction:
    return Redaction(names)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
