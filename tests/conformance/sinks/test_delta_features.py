"""Delta's allow-list with real logs: tables with supported features are committed to and read back, others are refused
on load.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conformance.sinks.kit import FIRST, SCHEMA, DeltaKit, append, loaded, write

from penstock.errors import TableError

READER_FEATURES = frozenset(  # that a reader must support too
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
    }
)


def table(
    root: Path,
    *,
    versions: tuple[int, int] = (1, 2),
    feature: str | None = None,
    settings: Mapping[str, str] | None = None,
    id_metadata: Mapping[str, Any] | None = None,
    id_nullable: bool = True,
) -> Path:
    """Create a table as another program would: its first commit, written by hand."""
    protocol: dict[str, Any] = {"minReaderVersion": versions[0], "minWriterVersion": versions[1]}
    if feature is not None:
        protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
        if feature in READER_FEATURES:
            protocol |= {"minReaderVersion": 3, "readerFeatures": [feature]}
    columns = [
        {"name": "id", "type": "long", "nullable": id_nullable, "metadata": id_metadata or {}},
        {"name": "name", "type": "string", "nullable": True, "metadata": {}},
    ]
    metadata = {
        "id": "5b3b5e4c-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": json.dumps({"type": "struct", "fields": columns}),
        "partitionColumns": [],
        "configuration": settings or {},
        "createdTime": 1,
    }
    log = root / "_delta_log"
    log.mkdir(parents=True)
    actions = [{"protocol": protocol}, {"metaData": metadata}]
    (log / f"{0:020d}.json").write_text("\n".join(json.dumps(action) for action in actions))
    return root


def assert_rows_can_be_appended(root: Path) -> None:
    sink = DeltaKit().sink(root)
    sink.ensure_schema(SCHEMA)
    loaded(sink).append(append(1, FIRST, write(root, FIRST, id=[1], name=["a"])))
    assert DeltaKit().rows(root) == [{"id": 1, "name": "a"}]


@pytest.mark.parametrize("versions", [(1, 1), (1, 2), (1, 3), (1, 4), (2, 5)])
def test_a_protocol_version_without_features_in_use_accepts_rows(tmp_path: Path, versions: tuple[int, int]) -> None:
    assert_rows_can_be_appended(table(tmp_path / "t", versions=versions))


@pytest.mark.parametrize(
    "feature", ["appendOnly", "invariants", "checkConstraints", "changeDataFeed", "generatedColumns", "timestampNtz"]
)
def test_a_supported_feature_accepts_rows(tmp_path: Path, feature: str) -> None:
    assert_rows_can_be_appended(table(tmp_path / "t", feature=feature))


@pytest.mark.parametrize(
    "settings",
    [
        {"delta.appendOnly": "true"},
        {"delta.enableChangeDataFeed": "true"},
        {"delta.checkpointInterval": "1"},
        {"delta.columnMapping.mode": "none"},
        {"another.programs": "setting"},
    ],
    ids=str,
)
def test_a_setting_without_effect_on_writers_accepts_rows(tmp_path: Path, settings: dict[str, str]) -> None:
    assert_rows_can_be_appended(table(tmp_path / "t", versions=(1, 4), settings=settings))


@pytest.mark.parametrize(
    "feature",
    [
        "allowColumnDefaults",
        "clustering",
        "columnMapping",
        "deletionVectors",
        "domainMetadata",
        "icebergCompatV1",
        "icebergCompatV2",
        "identityColumns",
        "inCommitTimestamp",
        "rowTracking",
        "typeWidening",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "someFutureFeature",
    ],
)
def test_an_unsupported_feature_is_refused_by_name(tmp_path: Path, feature: str) -> None:
    root = table(tmp_path / "t", feature=feature)
    with pytest.raises(TableError, match=feature):
        DeltaKit().sink(root).load()


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"delta.constraints.positive": "id > 0"}, "CHECK constraint positive"),
        ({"delta.setTransactionRetentionDuration": "interval 1 day"}, "setTransactionRetentionDuration"),
    ],
)
def test_an_unsupported_setting_is_refused(tmp_path: Path, settings: dict[str, str], named: str) -> None:
    root = table(tmp_path / "t", versions=(1, 3), settings=settings)
    with pytest.raises(TableError, match=named):
        DeltaKit().sink(root).load()


@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"delta.generationExpression": "1 + 1"}, "generated columns"),
        ({"delta.invariants": '{"expression":{"expression":"id > 0"}}'}, "column invariants"),
        ({"CURRENT_DEFAULT": "7"}, "column defaults"),
        ({"delta.identity.start": 1}, "identity columns"),
    ],
)
def test_an_unsupported_column_property_is_refused(tmp_path: Path, metadata: dict[str, Any], named: str) -> None:
    root = table(tmp_path / "t", versions=(1, 4), id_metadata=metadata)
    with pytest.raises(TableError, match=f"{named}.*id"):
        DeltaKit().sink(root).load()


def test_protocol_version_6_is_refused_because_the_library_cannot_commit_to_it(tmp_path: Path) -> None:
    root = table(tmp_path / "t", versions=(1, 6))
    with pytest.raises(TableError, match="protocol version 1/6"):
        DeltaKit().sink(root).load()


def test_a_future_protocol_version_is_refused_in_one_line(tmp_path: Path) -> None:
    root = table(tmp_path / "t", versions=(4, 8))
    with pytest.raises(TableError) as refusal:
        DeltaKit().sink(root).load()
    assert "\n" not in str(refusal.value)


def test_a_column_that_is_not_null_is_refused(tmp_path: Path) -> None:
    root = table(tmp_path / "t", id_nullable=False)
    with pytest.raises(TableError, match="NOT NULL"):
        DeltaKit().sink(root).ensure_schema(SCHEMA)


def test_a_column_whose_type_needs_a_feature_enables_it(tmp_path: Path) -> None:
    root = table(tmp_path / "t")
    assert_rows_can_be_appended(root)
    sink = DeltaKit().sink(root)
    sink.ensure_schema(SCHEMA.append(pa.field("at", pa.timestamp("us"))))
    assert loaded(sink).position.seq == 1
    assert DeltaKit().rows(root) == [{"id": 1, "name": "a", "at": None}]


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([("id", pa.int64()), ("ID", pa.int64())]),
        pa.schema([("id", pa.int64()), ("id", pa.int64())]),
        pa.schema([("s", pa.struct([("a", pa.int64()), ("A", pa.int64())]))]),
        pa.schema([]),
    ],
    ids=["case", "twice", "nested", "none"],
)
def test_invalid_columns_are_refused_before_the_table_is_created(tmp_path: Path, schema: pa.Schema) -> None:
    with pytest.raises(TableError):
        DeltaKit().sink(tmp_path / "t").ensure_schema(schema)
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("name", ["a\\b", "new\nline", "a%20b", "not\udce9utf8"])
def test_a_path_that_the_library_misreads_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TableError, match="cannot be in"):
        DeltaKit().sink(tmp_path / name).load()


@pytest.mark.parametrize(
    "type_",
    [pa.timestamp("us", tz="UTC"), pa.timestamp("us"), pa.float64(), pa.binary(), pa.decimal128(10, 2)],
    ids=str,
)
def test_a_partition_column_of_an_unsupported_type_is_refused(tmp_path: Path, type_: pa.DataType) -> None:
    sink = DeltaKit().sink(tmp_path / "t", partition_by=["part"])
    with pytest.raises(TableError, match="part"):
        sink.ensure_schema(pa.schema([("id", pa.int64()), ("part", type_)]))
