"""Columns that batches add to the declared or inferred ones, for new fields of the objects.

They are stored as types by name, in order. A declared column of the same name, in any letter case, goes first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pyarrow as pa

from penstock.ledger.records import UnknownCounts
from penstock.pipeline.spark.source.ddl import RESCUED, format_ddl, may_be_column, parse_ddl, type_text
from penstock.pipeline.spark.source.formats import format_of
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.summary import ObjectReadings
from penstock.pipeline.spark.source.unknown import UnknownCount, UnknownFields, name_shown
from penstock.sinks import schema

ADDED_MAX = 500  # columns of one pipeline; of further fields the values are rescued, since names may be ids


def with_added(options: ReadOptions, added: Mapping[str, str]) -> ReadOptions:
    """Return the options with these columns as well."""
    if not added or format_of(options.format).has_own_schema:
        return options
    declared = parse_ddl(options.schema_ddl)
    in_paths = parse_ddl(options.partitions_ddl).names if options.partitions_ddl else []
    known = {name.lower() for name in (*declared.names, *in_paths)}
    more = [_field(name, kind) for name, kind in added.items() if name.lower() not in known]
    if options.rescues:
        more = [field for field in more if field.name.lower() != RESCUED.name]
    return replace(options, schema_ddl=format_ddl(pa.schema([*declared, *more])))


def unknown_counts(unknown: UnknownFields | None) -> UnknownCounts | None:
    """Return these counts of an object as the ledger stores them; None if there are none."""
    if not unknown:
        return None
    return UnknownCounts(
        fields={name_shown(name): found.rows for name, found in unknown.fields.items()},
        others=unknown.others,
        wrong_type={name_shown(name): rows for name, rows in unknown.wrong_type.items()},
        wrong_type_others=unknown.wrong_type_others,
    )


def new_columns(
    readings: ObjectReadings, options: ReadOptions, table: pa.Schema | None, *, added_before: int
) -> dict[str, str]:
    """Return the columns that hold fields without a column.

    A column of this name in the table decides about the type. Left out are fields that no column can hold, those that
    only letter case tells from a column or from a part of one (``a.b`` beside a struct ``a``, which is one name in
    Iceberg), and those beyond `ADDED_MAX`.
    """
    count = UnknownCount()
    for unknown in readings.unknown.values():
        for name, found in unknown.fields.items():
            count.add(name, found)
    taken = _paths(options.columns)
    in_table = {} if table is None else {field.name.lower(): field for field in table}
    taken |= set() if table is None else _paths(table) - in_table.keys()
    new: dict[str, str] = {}
    for name, found in sorted(count.fields.items(), key=lambda item: (item[1].first, item[0])):
        if not found.ddl or not may_be_column(name) or name.lower() in taken | {RESCUED.name}:
            continue
        if added_before + len(new) >= ADDED_MAX:
            break
        kind = found.ddl
        if (column := in_table.get(name.lower())) is not None:
            if column.name != name:
                continue
            kind = type_text(column.type)
        paths = _paths([_field(name, kind)])
        if column is None and not paths.isdisjoint(taken | in_table.keys()):
            continue
        if _can_be_read(options, name, kind):
            new[name] = kind
            taken |= paths
    return new


def _paths(columns: Iterable[pa.Field]) -> set[str]:
    return {path.lower() for path in schema.paths(columns)}


def _can_be_read(options: ReadOptions, name: str, kind: str) -> bool:
    """Return True if the format reads columns of the type: CSV has single values only."""
    return options.format != "csv" or not pa.types.is_nested(_field(name, kind).type)


def _field(name: str, kind: str) -> pa.Field:
    return parse_ddl(f"value {kind}").field(0).with_name(name)
