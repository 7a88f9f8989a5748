"""INSERT of many rows: statements of a few hundred kilobytes, where the driver would send one a row.

PyMySQL joins rows only where every value is a parameter, and spends most of the time on escaping them one by one.
Why values are written here: with the driver's executemany or SQLAlchemy's insertmanyvalues, a claim of 10,000 objects
costs 2.3 times the CPU (benchmarks/ledger_inserts.py; figures in docs/why/decisions/ledger-drivers.md). The fuzz test
`test_rows_are_read_as_they_were_written` (tests/integration/test_ledger_inserts.py) checks them on servers.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

STATEMENT_CHARS_MAX = 512 * 1024  # even the smallest max_allowed_packet in use, 4 MB, takes any such statement

_INSERT = re.compile(r"(INSERT INTO .*? VALUES )(\(.*\))( ON DUPLICATE KEY UPDATE .*)?", re.DOTALL)
_ESCAPES = str.maketrans({"\0": "\\0", "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\x1a": "\\Z", '"': '\\"', "'": "\\'"})


def insert_in_parts(cursor: Any, statement: str, parameters: Sequence[tuple[Any, ...]], _context: object) -> bool:
    """Run an INSERT of many rows; False for what is none, which the driver shall run. A hook of SQLAlchemy's."""
    parts = _INSERT.fullmatch(statement)
    if parts is None:
        return False
    head, row, tail = parts[1] % (), parts[2], (parts[3] or "") % ()
    columns = [list(map(literal, column)) for column in zip(*parameters, strict=True)]
    changed = 0
    for rows in _bounded(map(row.__mod__, zip(*columns, strict=True))):
        changed += cursor.execute(f"{head}{','.join(rows)}{tail}")
    cursor.rowcount = changed
    return True


def literal(value: object) -> str:
    """A value as SQL says it, in a session without NO_BACKSLASH_ESCAPES."""
    return _LITERALS[type(value)](value)


def _text(value: str) -> str:
    return f"'{value.translate(_ESCAPES)}'"


def _float(value: float) -> str:
    if value - value != 0.0:
        raise ValueError(f"{value} is no number that MySQL knows")
    written = repr(value)
    return written if "e" in written else f"{written}e0"  # without it a decimal


_LITERALS: Mapping[type, Callable[[Any], str]] = {
    bytes: lambda value: f"X'{value.hex()}'",
    str: _text,
    int: str,
    bool: lambda value: str(int(value)),
    float: _float,
    type(None): lambda _: "NULL",
}


def _bounded(rows: Iterator[str]) -> Iterator[list[str]]:
    """As many rows at once as a statement may hold, and at least one."""
    part: list[str] = []
    chars = 0
    for row in rows:
        if part and chars + len(row) > STATEMENT_CHARS_MAX:
            yield part
            part, chars = [], 0
        part.append(row)
        chars += len(row) + 1
    if part:
        yield part
