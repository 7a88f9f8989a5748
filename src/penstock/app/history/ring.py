"""The slots of the history: three rings, of 10 seconds for an hour, a minute for a day and ten minutes for two weeks.

- `record`: add a sample to its slot, and roll finished slots up into the next ring
- `read_series`: the slots of one queue or pipeline, over a range
- `read_field`: one value of all queues or pipelines, for sparklines

A row holds one slot of up to `SERIES_PER_ROW` series, compressed. A sample of a thousand queues is thus a few rows, and
a chart of one queue reads one row for each point. The key of a row orders rows by ring, group of series and slot. All
functions take the connection of one transaction.

The first value of a slot stays: a second writer only adds values that are unknown so far.
"""

import math
import sqlite3
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby, pairwise

from penstock.app.history.file import HistoryBroken
from penstock.app.history.points import FIELDS, HistorySample, SeriesKind, Values, merged

SERIES_PER_ROW = 64
SERIES_MAX = 5_000  # further ones are not recorded
FIELDS_MAX = 8  # places for a series in a row
FORGET_SECONDS = 15 * 86_400.0  # a series that was not seen for this long; its rows are gone by then
SEEN_EVERY_SECONDS = 6 * 3_600.0  # how exactly that is known
_FLOATS = struct.Struct(f"<{SERIES_PER_ROW * FIELDS_MAX}f")  # all first fields, all second fields, ...
_COLUMN = struct.Struct(f"<{SERIES_PER_ROW}f")
_VALUE = struct.Struct("<f")
_STORED_BYTES = (3, 2, 1)  # of the four of a value: whole numbers up to 65,536 stay exact, others to 0.01 %
_VALUES = SERIES_PER_ROW * FIELDS_MAX
_VALUE_MAX = 1e38
_SLOT_BITS, _GROUP_BITS = 34, 24
_UNKNOWN_VALUES: Values = (None,) * FIELDS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRing:
    """One resolution: the length of its slots, and how long they are kept."""

    number: int
    slot_seconds: int
    kept_seconds: int

    def slot(self, at: float) -> int:
        """Return the number of the slot at a time."""
        return int(at // self.slot_seconds)


RINGS = (
    HistoryRing(number=0, slot_seconds=10, kept_seconds=3_600),
    HistoryRing(number=1, slot_seconds=60, kept_seconds=86_400),
    HistoryRing(number=2, slot_seconds=600, kept_seconds=14 * 86_400),
)
FINEST = RINGS[0]


class HistoryRange(StrEnum):
    """The range of a chart; each has a ring of its own."""

    HOUR = "1h"
    DAY = "24h"
    WEEKS = "14d"

    @property
    def ring(self) -> HistoryRing:
        return RINGS[list(HistoryRange).index(self)]


SeriesIds = Mapping[tuple[int, bytes], int]  # by kind and name
Points = Sequence[tuple[float, Values]]  # with the beginning of the slot, in epoch seconds


def record(connection: sqlite3.Connection, sample: HistorySample) -> None:
    """Add a sample to its slot. If the slot is new, bring the coarser rings up to date."""
    _forget_future(connection, at=sample.at)
    if _add(connection, sample):
        groups = _groups(connection)
        for fine, coarse in pairwise(RINGS):
            for group in groups:
                _roll_up(connection, group, fine, coarse, at=sample.at)
        _forget_old(connection, groups, at=sample.at)


def read_series(
    connection: sqlite3.Connection, kind: SeriesKind, name: str, range_: HistoryRange, *, at: float
) -> Points:
    """Return the slots of one series up to ``at``, the oldest first; empty for an unknown one.

    The latest values, which are not rolled up yet, are taken from the finer rings.
    """
    series = _ids(connection).get((kind, _stored(name)))
    if series is None:
        return ()
    group, position = divmod(series, SERIES_PER_ROW)
    wanted = range_.ring
    found: dict[int, list[Values]] = {}
    since = at - wanted.kept_seconds
    for ring in reversed(RINGS[: wanted.number + 1]):
        rows = _rows(connection, ring, group, since=since, until=at)
        for slot, packed in rows:
            values = _values_at(packed, position)
            if values != _UNKNOWN_VALUES:
                found.setdefault(wanted.slot(slot * ring.slot_seconds), []).append(values)
        if rows:
            since = (rows[-1][0] + 1) * ring.slot_seconds
    return [(float(slot * wanted.slot_seconds), merged(found[slot], kind)) for slot in sorted(found)]


def read_field(
    connection: sqlite3.Connection, kind: SeriesKind, field: str, ring: HistoryRing, *, since: float, until: float
) -> Mapping[str, Sequence[tuple[float, float]]]:
    """Return one value of all series of a kind, by name: the slots of a ring that have it, the oldest first."""
    place = FIELDS[kind].index(field)
    names = {series: _name(stored) for (of, stored), series in _ids(connection).items() if of == kind}
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in names.values()}
    for group in sorted({series // SERIES_PER_ROW for series in names}):
        for slot, packed in _rows(connection, ring, group, since=since, until=until):
            column = _COLUMN.unpack_from(_inflated(packed), place * _COLUMN.size)
            for position, value in enumerate(column):
                name = names.get(group * SERIES_PER_ROW + position)
                if name is not None and not math.isnan(value):
                    found[name].append((float(slot * ring.slot_seconds), value))
    return found


def _add(connection: sqlite3.Connection, sample: HistorySample) -> bool:
    """Add the values that the slot does not have; return True if it had none."""
    ids, slot = _ids_of(connection, sample), FINEST.slot(sample.at)
    by_group: dict[int, dict[int, Values]] = {}
    for (kind, name), values in sample.series.items():
        series = ids.get((kind, _stored(name)))
        if series is not None:
            by_group.setdefault(series // SERIES_PER_ROW, {})[series % SERIES_PER_ROW] = values
    is_new = True
    for group, given in by_group.items():
        key = _key(FINEST, group, slot)
        before = connection.execute("SELECT packed FROM points WHERE key = ?", (key,)).fetchone()
        row = [_UNKNOWN_VALUES] * SERIES_PER_ROW if before is None else _unpacked(before[0])
        for position, values in given.items():
            row[position] = _filled(row[position], values)
        _put(connection, key, row)
        is_new = is_new and before is None
    return is_new


def _filled(known: Values, new: Values) -> Values:
    return [added if value is None else value for value, added in zip(known, _padded(new), strict=True)]


def _roll_up(connection: sqlite3.Connection, group: int, fine: HistoryRing, coarse: HistoryRing, *, at: float) -> None:
    """Make a coarse slot of the fine ones, for each that has ended since the last one."""
    now = coarse.slot(at)
    bounds = (_key(coarse, group, 0), _key(coarse, group, now))
    last = connection.execute("SELECT MAX(key) FROM points WHERE key BETWEEN ? AND ?", bounds).fetchone()[0]
    since = 0 if last is None else (_slot_of(last) + 1) * coarse.slot_seconds
    rows = _rows(connection, fine, group, since=since, until=now * coarse.slot_seconds - 1)
    if not rows:
        return
    kinds = {series: SeriesKind(kind) for (kind, _), series in _ids(connection).items()}
    for slot, found in groupby(rows, key=lambda row: coarse.slot(row[0] * fine.slot_seconds)):
        by_position = list(zip(*(_unpacked(packed) for _, packed in found), strict=True))
        row = [_UNKNOWN_VALUES] * SERIES_PER_ROW
        for position, values in enumerate(by_position):
            kind = kinds.get(group * SERIES_PER_ROW + position)
            if kind is not None:
                row[position] = merged(values, kind)
        _put(connection, _key(coarse, group, slot), row)


def _forget_future(connection: sqlite3.Connection, *, at: float) -> None:
    """Delete slots after ``at``: a clock was set back, and they would keep real values out until it is that time."""
    for ring in RINGS:
        for group in _groups(connection):
            bounds = (_key(ring, group, ring.slot(at) + 2), _key(ring, group + 1, 0))
            connection.execute("DELETE FROM points WHERE key >= ? AND key < ?", bounds)


def _forget_old(connection: sqlite3.Connection, groups: Sequence[int], *, at: float) -> None:
    for ring in RINGS:
        for group in groups:
            bounds = (_key(ring, group, 0), _key(ring, group, ring.slot(at - ring.kept_seconds)))
            connection.execute("DELETE FROM points WHERE key BETWEEN ? AND ?", bounds)
    connection.execute("DELETE FROM series WHERE seen_at < ?", (at - FORGET_SECONDS,))


def _ids_of(connection: sqlite3.Connection, sample: HistorySample) -> SeriesIds:
    """Return the ids of the sample's series and of all others; new series get one."""
    known = dict(_ids(connection))
    wanted = [(kind, _stored(name)) for kind, name in sample.series]
    new = [one for one in wanted if one not in known][: max(0, SERIES_MAX - len(known))]
    connection.executemany(
        "INSERT INTO series (kind, name, seen_at) VALUES (?, ?, ?)", [(*one, sample.at) for one in new]
    )
    seen = [(sample.at, *one, sample.at - SEEN_EVERY_SECONDS) for one in wanted if one in known]
    connection.executemany("UPDATE series SET seen_at = ? WHERE kind = ? AND name = ? AND seen_at < ?", seen)
    return _ids(connection) if new else known


def _ids(connection: sqlite3.Connection) -> SeriesIds:
    return {(kind, name): series for series, kind, name in connection.execute("SELECT id, kind, name FROM series")}


def _groups(connection: sqlite3.Connection) -> Sequence[int]:
    """Return the groups of all series, and those of forgotten ones between them."""
    least, most = connection.execute("SELECT MIN(id), MAX(id) FROM series").fetchone()
    return () if least is None else range(least // SERIES_PER_ROW, most // SERIES_PER_ROW + 1)


def _stored(name: str) -> bytes:
    return name.encode(errors="surrogatepass")


def _name(stored: bytes) -> str:
    return stored.decode(errors="surrogatepass")


def _rows(
    connection: sqlite3.Connection, ring: HistoryRing, group: int, *, since: float, until: float
) -> Sequence[tuple[int, bytes]]:
    bounds = (_key(ring, group, ring.slot(max(since, 0.0))), _key(ring, group, ring.slot(max(until, 0.0))))
    rows = connection.execute("SELECT key, packed FROM points WHERE key BETWEEN ? AND ? ORDER BY key", bounds)
    return [(_slot_of(key), packed) for key, packed in rows]


def _put(connection: sqlite3.Connection, key: int, row: Sequence[Values]) -> None:
    columns = zip(*(_padded(values) for values in row), strict=True)
    flat = (math.nan if value is None else min(value, _VALUE_MAX) for column in columns for value in column)
    floats = _FLOATS.pack(*flat)
    planes = b"".join(floats[byte :: _VALUE.size] for byte in _STORED_BYTES)  # bytes of one kind compress better
    connection.execute("INSERT OR REPLACE INTO points (key, packed) VALUES (?, ?)", (key, zlib.compress(planes)))


def _padded(values: Values) -> Values:
    return (*values, *_UNKNOWN_VALUES[len(values) :])


def _unpacked(packed: bytes) -> list[Values]:
    flat = [None if math.isnan(value) else value for value in _FLOATS.unpack(_inflated(packed))]
    return [tuple(flat[position::SERIES_PER_ROW]) for position in range(SERIES_PER_ROW)]


def _values_at(packed: bytes, position: int) -> Values:
    inflated = _inflated(packed)
    offsets = range(position * _VALUE.size, _FLOATS.size, _COLUMN.size)
    return tuple(None if math.isnan(value) else value for value in _values(inflated, offsets))


def _values(inflated: bytes, offsets: range) -> Iterator[float]:
    for offset in offsets:
        yield _VALUE.unpack_from(inflated, offset)[0]


def _inflated(packed: bytes) -> bytes:
    """Return the floats of a row as bytes. Raises `HistoryBroken`, also for a row that grows beyond its size."""
    planes_bytes = len(_STORED_BYTES) * _VALUES
    try:
        planes = zlib.decompressobj().decompress(packed, planes_bytes + 1)
    except (zlib.error, TypeError) as error:
        raise HistoryBroken(f"a row of the history cannot be read: {error}") from error
    if len(planes) != planes_bytes:
        raise HistoryBroken("a row of the history has another size")
    inflated = bytearray(_FLOATS.size)
    for number, byte in enumerate(_STORED_BYTES):
        inflated[byte :: _VALUE.size] = planes[number * _VALUES : (number + 1) * _VALUES]
    return bytes(inflated)


def _key(ring: HistoryRing, group: int, slot: int) -> int:
    return (ring.number << (_SLOT_BITS + _GROUP_BITS)) + (group << _SLOT_BITS) + slot


def _slot_of(key: int) -> int:
    return int(key) & ((1 << _SLOT_BITS) - 1)
