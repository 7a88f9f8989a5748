"""Decode lines whose fields differ from the columns: count the others and, if asked, keep what no column takes.

`OpenLines` wraps the decoder of a format. With ``evolve="rescue"`` or ``"add"`` a line whose only fault is a value of
the wrong type is a good line: that column is null, and the value is in the column ``_rescued``, a JSON object of fields
and their values as the object has them. A field of which a struct holds only a part is rescued whole. Which values
fit, the format's own decoder decides: lines with one of the wrong type are decoded again, column by column.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from penstock.events.objects import QuarantineReason
from penstock.pipeline.spark.source.blocks import NOWHERE, BadLine, Decoded, Decoder, Positions, UnknownRows
from penstock.pipeline.spark.source.csv import CsvDecoder
from penstock.pipeline.spark.source.csv_lines import Layout
from penstock.pipeline.spark.source.ddl import RESCUED
from penstock.pipeline.spark.source.exact_json import exact_json
from penstock.pipeline.spark.source.infer_csv import column_type
from penstock.pipeline.spark.source.json_fields import (
    UNCUT,
    Member,
    UnknownFinder,
    as_object,
    is_unknown,
    kind_of,
    members,
)
from penstock.pipeline.spark.source.jsonl import JsonlDecoder
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions

_SAMPLE_MAX = 1_000  # values per field and block, spread evenly, that decide about a new column's type

Misfits = Mapping[int, frozenset[str]]  # columns whose value does not fit, by the start of the line


class OpenForm(Protocol):
    """The knowledge of one format of lines about fields without a column."""

    def found(self) -> Mapping[str, Positions] | None:
        """Return the rows, of those decoded last, that have each field without a column; None: search them."""
        ...

    def single(self, field: pa.Field) -> Decoder:
        """Return a decoder of one column."""
        ...

    def unknown(self, block: bytes, starts: Positions) -> Mapping[str, Positions]:
        """Return the lines that have each field without a column; line i begins at ``starts[i]``.

        A line may have values of the wrong type, but is a record of the format.
        """
        ...

    def kinds(self, block: bytes, starts: Positions, unknown: Mapping[str, Positions]) -> Mapping[str, pa.DataType]:
        """Return the types of columns for these fields, as far as there is one."""
        ...

    def rescued(self, block: bytes, starts: Positions, rows: Positions, misfits: Misfits) -> list[str | None]:
        """Return what no column takes, as JSON, for some rows of lines. Raises `UncutLine`."""
        ...


class UncutLine(ValueError):
    """A line that only Arrow reads cannot be cut into fields. ``start`` is its position."""

    def __init__(self, start: int) -> None:
        super().__init__("a value that is not JSON beside a field without a column")
        self.start = start


class OpenLines:
    """A `Decoder` that counts the fields without a column and, with ``rescues``, keeps their values."""

    def __init__(self, inner: Decoder, form: OpenForm, schema: pa.Schema, *, evolve: str) -> None:
        self._inner = inner
        self._form = form
        self._schema = schema
        self._rescues = evolve in ("rescue", "add")
        self._adds = evolve == "add"
        self._singles: list[Decoder] = []

    def decode(self, block: bytes, *, plain: bool = False) -> Decoded:
        decoded = self._inner.decode(block, plain=plain)
        unknown = self._form.found()
        misfits: dict[int, frozenset[str]] = {}
        if self._rescues and any(bad.reason is QuarantineReason.WRONG_TYPE for bad in decoded.bad):
            decoded = self._with_misfits(block, decoded, misfits)
            unknown = None
        if unknown is None:
            unknown = self._form.unknown(block, decoded.starts) if decoded.rows.num_rows else {}
        if self._rescues:
            decoded, unknown = self._with_rescued(block, decoded, unknown, misfits)
        kinds = self._form.kinds(block, decoded.starts, unknown) if self._adds else {}
        in_bad = self._unknown_in_bad(block, decoded.bad)
        found = {
            name: UnknownRows(rows=unknown.get(name, NOWHERE), bad=in_bad.get(name, NOWHERE), kind=kinds.get(name))
            for name in dict.fromkeys([*unknown, *in_bad])
            if name != UNCUT
        }
        return replace(decoded, unknown=found, misfits=_by_column(decoded, misfits))

    def _unknown_in_bad(self, block: bytes, bad: Sequence[BadLine]) -> Mapping[str, Positions]:
        """Return the bad lines that have each field. Only those with a value of the wrong type have fields at all."""
        places = [place for place, line in enumerate(bad) if line.reason is QuarantineReason.WRONG_TYPE]
        if not places:
            return {}
        starts = np.array([bad[place].start for place in places], dtype=np.int64)
        found = self._form.unknown(block, starts)
        return {name: np.array(places, dtype=np.int64)[lines] for name, lines in found.items()}

    def _with_misfits(self, block: bytes, decoded: Decoded, misfits: dict[int, frozenset[str]]) -> Decoded:
        """Return the same with a row for each line whose only fault are values of the wrong type."""
        wrong = [bad for bad in decoded.bad if bad.reason is QuarantineReason.WRONG_TYPE]
        lines = [block[bad.start : block.index(b"\n", bad.start) + 1] for bad in wrong]
        starts = np.cumsum([0, *map(len, lines)])[:-1]
        columns: list[pa.Array] = []
        refused: list[set[str]] = [set() for _ in wrong]
        unfit = np.zeros(len(wrong), dtype=np.bool_)  # otherwise bad, too
        for field, single in zip(self._schema, self._single_decoders(), strict=True):
            one = single.decode(b"".join(lines))
            places = np.full(len(wrong), -1, dtype=np.int64)
            places[np.searchsorted(starts, one.starts)] = np.arange(len(one.starts))
            columns.append(_taken(one.rows.column(0).combine_chunks(), places))
            for bad in one.bad:
                at = int(np.searchsorted(starts, bad.start))
                unfit[at] |= bad.reason is not QuarantineReason.WRONG_TYPE
                refused[at].add(field.name)
        kept = np.flatnonzero(~unfit)
        misfits.update({wrong[at].start: frozenset(refused[at]) for at in kept.tolist()})
        rows = pa.Table.from_arrays(columns, schema=self._schema).take(pa.array(kept))
        return _merged(decoded, rows, misfits)

    def _single_decoders(self) -> Sequence[Decoder]:
        if not self._singles:
            self._singles = [self._form.single(field) for field in self._schema]
        return self._singles

    def _with_rescued(
        self, block: bytes, decoded: Decoded, unknown: Mapping[str, Positions], misfits: Misfits
    ) -> tuple[Decoded, Mapping[str, Positions]]:
        """Return the same with the column of rescued values. Lines that cannot be cut become bad lines."""
        while True:
            wrong = np.flatnonzero(np.isin(decoded.starts, np.array(list(misfits), dtype=np.int64)))
            touched = np.unique(np.concatenate([wrong, *unknown.values()]))
            try:
                texts = self._form.rescued(block, decoded.starts, touched, misfits) if len(touched) else []
            except UncutLine as uncut:
                row = int(np.searchsorted(decoded.starts, uncut.start))
                unknown = {name: _without(row, rows) for name, rows in unknown.items() if rows.tolist() != [row]}
                decoded = _refused(block, decoded, uncut)
                continue
            places = np.full(decoded.rows.num_rows, -1, dtype=np.int64)
            places[touched] = np.arange(len(touched))
            column = _taken(pa.array(texts, RESCUED.type), places)
            return replace(decoded, rows=decoded.rows.append_column(RESCUED, column)), unknown


def open_jsonl(schema: pa.Schema, options: ReadOptions) -> Decoder:
    """Return a decoder of JSON lines."""
    finder = UnknownFinder(schema)
    inner = JsonlDecoder(schema, finder)
    return OpenLines(inner, _JsonForm(inner, finder), schema, evolve=options.evolve)


def open_csv(schema: pa.Schema, options: ReadOptions, layout: Layout, names: Sequence[str], *, joined: bool) -> Decoder:
    """Return a decoder of CSV under a header with these names; none without a header."""
    inner = CsvDecoder(schema, options.csv, layout, joined=joined)
    return OpenLines(inner, _CsvForm(schema, options.csv, layout, names, joined=joined), schema, evolve=options.evolve)


class _JsonForm:
    """An `OpenForm` for JSON lines."""

    def __init__(self, inner: JsonlDecoder, finder: UnknownFinder) -> None:
        self._inner = inner
        self._finder = finder

    def found(self) -> Mapping[str, Positions] | None:
        return self._inner.unknown

    def single(self, field: pa.Field) -> Decoder:
        return JsonlDecoder(pa.schema([field]))

    def unknown(self, block: bytes, starts: Positions) -> Mapping[str, Positions]:
        return self._finder.find(block, starts)

    def kinds(self, block: bytes, starts: Positions, unknown: Mapping[str, Positions]) -> Mapping[str, pa.DataType]:
        names = [name for name in unknown if name not in (*self._finder.names, UNCUT)]
        values: dict[str, list[Any]] = {name: [] for name in names}
        samples = [rows[:: -(-len(rows) // _SAMPLE_MAX)] for name, rows in unknown.items() if name in values]
        for row in np.unique(np.concatenate(samples)).tolist() if samples else ():
            with suppress(UncutLine):  # it has no `rescued` either, so it is a bad line
                for member in self._members(block, int(starts[row])):
                    if member.name in values:
                        values[member.name].append(member.value)
        kinds = {name: kind_of(found) for name, found in values.items()}
        return {name: kind for name, kind in kinds.items() if kind is not None}

    def rescued(self, block: bytes, starts: Positions, rows: Positions, misfits: Misfits) -> list[str | None]:
        names = self._finder.names
        texts = []
        for start in starts[rows].tolist():
            wrong = misfits.get(start, frozenset())
            line = self._members(block, start)
            texts.append(as_object(member for member in line if member.name in wrong or is_unknown(member, names)))
        return texts

    @staticmethod
    def _members(block: bytes, start: int) -> list[Member]:
        try:
            return members(block[start : block.index(b"\n", start)].decode())
        except ValueError as error:
            raise UncutLine(start) from error


class _CsvForm:
    """An `OpenForm` for CSV under one header."""

    def __init__(
        self, schema: pa.Schema, csv: CsvOptions, layout: Layout, names: Sequence[str], *, joined: bool
    ) -> None:
        self._csv = csv
        self._layout = layout
        self._joined = joined
        self._indexes = dict(zip(schema.names, layout.indexes, strict=True))
        self._unknown = {name: index for index, name in enumerate(names) if index not in layout.indexes}
        texts = [*self._unknown, *(name for name in schema.names if name not in self._unknown)]
        indexes = tuple(self._unknown.get(name, self._indexes.get(name)) for name in texts)
        self._texts = self._decoder(pa.schema([(name, pa.string()) for name in texts]), indexes)
        # the header's name of each column
        self._spelled = {
            name: names[index] if names and index is not None else name for name, index in self._indexes.items()
        }

    def found(self) -> Mapping[str, Positions] | None:
        return None if self._unknown else {}

    def single(self, field: pa.Field) -> Decoder:
        return self._decoder(pa.schema([field]), (self._indexes[field.name],))

    def unknown(self, block: bytes, starts: Positions) -> Mapping[str, Positions]:  # noqa: ARG002 # every row has it
        every = np.arange(len(starts), dtype=np.int64)
        return dict.fromkeys(self._unknown, every)

    def kinds(self, block: bytes, starts: Positions, unknown: Mapping[str, Positions]) -> Mapping[str, pa.DataType]:
        rows = self._rows(block, starts)
        step = max(1, -(-rows.num_rows // _SAMPLE_MAX))
        found = {}
        for name in unknown:
            texts = [text for text in rows.column(name).to_pylist()[::step] if text is not None]
            if texts:
                found[name] = column_type(texts)
        return found

    def rescued(self, block: bytes, starts: Positions, rows: Positions, misfits: Misfits) -> list[str | None]:
        texts = self._rows(block, starts[rows])
        columns = {name: texts.column(name).to_pylist() for name in texts.column_names}
        found: list[str | None] = []
        for row, start in enumerate(starts[rows].tolist()):
            kept = {name: columns[name][row] for name in self._unknown}
            kept |= {self._spelled[name]: columns[name][row] for name in misfits.get(start, ())}
            kept = {name: text for name, text in kept.items() if text is not None}
            found.append(exact_json(kept) if kept else None)
        return found

    def _rows(self, block: bytes, starts: Positions) -> pa.Table:
        """Return the fields of these lines as texts."""
        decoded = self._texts.decode(block)
        return decoded.rows.take(pa.array(np.searchsorted(decoded.starts, starts)))

    def _decoder(self, schema: pa.Schema, indexes: tuple[int | None, ...]) -> CsvDecoder:
        return CsvDecoder(schema, self._csv, replace(self._layout, indexes=indexes), joined=self._joined)


def _taken(column: pa.Array, places: Positions) -> pa.Array:
    """Return the values at these places; -1 is null."""
    return column.take(pa.array(places, mask=places < 0))


def _without(row: int, rows: Positions) -> Positions:
    """Return the rows as they are after one of them is removed."""
    others = rows[rows != row]
    kept: Positions = others - (others > row)
    return kept


def _merged(decoded: Decoded, rows: pa.Table, misfits: Misfits) -> Decoded:
    """Return the decoded lines with more rows, in order. ``misfits`` has their lines, which are bad no longer."""
    starts = np.concatenate([decoded.starts, np.array(sorted(misfits), dtype=np.int64)])
    order = np.argsort(starts, kind="stable")
    return Decoded(
        rows=pa.concat_tables([decoded.rows, rows]).take(pa.array(order)),
        starts=starts[order],
        bad=tuple(bad for bad in decoded.bad if bad.start not in misfits),
    )


def _by_column(decoded: Decoded, misfits: Misfits) -> Mapping[str, Positions]:
    """Return the rows with a value that does not fit, by the column."""
    if not misfits:
        return {}
    found: defaultdict[str, list[int]] = defaultdict(list)
    for row in np.flatnonzero(np.isin(decoded.starts, np.array(list(misfits), dtype=np.int64))).tolist():
        for name in misfits[int(decoded.starts[row])]:
            found[name].append(row)
    return {name: np.array(rows, dtype=np.int64) for name, rows in found.items()}


def _refused(block: bytes, decoded: Decoded, uncut: UncutLine) -> Decoded:
    """Return the same with the row of this line as a bad line."""
    kept = decoded.starts != uncut.start
    raw = block[uncut.start : block.index(b"\n", uncut.start)].removesuffix(b"\r")
    bad = BadLine(start=uncut.start, raw=raw, reason=QuarantineReason.MALFORMED, detail=str(uncut))
    return replace(
        decoded,
        rows=decoded.rows.filter(pa.array(kept)),
        starts=decoded.starts[kept],
        bad=tuple(sorted([*decoded.bad, bad], key=lambda line: line.start)),
    )
