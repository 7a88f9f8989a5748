"""Fit the rows of objects that have named columns of their own, such as Parquet, to the declared columns.

`fit` has the rule for each value. A row with a value that does not fit is a bad row; with ``evolve="rescue"`` or
``"add"`` it is a good one, and the value is in the column ``_rescued``, with those of columns that are not declared.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import ObjectUnreadable
from penstock.pipeline.spark.source.blocks import BadLine, Decoded, Positions, UnknownRows
from penstock.pipeline.spark.source.column_types import is_list, storable
from penstock.pipeline.spark.source.ddl import RESCUED, parse_ddl
from penstock.pipeline.spark.source.exact_json import exact_json
from penstock.pipeline.spark.source.explain import Refusal, field_step
from penstock.pipeline.spark.source.fit import as_json, as_python, fit, misfit_of, places_of
from penstock.pipeline.spark.source.options import ReadOptions

_NAMES_SHOWN = 5
DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError)  # the last for a column's name or a damaged text


def names_read(found: Sequence[str], declared: pa.Schema, *, uri: str, all_of_them: bool = False) -> list[str]:
    """Return the names of an object's columns that are declared, as the object spells them.

    ``all_of_them``: followed by the names of all others. Raises `ObjectUnreadable` if none is declared, because all
    rows would be made up of nulls, or if a name is there twice.
    """
    counts = Counter(found)
    names = [found[place] for place in places_of(declared.names, found) if place is not None]
    if all_of_them:
        names = list(dict.fromkeys([*names, *found]))
    if not names:
        shown = ", ".join(repr(name) for name in found[:_NAMES_SHOWN])
        raise ObjectUnreadable(f"{uri} has no column of the schema, it has {shown[:200] or 'none at all'}")
    twice = next((name for name in names if counts[name] > 1), None)
    if twice is not None:
        raise ObjectUnreadable(f"{uri} has {counts[twice]} columns called {twice!r}: rename all but one")
    return names


class Fitter:
    """Fits the rows of objects with the columns ``found`` to the declared ones; missing ones are null.

    With ``rescues``, a row with a value that does not fit is a good one: the value is null, and in the column
    ``_rescued`` with those of columns that are not declared. ``unknown``: the fields that no column takes, which count
    with all rows, and the type of a column for each if there is one.
    """

    def __init__(
        self,
        found: Sequence[str],
        declared: pa.Schema,
        *,
        unknown: Mapping[str, pa.DataType | None] | None = None,
        rescues: bool = False,
    ) -> None:
        self.names = found  # of the columns that `fit` takes
        self._declared = declared
        self._places = places_of(declared.names, found)
        self._unknown = unknown or {}
        self._rescues = rescues

    @classmethod
    def of(cls, found: pa.Schema, options: ReadOptions, *, uri: str) -> "Fitter":
        """Return the fitter of objects with these columns. Raises `ObjectUnreadable` if none of them is declared."""
        declared = parse_ddl(options.schema_ddl)
        names = names_read(found.names, declared, uri=uri, all_of_them=options.rescues)
        unknown = undeclared(found, declared, typed=options.evolve == "add")
        return cls(names, declared, unknown=unknown, rescues=options.rescues)

    def fit(self, rows: pa.Table, first: int = 0) -> Decoded:
        """Return the rows that fit, numbered from ``first``, and the others as bad ones."""
        decoded = self._fitted(rows, first)
        every, bad = (np.arange(count, dtype=np.int64) for count in (decoded.rows.num_rows, len(decoded.bad)))
        unknown = {name: UnknownRows(rows=every, bad=bad, kind=kind) for name, kind in self._unknown.items()}
        return replace(decoded, unknown=unknown)

    def _fitted(self, rows: pa.Table, first: int) -> Decoded:
        count = rows.num_rows
        columns: list[pa.Array] = []
        bad: dict[int, Refusal] = {}  # by row; for the first column that does not fit
        misfits: dict[str, Positions] = {}  # by column: the rows whose value is rescued in place of a refusal
        rescued = _Rescued(rows) if self._rescues else None
        for field, place in zip(self._declared, self._places, strict=True):
            if place is None:
                columns.append(pa.nulls(count, field.type))
                continue
            column = rows.column(place)
            # `combine_chunks` copies even a single chunk
            values = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
            fitted = fit(values, field.type)
            columns.append(fitted.values)
            refused = [] if fitted.refused is None else np.flatnonzero(fitted.refused).tolist()
            if rescued is not None and not pa.types.is_string(field.type):
                rescued.add(place, refused)
                if refused:
                    misfits[field.name] = np.array(refused, dtype=np.int64)
                refused = []
            for row in refused:
                if row not in bad:
                    misfit = misfit_of(values.slice(row, 1), field.type)
                    bad[row] = misfit.within(field_step(field.name)).refusal
            if rescued is not None and any(name.startswith(f"{rows.column_names[place]}.") for name in self._unknown):
                rescued.add(place, np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False)).tolist())
        table = pa.Table.from_arrays(columns, schema=self._declared)
        if rescued is not None:
            table = table.append_column(RESCUED, rescued.texts({place for place in self._places if place is not None}))
        numbers = np.arange(first, first + count, dtype=np.int64)
        if not bad:
            return Decoded(rows=table, starts=numbers, bad=(), misfits=misfits)
        kept = np.ones(count, dtype=np.bool_)
        kept[list(bad)] = False
        left = np.cumsum(kept) - 1  # the places of the rows that stay
        return Decoded(
            rows=table.filter(pa.array(kept)),
            starts=numbers[kept],
            bad=tuple(
                BadLine(
                    start=first + row,
                    raw=as_json({name: as_python(rows.column(name)[row]) for name in rows.column_names}).encode(),
                    reason=bad[row][0],
                    detail=bad[row][1],
                )
                for row in sorted(bad)
            ),
            misfits={name: left[rows[kept[rows]]] for name, rows in misfits.items()},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unfitted:
    """Rows of one unit, as their object has them. Those of units that follow each other are fitted together."""

    rows: pa.Table  # with the columns ``fitter.names``
    first: int  # the number of its first row in the object
    fitter: Fitter


class _Rescued:
    """The values of some rows that no column takes."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows
        self._values: dict[int, dict[str, Any]] = {}  # by row

    def add(self, place: int, rows: Iterable[int]) -> None:
        """Add the values of one column in these rows."""
        name, column = self._rows.column_names[place], self._rows.column(place)
        for row in rows:
            self._values.setdefault(row, {})[name] = as_python(column[row])

    def texts(self, taken: Collection[int]) -> pa.Array:
        """Return the column, with the values of all columns other than those at these places."""
        for place in range(self._rows.num_columns):
            if place not in taken:
                valid = self._rows.column(place).combine_chunks().is_valid().to_numpy(zero_copy_only=False)
                self.add(place, np.flatnonzero(valid).tolist())
        texts: list[str | None] = [None] * self._rows.num_rows
        for row, values in self._values.items():
            texts[row] = exact_json(values)
        return pa.array(texts, RESCUED.type)


