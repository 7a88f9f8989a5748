"""Check which Delta tables may be written, by an allow-list: the library ignores features that it does not know.

Measured with deltalake 1.6: it commits to tables with generated columns or CHECK constraints without enforcing them,
and readers of a column-mapped table see nulls in the written rows. A feature is allowed if a commit that adds files and
nullable columns needs no work for it; everything not listed here is refused. Two settings allow these commits, and not
those that take rows out of the table; see `check_removal`.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from penstock.errors import TableError

READER_VERSIONS = frozenset({1, 2, 3})
WRITER_VERSIONS = frozenset({1, 2, 3, 4, 5, 7})  # deltalake commits nothing to version 6, identity columns (measured)
# Features that need no work on an append if they are only declared, and with which deltalake commits and reads
# (measured). Table settings and columns show whether invariants, constraints and generated columns are in use.
FEATURES_KEPT = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",  # readers derive inserts from a commit that only adds files; see `check_removal`
        "generatedColumns",
        "timestampNtz",
    }
)
_COLUMN_FEATURES = {
    "delta.generationExpression": "generated columns",
    "delta.identity.": "identity columns",
    "delta.invariants": "column invariants",
    "delta.columnMapping.": "column mapping",
    "CURRENT_DEFAULT": "column defaults",
}


# Settings with which rows must not leave in files that are written again, and why.
_ROWS_STAY = {
    "delta.appendOnly": "rows may only be added to it",
    # Delta's protocol wants change files from a writer that rewrites rows. Without them, the rows of such a file that
    # stay are deleted and inserted for those who read the changes (measured).
    "delta.enableChangeDataFeed": "its change data feed would show all other rows of a file as deleted and inserted",
}


class DeltaProtocol(Protocol):
    """The part of deltalake's protocol object that is used."""

    @property
    def min_reader_version(self) -> int: ...
    @property
    def min_writer_version(self) -> int: ...
    @property
    def reader_features(self) -> list[str] | None: ...
    @property
    def writer_features(self) -> list[str] | None: ...


def check_features(
    protocol: DeltaProtocol, configuration: Mapping[str, str | None], schema_json: str, *, where: str
) -> None:
    """Raise `TableError` for the first feature in use that an append would violate."""
    feature = next(_refused(protocol, configuration, json.loads(schema_json)), None)
    if feature is not None:
        raise TableError(
            f"The table {where} uses {feature}, which Penstock does not keep when it writes; remove that from the "
            f"table, or write to another one."
        )


def check_removal(configuration: Mapping[str, str | None], *, where: str) -> None:
    """Raise `TableError` if a setting forbids to replace rows. Files may still be merged, which changes no rows."""
    for setting, reason in _ROWS_STAY.items():
        if (configuration.get(setting) or "").lower() == "true":
            raise TableError(
                f"Rows of the table {where} cannot be replaced or taken out, since it has {setting}=true: {reason}. "
                f"Unset the property (ALTER TABLE ... UNSET TBLPROPERTIES ('{setting}')). If rows are not merged by "
                "key, you can also keep those of every version (on_change='add', --on-change add), or refuse changed "
                "objects (on_change='refuse')."
            )


def _refused(
    protocol: DeltaProtocol, configuration: Mapping[str, str | None], schema: Mapping[str, Any]
) -> Iterator[str]:
    yield from _refused_protocol(protocol)
    yield from _refused_settings(configuration)
    for field in _fields(schema):
        for key in field.get("metadata") or {}:
            for prefix, feature in _COLUMN_FEATURES.items():
                if key.startswith(prefix):
                    yield f"{feature} (column {field['name']})"


def _refused_protocol(protocol: DeltaProtocol) -> Iterator[str]:
    if protocol.min_reader_version not in READER_VERSIONS or protocol.min_writer_version not in WRITER_VERSIONS:
        yield f"protocol version {protocol.min_reader_version}/{protocol.min_writer_version}"
    # from these versions on, the features are listed, those of readers for writers as well
    elif (protocol.min_writer_version == 7) != (protocol.writer_features is not None) or (
        protocol.min_reader_version == 3 and (protocol.min_writer_version != 7 or protocol.reader_features is None)
    ):
        yield f"protocol version {protocol.min_reader_version}/{protocol.min_writer_version} without its features"
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    for feature in sorted(listed - FEATURES_KEPT):
        yield f"the feature {feature}"


def _refused_settings(configuration: Mapping[str, str | None]) -> Iterator[str]:
    for key, value in sorted(configuration.items()):
        if key.startswith("delta.constraints."):
            yield f"the CHECK constraint {key.removeprefix('delta.constraints.')}"
        elif key == "delta.columnMapping.mode" and value not in (None, "none"):
            yield "column mapping"
        elif key == "delta.setTransactionRetentionDuration":  # the table would drop our position
            yield f"{key}, which forgets how far a pipeline is"


def _fields(type_: Any) -> Sequence[Mapping[str, Any]]:
    """Return all fields of a schema's JSON, including nested ones."""
    if not isinstance(type_, Mapping):
        return []
    found: list[Mapping[str, Any]] = []
    for field in type_.get("fields", ()):
        found += [field, *_fields(field["type"])]
    for part in ("elementType", "keyType", "valueType"):
        found += _fields(type_.get(part))
    return found
