"""Decode the rows of Avro blocks into Arrow columns. `AvroDecoder` is one schema with the columns wanted of it.

Where a value begins is known only after the one before it, so rows are scanned value by value, by a Python function
written for the schema: it steps over each value and notes where the wanted ones begin. The values themselves are then
made a column at a time (avro_values.py). An array or map notes its count, a union the place of the value's member. The
source of that function consists of numbers and of the fragments in this file: no text of an object is part of it.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.pipeline.spark.source.avro_schema import AvroType, member_name
from penstock.pipeline.spark.source.avro_values import (
    PADDING,
    VARINT_BYTES_MAX,
    Bytes,
    Damage,
    leaf_of,
    spread,
)
from penstock.pipeline.spark.source.blocks import Positions

ROWS_AT_ONCE = 1 << 16
SCANNED_BYTES = 1 << 20  # at once, of a large block
EMPTY_ITEMS_MAX = 1 << 23  # rows, and items of arrays and maps, that take no bytes; of the blocks read together
_LOOPS_MAX = 2  # within each other in one function, since Python has a limit
_LEAVES = frozenset({"boolean", "int", "long", "float", "double", "bytes", "string", "fixed", "enum"})
_NOT_WIDE = 0x80
_HIGH_BITS = bytes(byte & _NOT_WIDE for byte in range(256))  # 0 for the last byte of a number

# How far a text reaches from the byte of its length; 0 unless the length is a valid one of one byte.
_STEPS = [1 + byte // 2 if byte < _NOT_WIDE and not byte & 1 else 0 for byte in range(256)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Scanned:
    """The notes of a scan about some rows."""

    data: Bytes
    notes: Sequence[Positions]


Build = Callable[[_Scanned, int], pa.Array]  # returns the given number of values


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The inflated rows of a block."""

    data: bytes
    rows: int
    begin: int  # where the block begins in the object


class AvroDecoder:
    """Decodes the columns at some places of a record's fields. Holds no state between calls."""

    def __init__(self, schema: AvroType, places: Sequence[int]) -> None:
        writer = _ScanWriter()
        wanted = set(places)
        builds: dict[int, Build] = {}
        for place, field in enumerate(schema.fields):
            writer.keeps = place in wanted
            builds[place] = writer.value(field.type, 2)
        self._names = [schema.fields[place].name for place in places]
        self._builds = [builds[place] for place in places]
        self._slots = writer.slots
        self._rows_are_empty = not schema.least_bytes
        self._scan = writer.compiled()

    def decode(self, blocks: Sequence[Block], room: list[int]) -> "Decoding":
        """Begin to decode blocks, of which there is at least one, together.

        ``room``: one number, of further items without bytes that are allowed; it is counted down. Raises `Damage` if
        there are more.
        """
        if self._rows_are_empty:
            take_room(room, sum(block.rows for block in blocks))
        return Decoding(self._scan, self._slots, self._table, blocks, room)

    def _table(self, scanned: _Scanned, rows: int) -> pa.Table:
        return pa.Table.from_arrays([build(scanned, rows) for build in self._builds], names=self._names)


