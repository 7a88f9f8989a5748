"""Which Delta tables we may write to: an allow-list, since the library writes past features it does not know.

Measured with deltalake 1.6: it commits to tables with generated columns or CHECK constraints without keeping them, and
readers of a column-mapped table see nulls in what it wrote. A feature is judged by what our one kind of commit (files
added, nullable columns added) would have to do for it; what is not listed here is refused.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from penstock.errors import TableError

READER_VERSIONS = frozenset({1, 2, 3})
WRITER_VERSIONS = frozenset({1, 2, 3, 4, 5, 7})  # to 6, identity columns, the library commits nothing (measured)
# Features whose mere presence asks nothing of an append, with which the library commits and reads (measured). Whether
# invariants, constraints and generated columns are in use is found in the table's settings and columns.
FEATURES_KEPT = frozenset(
    {
        "appendOnly",
        "invariants",
        "checkConstraints",
        "changeDataFeed",  # readers derive the inserts of a commit that only adds files
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


class DeltaProtocol(Protocol):
    """The part of deltalake's answer that is looked at."""

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
    """Raises `TableError` naming the first feature in use that an append of ours would not keep."""
    feature = next(_refused(protocol, configuration, json.loads(schema_json)), None)
    if feature is not None:
        raise TableError(
            f"The table {where} uses {feature}, which Penstock does not keep when it writes; remove that from the "
            f"table, or write to another one."
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
    listed = {*(protocol.reader_features or ()), *(protocol.writer_features or ())}
    for feature in sorted(listed - FEATURES_KEPT):
        yield f"the feature {feature}"


def _refused_settings(configuration: Mapping[str, str | None]) -> Iterator[str]:
    for key, value in sorted(configuration.items()):
        if key.startswith("delta.constraints."):
            yield f"the CHECK constraint {key.removeprefix('delta.constraints.')}"
        elif key == "delta.columnMapping.mode" and value not in (None, "none"):
            yield "column mapping"
        elif key == "delta.setTransactionRetentionDuration":  # our position would be forgotten
            yield f"{key}, which forgets how far a pipeline is"


def _fields(type_: Any) -> Sequence[Mapping[str, Any]]:
    """All fields of a schema's JSON, nested ones too."""
    if not isinstance(type_, Mapping):
        return []
    found: list[Mapping[str, Any]] = []
    for field in type_.get("fields", ()):
        found += [field, *_fields(field["type"])]
    for part in ("elementType", "keyType", "valueType"):
        found += _fields(type_.get(part))
    return found