def undeclared(found: pa.Schema, declared: pa.Schema, *, typed: bool) -> dict[str, pa.DataType | None]:
    """Return the columns of an object that are not declared, and the fields of structs as a.b.

    ``typed``: with the types of columns for them, which fields of structs lack.
    """
    places = places_of(declared.names, found.names)
    unknown: dict[str, pa.DataType | None] = {
        found.names[place]: storable(found.field(place).type) if typed else None
        for place in range(len(found))
        if place not in places
    }
    for field, place in zip(declared, places, strict=True):
        if place is not None:
            unknown |= dict.fromkeys(_undeclared_inside(found.field(place), field.type), None)
    return unknown


def _undeclared_inside(found: pa.Field, declared: pa.DataType) -> Iterator[str]:
    kind = found.type
    if is_list(kind) and pa.types.is_list(declared):
        yield from _undeclared_inside(pa.field(found.name, kind.value_type), declared.value_type)
    elif pa.types.is_map(kind) and pa.types.is_map(declared):
        yield from _undeclared_inside(pa.field(found.name, kind.item_type), declared.item_type)
    elif pa.types.is_struct(kind) and pa.types.is_struct(declared):
        names = [field.name for field in kind]
        places = places_of([field.name for field in declared], names)
        yield from (f"{found.name}.{name}" for place, name in enumerate(names) if place not in places)
        for field, place in zip(declared, places, strict=True):
            if place is not None:
                yield from (f"{found.name}.{path}" for path in _undeclared_inside(kind.field(place), field.type))
