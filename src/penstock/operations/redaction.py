"""Replace the values of secrets in JSON and in texts, before people see them.

JSON is scanned and never parsed into values: so duplicate keys, integers of any length and any nesting stay as they
were sent, and no input exhausts the stack or the memory. What cannot be scanned is not guessed at: `NotJson`.

- `Redaction`: the names whose values are replaced
- `pieces`: the tokens of a JSON text, with one piece in the place of each secret
- `compact`, `pretty`: the redacted JSON as it was written, or one member a line
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from penstock.messaging.addresses import MASK

_NESTED_MAX = 8  # JSON in a string in JSON in a string ...; deeper strings are replaced as a whole
_NO_SEPARATORS = {ord(mark): None for mark in "-_."}  # in a name: api_key, api-key, api.key and apiKey are one
_SPACES = re.compile(r"\s+")
_INVISIBLE = re.compile("[\xad\u0300-\u036f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W_A-Z]+|[^\W_]+")
_NAME_CHARS_MAX = 200  # of a key; its last words decide
_SKIPPED_MAX = 20_000  # tokens of a secret value that are scanned for its end, before the rest is cut
_MARGIN_CHARS = 1_024  # more than any name; a secret's name comes before its value
_ESCAPE = re.compile(r"(?<!\\)\\++u([0-9a-fA-F]{4})")
_SPACE = re.compile(r"[ \t\n\r]*")
_TOKEN = re.compile(
    r'(?P<string>"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)(?![0-9.eE+-])"
    r"|(?P<word>true|false|null)(?![0-9A-Za-z_])"
    r"|(?P<mark>[{}\[\],:])"
)
_NO_LETTERS = {code: None for code in range(128) if not chr(code).isalnum()}
_INDENT = "  "
_INDENT_MAX = 32  # deeper levels are not indented further: each line of 100,000 levels would be as long as the text


class NotJson(Exception):
    """The text is not one valid JSON value."""


class _Cut(Exception):
    """The rest of the text is not scanned, since too little of it would be shown."""


class Part(Enum):
    """The role of a piece of JSON."""

    OPEN = "open"
    CLOSE = "close"
    COMMA = "comma"
    COLON = "colon"
    KEY = "key"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class JsonPiece:
    """A token, or a whole value that was replaced. ``start`` and ``end`` are its place in the source."""

    part: Part
    text: str
    start: int
    end: int
    redacted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RedactedText:
    """A text without the values of secrets."""

    text: str
    redacted: int = 0  # number of replaced values
    cut: bool = False  # more follows in the source


@dataclass(frozen=True, slots=True)
class Redaction:
    """The names whose values are secret: `password` means the keys password, Password and db_password, too.

    Case, separators and invisible characters make no difference, and a key may have further words before the name.
    """

    names: tuple[str, ...]
    _normal: frozenset[str] = field(init=False, repr=False)  # in the form of `_endings`
    _assignment: re.Pattern[str] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        spelled = [words for name in self.names if (words := _words(name))]
        normal = frozenset(separator.join(words) for words in spelled for separator in ("", " "))
        object.__setattr__(self, "_normal", normal)
        # What follows the name in JSON, Python, headers, URLs and XML, up to the end of the line that has the value.
        after = r"""[\w-]{0,40}[\s"'\\\])]{0,8}(?:[:=>]|%3[AaDd])\s{0,200}(?P<value>\S[^\n]*)"""
        assignment = f"(?:{'|'.join(sorted(map(_pattern, spelled)))}){after}"
        object.__setattr__(self, "_assignment", re.compile(assignment, re.IGNORECASE) if normal else None)

    def names_secret(self, name: str) -> bool:
        """Return True if the value of a key or attribute with this name is secret."""
        return not self._normal.isdisjoint(_endings(name))

    def is_absent(self, text: str) -> bool:
        """Return True if certainly no key or text in this JSON needs to be redacted, which a scan would take long to
        find out. False if unknown.
        """
        if not text.isascii() or "\\u" in text:
            return False
        letters = text.lower().translate(_NO_LETTERS)
        return not any(name in letters for name in self._normal)

    def is_mentioned(self, text: str) -> bool:
        """Return True if any of the names occurs in the text, in any spelling that would make a key secret."""
        plain = _SPACES.sub(" ", _plain(text).casefold()).translate(_NO_SEPARATORS)
        return any(name in plain for name in self._normal)

    def is_assigned(self, text: str) -> bool:
        """Return True if any of the names occurs in the text with something that looks like its value."""
        if self._assignment is None:
            return False
        return any(self._assignment.search(form) is not None for form in {text, _plain(text)})

    def text(self, text: str) -> RedactedText:
        """Return a text such as a traceback, with the rest of the line after each name replaced.

        If the value may continue on further lines, everything after it is replaced.
        """
        if self._assignment is None or not self.is_assigned(text):
            return RedactedText(text=text)
        if self._assignment.search(text) is None:  # visible only without its escapes
            return RedactedText(text=MASK, redacted=1)
        found: list[str] = []
        at = count = 0
        while (match := self._assignment.search(text, at)) is not None:
            found += [text[at : match.start("value")], MASK]
            count += 1
            at = len(text) if _may_continue(match["value"]) else match.end()
        return RedactedText(text="".join([*found, text[at:]]), redacted=count)


def pieces(text: str, redaction: Redaction, *, nested: int = 0, chars_max: int | None = None) -> Iterator[JsonPiece]:
    """Yield the tokens of a JSON text, without white space, in which each secret value is one piece.

    Raises `NotJson` where the text stops being JSON: pieces before it were yielded already. ``chars_max`` limits the
    text of values that are JSON themselves; set it if no more will be shown. Then a secret that is very long ends the
    pieces with `_Cut`.
    """
    hidden_from, depth, skipped = -1, 0, 0  # the start of the secret value being skipped, its open brackets, its tokens
    is_secret = False
    for piece in _tokens(text):
        if hidden_from >= 0:
            skipped += 1
            depth += (piece.part is Part.OPEN) - (piece.part is Part.CLOSE)
            is_too_long = chars_max is not None and skipped > _SKIPPED_MAX
            if depth == 0 or is_too_long:
                yield _masked(hidden_from, piece.end)
                hidden_from = -1
            if depth and is_too_long:
                raise _Cut
        elif piece.part is Part.KEY:
            is_secret = redaction.names_secret(_string(piece.text))
            yield piece
        elif is_secret and piece.part is Part.OPEN:
            hidden_from, depth, skipped, is_secret = piece.start, 1, 0, False
        elif is_secret and piece.part is Part.VALUE:
            is_secret = False
            yield _masked(piece.start, piece.end)
        elif piece.part is Part.VALUE and piece.text[0] == '"':
            yield _inspected(piece, redaction, nested, chars_max)
        else:
            yield piece


def compact(text: str, redaction: Redaction, *, nested: int = 0, chars_max: int | None = None) -> RedactedText:
    """Return the JSON as it was written, but for its secrets. Raises `NotJson`."""
    found: list[str] = []
    at = count = size = 0
    try:
        for piece in pieces(text, redaction, nested=nested, chars_max=chars_max):
            if piece.redacted:
                found += [text[at : piece.start], piece.text]
                size += piece.start - at + len(piece.text)
                at, count = piece.end, count + 1
            if chars_max is not None and size + piece.end - at > chars_max:
                found.append(text[at : piece.end])
                raise _Cut
    except _Cut:
        return RedactedText(text="".join(found)[:chars_max], redacted=count, cut=True)
    return RedactedText(text="".join([*found, text[at:]]), redacted=count)


def pretty(text: str, redaction: Redaction, *, chars_max: int) -> RedactedText:
    """Return the JSON with one member or item a line, without its secrets. Raises `NotJson`.

    The scan ends with ``chars_max``, so that a long text costs no more; what follows was not checked.
    """
    found: list[str] = []
    size = depth = count = 0
    before: Part | None = None
    try:
        for piece in pieces(text, redaction, chars_max=chars_max):
            depth -= piece.part is Part.CLOSE
            shown = _space_before(piece.part, before, depth) + piece.text
            depth += piece.part is Part.OPEN
            found.append(shown)
            size, count, before = size + len(shown), count + piece.redacted, piece.part
            if size > chars_max:
                raise _Cut
    except _Cut:
        return RedactedText(text="".join(found)[:chars_max], redacted=count, cut=True)
    return RedactedText(text="".join(found), redacted=count)


def _space_before(part: Part, before: Part | None, depth: int) -> str:
    if before is Part.COLON:
        return " "
    if before is None or part in (Part.COMMA, Part.COLON) or (before is Part.OPEN and part is Part.CLOSE):
        return ""
    return "\n" + _INDENT * min(depth, _INDENT_MAX)


def _tokens(text: str) -> Iterator[JsonPiece]:
    """Yield the tokens of one JSON value. Raises `NotJson`. Keeps one character per open bracket, and nothing else."""
    open_brackets: list[str] = []
    expected = frozenset({"value"})
    at = _end_of_space(text, 0)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or not expected:
            raise NotJson
        token, start = match[0], at
        part, expected = _step(match.lastgroup == "mark", token, expected, open_brackets)
        at = _end_of_space(text, match.end())
        yield JsonPiece(part, token, start, match.end())
    if open_brackets or expected:
        raise NotJson


_AFTER_VALUE_IN_OBJECT = frozenset({",", "}"})
_AFTER_VALUE_IN_LIST = frozenset({",", "]"})
_NOTHING: frozenset[str] = frozenset()
_IN_NEW_OBJECT, _IN_NEW_LIST = frozenset({"key", "}"}), frozenset({"value", "]"})
_KEY, _VALUE, _COLON = frozenset({"key"}), frozenset({"value"}), frozenset({":"})


def _step(is_mark: bool, token: str, expected: frozenset[str], open_brackets: list[str]) -> tuple[Part, frozenset[str]]:
    """Return the role of a token, and what may follow it. Updates the open brackets. Raises `NotJson`."""
    if not is_mark:
        if "key" in expected and token[0] == '"':
            return Part.KEY, _COLON
        if "value" not in expected:
            raise NotJson
        return Part.VALUE, _after_value(open_brackets)
    if token in "{[":
        if "value" not in expected:
            raise NotJson
        open_brackets.append(token)
        return Part.OPEN, _IN_NEW_OBJECT if token == "{" else _IN_NEW_LIST
    if token not in expected:
        raise NotJson
    if token in "}]":
        open_brackets.pop()
        return Part.CLOSE, _after_value(open_brackets)
    if token == ":":
        return Part.COLON, _VALUE
    return Part.COMMA, _KEY if open_brackets[-1] == "{" else _VALUE


def _after_value(open_brackets: Sequence[str]) -> frozenset[str]:
    if not open_brackets:
        return _NOTHING
    return _AFTER_VALUE_IN_OBJECT if open_brackets[-1] == "{" else _AFTER_VALUE_IN_LIST


def _inspected(piece: JsonPiece, redaction: Redaction, nested: int, chars_max: int | None) -> JsonPiece:
    """Return a string value, without the secrets in it: it may hold JSON itself, as the envelopes of SNS do."""
    if not redaction.names or len(piece.text) <= 3:
        return piece
    text = _string(piece.text)
    inspected_max = None if chars_max is None else chars_max + _MARGIN_CHARS
    if text.lstrip(" \t\r\n\ufeff")[:1] in ("{", "[", '"'):
        try:
            if nested >= _NESTED_MAX:
                raise NotJson
            inner = compact(text, redaction, nested=nested + 1, chars_max=chars_max)
        except NotJson:
            return _masked(piece.start, piece.end) if redaction.is_mentioned(text[:inspected_max]) else piece
        if inner.redacted or inner.cut:
            return JsonPiece(Part.VALUE, json.dumps(inner.text), piece.start, piece.end, redacted=inner.redacted > 0)
        return piece
    return _masked(piece.start, piece.end) if redaction.is_assigned(text[:inspected_max]) else piece


def _masked(start: int, end: int) -> JsonPiece:
    return JsonPiece(Part.VALUE, f'"{MASK}"', start, end, redacted=True)


def _string(token: str) -> str:
    if "\\" not in token:
        return token[1:-1]
    value: str = json.loads(token)
    return value


def _end_of_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return at if match is None else match.end()


def _words(name: str) -> list[str]:
    """Return the words of a name, in lower case: api and key for `api_key`, `API-Key` and `apiKey`."""
    return [word.casefold() for word in _WORDS.findall(_plain(name))]


@lru_cache(maxsize=4096)
def _endings(name: str) -> frozenset[str]:
    """Return the last words of a name: `my_api_key` ends in key, apikey and myapikey, `my api key` in api key."""
    found: list[str] = []
    ending, start = "", 0
    for match in reversed([*_WORDS.finditer(_plain(name[-_NAME_CHARS_MAX:]))]):
        separator = match.string[match.end() : start] if ending else ""
        between = " " if separator.isspace() else separator.translate(_NO_SEPARATORS)
        ending, start = match[0].casefold() + between + ending, match.start()
        found.append(ending)
    return frozenset(found)


def _pattern(words: Sequence[str]) -> str:
    """Return the pattern of a name in a text, with any separators."""
    return r"[-_.\s]?".join("[-_.]?".join(map(re.escape, word)) for word in words)


def _plain(text: str) -> str:
    """Return the text as a reader of it may see it: without zero bytes, as UTF-16 has them, without characters that are
    invisible, with \\u escapes resolved, also escaped ones, and with full-width characters as usual ones.
    """
    if "\0" in text:
        text = text.replace("\0", "")
    for _ in range(_NESTED_MAX):
        if "\\u" not in text:
            break
        text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)), text)
    return text if text.isascii() else _INVISIBLE.sub("", unicodedata.normalize("NFKC", text))


def _may_continue(value: str) -> bool:
    """Return True if a value may end on a later line: a bracket or a quote of three is open."""
    return value.lstrip("([bfru").startswith(('"""', "'''")) or any(
        value.count(opening) > value.count(closing) for opening, closing in ("{}", "[]", "()")
    )