class Decoding:
    """The decoding of some blocks, in parts of a bounded size. Used by one thread."""

    def __init__(
        self,
        scan: Callable[..., tuple[int, int]],
        slots: int,
        table: Callable[[_Scanned, int], pa.Table],
        blocks: Sequence[Block],
        room: list[int],
    ) -> None:
        self._scan = scan
        self._slots = slots
        self._table = table
        self._blocks = blocks
        self._room = room
        self._data = b"".join((PADDING, *(block.data for block in blocks), PADDING))
        self._flags = self._data.translate(_HIGH_BITS)
        self._bytes = np.frombuffer(self._data, dtype=np.uint8)
        self.place = ""  # what is being decoded, for messages

    def __iter__(self) -> Iterator[tuple[pa.Table, Positions, Positions]]:
        """Yield tables, each with the place of its rows: that of the block, and that of the row in the block.

        Raises `Damage` if the bytes are not rows of the schema.
        """
        notes = self._fresh()
        spans: list[tuple[int, int, int]] = []  # block, first row, number of rows
        begin = rows = 0
        at = len(PADDING)
        for number, block in enumerate(self._blocks):
            self.place = f"the block at offset {block.begin}"
            end = at + len(block.data)
            done = 0
            while done < block.rows:
                stop = begin + len(PADDING) + SCANNED_BYTES
                at, count = self._scanned(at, min(block.rows - done, ROWS_AT_ONCE - rows), stop, notes)
                if at > end:
                    raise Damage("the last row ends behind the block")
                spans.append((number, done, count))
                done += count
                rows += count
                if rows >= ROWS_AT_ONCE or (done < block.rows and at >= stop):
                    yield self._part(notes, spans, rows)
                    notes, spans, rows, begin = self._fresh(), [], 0, at - len(PADDING)
            if at != end:
                raise Damage(f"{end - at} bytes are left behind the last row")
        if rows:
            yield self._part(notes, spans, rows)

    def _scanned(self, at: int, rows: int, stop: int, notes: "Sequence[array[int]]") -> tuple[int, int]:
        try:
            return self._scan(self._data, self._flags, at, rows, stop, notes, self._room)
        except (IndexError, OverflowError, ValueError) as error:
            raise Damage("it ends within a row") from error

    def _fresh(self) -> "Sequence[array[int]]":
        return [array("q") for _ in range(self._slots)]

    def _part(
        self, notes: "Sequence[array[int]]", spans: Sequence[tuple[int, int, int]], rows: int
    ) -> tuple[pa.Table, Positions, Positions]:
        first, last = (self._blocks[spans[place][0]].begin for place in (0, -1))
        self.place = f"the block at offset {first}" if first == last else f"the blocks at offsets {first} to {last}"
        scanned = _Scanned(data=self._bytes, notes=[np.asarray(note) for note in notes])
        blocks = np.repeat([number for number, _, _ in spans], [count for _, _, count in spans])
        places = np.concatenate([np.arange(first, first + count) for _, first, count in spans])
        try:
            return self._table(scanned, rows), blocks, places
        except pa.ArrowInvalid as error:
            raise Damage(str(error)) from error


