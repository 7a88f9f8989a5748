"""Patterns for object keys and paths: `*`, `?`, `[...]` and `**`.

=========  ==================================================================================================
`*`        any characters but a slash
`?`        one character but a slash
`[ab]`     one of these characters; `[a-z]` a range, `[!a]` any other one. `[*]` is a literal asterisk
`**`       as a whole part of a path: any number of folders, also none
`/`        at the end: everything below the folders that match
=========  ==================================================================================================

Everything else is literal, also a bracket without its end, and letter case counts. A pattern is one regular expression
whose time grows with the length of a key, since keys come from outside: each wildcard but the last of a part takes the
first match of the text behind it and never tries another one, as in Python's own `fnmatch`.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

_FOLDERS = "**"
_CLASS = re.compile(r"\[!?+\]?+[^\]/]*\]")
_MAGIC = re.compile(r"[*?]|" + _CLASS.pattern)
_SINGLE = re.compile(r"\[([^!])\]")
_ANY = "[^/]*"
# a part that begins with an underscore, as Spark's own files do, and is no Hive partition
UNDERSCORED = r"_[^/=]*(?:/|\Z)"
_PLAIN = f"(?!{UNDERSCORED})"
_KEPT_MAX = 1_024


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPattern:
    """An address with wildcards, cut at the last slash before the first one; ``pattern`` is "" without wildcards."""

    folder: str  # literal, without a slash at its end
    pattern: str  # relative to the folder


def has_wildcard(text: str) -> bool:
    """Return True if the text has a wildcard; a class of one character, such as `[*]`, is none."""
    return any(_SINGLE.fullmatch(found[0]) is None for found in _MAGIC.finditer(text))


def escaped(text: str) -> str:
    """Return the pattern that matches exactly this text."""
    return "".join(f"[{character}]" if character in "*?[" else character for character in text)


def unescaped(pattern: str) -> str:
    """Return the text that a pattern without wildcards matches."""
    return _MAGIC.sub(lambda found: found[0][1], pattern)


def cut(address: str) -> SplitPattern:
    """Cut an address at its first wildcard."""
    parts = address.split("/")
    first = next((number for number, part in enumerate(parts) if has_wildcard(part)), None)
    if first is None:
        return SplitPattern(folder=unescaped(address), pattern="")
    return SplitPattern(folder=unescaped("/".join(parts[:first])), pattern="/".join(parts[first:]))


def literal_prefix(pattern: str) -> str:
    """Return the longest text with which everything that matches begins."""
    for found in _MAGIC.finditer(pattern):
        if _SINGLE.fullmatch(found[0]) is None:
            return unescaped(pattern[: found.start()])
    return unescaped(pattern)


@lru_cache(_KEPT_MAX)
def compiled(pattern: str, *, plain: bool = False) -> re.Pattern[str]:
    """Return the regular expression of a pattern, for `fullmatch`.

    ``plain``: no wildcard matches the beginning of a part with an underscore, see `UNDERSCORED`.
    """
    guard = _PLAIN if plain else ""
    folders = f"(?:{guard}{_ANY}/)*"
    *firsts, last = _runs(f"{pattern}{_FOLDERS}" if pattern.endswith("/") else pattern)
    text = ""
    for number, run in enumerate(firsts):
        fixed = "".join(f"{_part(part, guard)}/" for part in run)
        text += fixed if number == 0 else f"(?>{folders}?{fixed})"
    if firsts:
        text += folders
    text += "/".join(_part(part, guard) for part in last) if last else f"{guard}[^/]+"
    return re.compile(text, re.DOTALL)


def may_begin(pattern: str, folder: str) -> bool:
    """Return True if something below a folder may match; the folder is relative and without a slash at its end."""
    parts = pattern.split("/")
    for number, name in enumerate(folder.split("/")):
        if number >= len(parts):
            return False
        if parts[number] == _FOLDERS or (number == len(parts) - 1 and not parts[number]):
            return True
        if not compiled(parts[number]).fullmatch(name):
            return False
    return True


def _runs(pattern: str) -> Sequence[Sequence[str]]:
    """Return the parts between `**`, as many lists as there are such parts and one more."""
    runs: list[list[str]] = [[]]
    for part in pattern.split("/"):
        if part == _FOLDERS:
            runs.append([])
        else:
            runs[-1].append(part)
    inner = [run for run in runs[1:-1] if run]  # two `**` in a row are one
    return [runs[0], *inner, runs[-1]] if len(runs) > 1 else runs


def _part(part: str, guard: str) -> str:
    """Return the expression of one part of a path."""
    tokens = list(_tokens(part))
    last = max((number for number, token in enumerate(tokens) if token == _ANY), default=-1)
    text, is_open = guard if _MAGIC.match(part) and not _SINGLE.match(part) else "", False
    for number, token in enumerate(tokens):
        if token != _ANY:
            text += token
        elif number == last:
            text += f"){_ANY}" if is_open else _ANY
            is_open = False
        else:
            text += f")(?>{_ANY}?" if is_open else f"(?>{_ANY}?"
            is_open = True
    return text


def _tokens(part: str) -> Iterator[str]:
    at = 0
    for found in _MAGIC.finditer(part):
        if at < found.start():
            yield re.escape(part[at : found.start()])
        at = found.end()
        match found[0]:
            case "*":
                yield _ANY
            case "?":
                yield "[^/]"
            case _:
                yield _class(found[0][1:-1])
    if at < len(part):
        yield re.escape(part[at:])


def _class(body: str) -> str:
    """Return the expression of a class; a range that ends before it begins holds nothing."""
    negated, body = body.startswith("!"), body.removeprefix("!")
    items, at = "", 0
    while at < len(body):
        if body[at + 1 : at + 2] == "-" and at + 2 < len(body):
            first, last, at = body[at], body[at + 2], at + 3
            items += f"{re.escape(first)}-{re.escape(last)}" if first <= last else ""
        else:
            items += re.escape(body[at])
            at += 1
    if negated:
        return f"[^/{items}]"
    return f"(?!/)[{items}]" if items else "(?!)"