class _ScanWriter:
    """Writes the function that scans rows, and makes the functions that build columns from its notes.

    In the function, ``b`` is the buffer, ``f`` its high bits, ``p`` the present position, and ``xN`` notes in slot N.
    """

    def __init__(self) -> None:
        self.keeps = True  # the values written next are wanted
        self.slots = 0
        self._lines: list[str] = []
        self._functions: list[str] = []
        self._names = 0
        self._loops = 0

    def compiled(self) -> Callable[..., tuple[int, int]]:
        """Return the function."""
        names = [f" x{slot} = notes[{slot}].append; y{slot} = notes[{slot}].extend" for slot in range(self.slots)]
        source = [
            "def scan(b, f, p, rows, stop, notes, room):",
            " find = f.index",
            *names,
            *self._functions,
            " for done in range(rows):",
            "  if p >= stop: return p, done",
            *self._lines,
            " return p, rows",
        ]
        namespace: dict[str, Any] = dict(_HELPERS)
        exec(compile("\n".join(source), "<rows of Avro>", "exec"), namespace)
        found: Callable[..., tuple[int, int]] = namespace["scan"]
        return found

    def value(self, found: AvroType, depth: int) -> Build:
        """Write the scan of a value, and return the function that builds the column."""
        match found.kind:
            case "null":
                return lambda _, count: pa.nulls(count)
            case "record":
                return self._record(found, depth)
            case "array" | "map":
                slot = self._slot()
                return self._many(found, depth, slot)
            case "union":
                return self._union(found, depth)
            case _:
                slot = self._slot()
                self._leaf(found, depth, slot)
                make = leaf_of(found)
                return lambda scanned, _: make(scanned.data, scanned.notes[slot])

    def _leaf(self, found: AvroType, depth: int, slot: int) -> None:
        self._note(depth, slot, "p")
        match found.kind:
            case "boolean":
                self._line(depth, "p += 1")
            case "float" | "double" | "fixed":
                self._line(depth, f"p += {found.least_bytes}")
            case "bytes" | "string":
                self._line(depth, "n = steps[b[p]]")
                self._line(depth, "p = p + n if n else after_text(b, p)")
            case _:
                self._line(depth, "if b[p] > 127:")
                self._line(depth + 1, "n = find(0, p)")
                self._line(depth + 1, f"if n - p >= {VARINT_BYTES_MAX}: raise Damage(long_number)")
                self._line(depth + 1, "p = n")
                self._line(depth, "p += 1")

    def _record(self, found: AvroType, depth: int) -> Build:
        names = [field.name for field in found.fields]
        builds = [self.value(field.type, depth) for field in found.fields]
        if not names:
            return lambda _, count: pa.array([{}] * count, pa.struct([]))
        return lambda scanned, count: pa.StructArray.from_arrays(
            [build(scanned, count) for build in builds], names=names
        )

    def _many(self, found: AvroType, depth: int, slot: int) -> Build:
        """Write an array or a map: blocks of items, each with their count before them, up to an empty one."""
        keys = self._slot() if found.kind == "map" else None
        name = self._name()
        least = found.inner.least_bytes + (keys is not None)
        if self._loops == _LOOPS_MAX:
            build = self._in_function(found, name, keys, least)
            self._line(depth, f"p, c{name} = items{name}(p)")
        else:
            build = self._items(found, depth, name, keys, least)
        self._note(depth, slot, f"c{name}")
        if keys is None:
            return lambda scanned, _: _arrays(scanned, slot, build)
        text = leaf_of(AvroType(kind="string"))
        return lambda scanned, _: _maps(scanned, slot, lambda: text(scanned.data, scanned.notes[keys]), build)

    def _in_function(self, found: AvroType, name: int, keys: int | None, least: int) -> Build:
        outer, self._lines = self._lines, []
        loops, self._loops = self._loops, 0
        build = self._items(found, 2, name, keys, least)
        self._functions += [f" def items{name}(p):", *self._lines, f"  return p, c{name}"]
        self._lines, self._loops = outer, loops
        return build

    def _items(self, found: AvroType, depth: int, name: int, keys: int | None, least: int) -> Build:
        self._line(depth, f"c{name} = 0")
        self._line(depth, "while b[p]:")
        if least:  # a count of one byte needs no check: the items reach the end of the buffer if there are fewer
            self._line(depth + 1, "n = b[p]")
            self._line(depth + 1, f"if n & {_NOT_WIDE | 1}: n, p = count(b, p, {least}, room)")
            self._line(depth + 1, "else: n >>= 1; p += 1")
        else:
            self._line(depth + 1, f"n, p = count(b, p, {least}, room)")
        self._line(depth + 1, f"c{name} += n")
        if keys is None and found.inner.kind in ("float", "double", "boolean"):
            slot = self._slot()
            size_bytes, make = found.inner.least_bytes, leaf_of(found.inner)
            if self.keeps:
                self._line(depth + 1, f"y{slot}(range(p, p + n * {size_bytes}, {size_bytes}))")
            self._line(depth + 1, f"p += n * {size_bytes}")
            self._line(depth, "p += 1")
            return lambda scanned, _: make(scanned.data, scanned.notes[slot])
        self._loops += 1
        self._line(depth + 1, f"for _{name} in range(n):")
        before = len(self._lines)
        if keys is not None:
            self._leaf(AvroType(kind="string"), depth + 2, keys)
        build = self.value(found.inner, depth + 2)
        if len(self._lines) == before:
            self._line(depth + 2, "pass")
        self._loops -= 1
        self._line(depth, "p += 1")
        return build

    def _union(self, found: AvroType, depth: int) -> Build:
        null, present = found.null_place, found.present
        if len(present) == 1 and null is not None:
            (place, member) = present[0]
            return self._optional(member, place, null, depth)
        slot = self._slot()
        self._line(depth, "n = b[p]")
        self._line(depth, "p += 1")
        self._note(depth, slot, "n")
        builds: list[tuple[int, Build]] = []
        word = "if"
        for place, member in enumerate(found.members):
            self._line(depth, f"{word} n == {2 * place}:")
            before = len(self._lines)
            build = self.value(member, depth + 1)
            if len(self._lines) == before:
                self._line(depth + 1, "pass")
            if member.kind != "null":
                builds.append((2 * place, build))
            word = "elif"
        self._line(depth, "else: raise Damage(no_member)" if found.members else "raise Damage(no_member)")
        if not builds:
            return lambda _, count: pa.nulls(count)
        return _union_build(slot, builds, found.widened, None if null is None else 2 * null)

    def _optional(self, member: AvroType, place: int, null: int, depth: int) -> Build:
        """Write a union of null and one other type."""
        slot = self._slot()
        self._line(depth, "n = b[p]")
        self._line(depth, "p += 1")
        self._line(depth, f"if n == {2 * place}:")
        build: Build
        is_many = member.kind in ("array", "map")
        if member.kind in _LEAVES:
            self._leaf(member, depth + 1, slot)
            make = leaf_of(member)
            build = lambda scanned, _: make(scanned.data, _present(scanned.notes[slot]))  # noqa: E731 # one of three
        elif is_many:
            build = self._many(member, depth + 1, slot)
        else:
            self._note(depth + 1, slot, "0")
            self._line(depth + 1, "pass")
            inner = self.value(member, depth + 1)
            build = lambda scanned, _: inner(scanned, len(_present(scanned.notes[slot])))  # noqa: E731 # one of three
        self._line(depth, f"elif n == {2 * null}:")
        self._note(depth + 1, slot, "-1")
        self._line(depth + 1, "pass")
        self._line(depth, "else: raise Damage(no_member)")
        if is_many:
            return build
        return lambda scanned, count: spread(build(scanned, count), scanned.notes[slot] >= 0)

    def _note(self, depth: int, slot: int, value: str) -> None:
        if self.keeps:
            self._line(depth, f"x{slot}({value})")

    def _line(self, depth: int, text: str) -> None:
        self._lines.append(" " * depth + text)

    def _slot(self) -> int:
        if not self.keeps:
            return 0
        self.slots += 1
        return self.slots - 1

    def _name(self) -> int:
        self._names += 1
        return self._names


def _present(notes: Positions) -> Positions:
    is_there = notes >= 0
    return notes if is_there.all() else notes[is_there]


def _arrays(scanned: _Scanned, slot: int, build: Build) -> pa.Array:
    offsets, count, mask = _counted(scanned.notes[slot])
    items = build(scanned, count)
    return pa.ListArray.from_arrays(offsets, items, type=pa.list_(pa.field("element", items.type)), mask=mask)


def _maps(scanned: _Scanned, slot: int, keys: Callable[[], pa.Array], build: Build) -> pa.Array:
    offsets, count, mask = _counted(scanned.notes[slot])
    items = build(scanned, count)
    return pa.MapArray.from_arrays(offsets, keys(), items, type=pa.map_(pa.string(), items.type), mask=mask)


def _counted(counts: Positions) -> tuple[pa.Array, int, pa.Array]:
    """Return the offsets, the number of all items, and which are null, of arrays with these counts."""
    is_there = counts >= 0
    edges = np.zeros(len(counts) + 1, dtype=np.int32)
    np.cumsum(np.where(is_there, counts, 0), out=edges[1:])
    return pa.array(edges), int(edges[-1]), None if is_there.all() else pa.array(~is_there)


def _union_build(slot: int, builds: Sequence[tuple[int, Build]], kind: pa.DataType | None, null: int | None) -> Build:
    def build(scanned: _Scanned, _: int) -> pa.Array:
        codes = scanned.notes[slot]
        members = []
        for code, make in builds:
            is_there = codes == code
            members.append(spread(make(scanned, int(np.count_nonzero(is_there))), is_there))
        if len(members) == 1:
            return members[0]
        if kind is not None:
            return pc.coalesce(*(member.cast(kind) for member in members))
        names = [member_name(number) for number in range(len(members))]
        mask = None if null is None else pa.array(codes == null)
        return pa.StructArray.from_arrays(members, names=names, mask=mask)

    return build


def read_number(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at a position, and where it ends. Raises `Damage` and `IndexError`."""
    value = shift = 0
    for place in range(at, at + VARINT_BYTES_MAX):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < _NOT_WIDE:
            if value >> 64:
                break
            return (value >> 1) ^ -(value & 1), place + 1
        shift += 7
    raise Damage(_LONG_NUMBER)


def _after_text(data: bytes, at: int) -> int:
    length, at = read_number(data, at)
    if length < 0:
        raise Damage("a text of negative length")
    return at + length


def _count(data: bytes, at: int, least_bytes: int, room: list[int]) -> tuple[int, int]:
    """Return the count of a block of items, and where the items begin."""
    count, at = read_number(data, at)
    if count < 0:  # the size of the block follows, for those that skip it
        size_bytes, at = read_number(data, at)
        if size_bytes < 0:
            raise Damage("items of negative size")
        count = -count
    if count * least_bytes > len(data) - at:
        raise Damage("more items than the block has bytes")
    if not count:
        raise Damage("a count of 0 in more than one byte")
    if not least_bytes:
        take_room(room, count)
    return count, at


def take_room(room: list[int], count: int) -> None:
    """Count items that take no bytes, of which a few bytes may claim any number. Raises `Damage` for too many."""
    room[0] -= count
    if room[0] < 0:
        raise Damage(f"more than {EMPTY_ITEMS_MAX} items without content")


_LONG_NUMBER = "a number of more than 64 bits"
_HELPERS: Mapping[str, Any] = {
    "Damage": Damage,
    "steps": _STEPS,
    "after_text": _after_text,
    "count": _count,
    "long_number": _LONG_NUMBER,
    "no_member": "a place beyond the types of a union",
}
