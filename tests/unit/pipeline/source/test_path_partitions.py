"""Columns from the paths of objects."""

import datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import ObjectCorrupt, UsageError
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.source.options import ReadOptions, as_text, checked, from_text, partitions_ddl
from penstock.pipeline.spark.source.path_partitions import PathPartitions

DDL = "day DATE, region STRING"


def at(key: str) -> ObjectRef:
    return ObjectRef(bucket="b", key=key, size_bytes=1, etag="e")


def values(ddl: str, key: str) -> dict[str, Any]:
    [row] = PathPartitions(ddl).values(at(key)).to_pylist()
    return dict(row)


@pytest.mark.parametrize(
    ("key", "day", "region"),
    [
        ("in/day=2026-01-02/region=eu%2Fwest/a.csv", datetime.date(2026, 1, 2), "eu/west"),
        ("in/region=a=b/x/DAY=2026-01-02/a.csv", datetime.date(2026, 1, 2), "a=b"),
        ("day=__HIVE_DEFAULT_PARTITION__/region=__HIVE_DEFAULT_PARTITION__/a", None, None),
        ("day=2026-01-02/region=/a", datetime.date(2026, 1, 2), ""),
        ("day=2020-01-01/day=2026-01-02/region=NA/a", datetime.date(2026, 1, 2), "NA"),
        ("day=2026-01-02/region=%22x%22,%0A%c3%a9+%/a", datetime.date(2026, 1, 2), '"x",\né+%'),
    ],
)
def test_values_come_from_the_path(key: str, day: datetime.date | None, region: str | None) -> None:
    assert values(DDL, key) == {"day": day, "region": region}


def test_values_have_the_declared_types() -> None:
    ddl = "a INT, b DOUBLE, c BOOLEAN, d DECIMAL(5,2), e TIMESTAMP"
    found = values(ddl, "a=-7/b=1.5/c=true/d=1.25/e=2026-01-02 03%3A04%3A05/x")
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC)
    assert found == {"a": -7, "b": 1.5, "c": True, "d": Decimal("1.25"), "e": moment}


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("in/region=x/a", "has no folder day=... in its path"),
        ("in/day=2026-01-02/region=x", "has no folder region=... in its path"),
        ("in/day=soon/region=x/a", "does not fit: field day: "),
        ("in/day=/region=x/a", "has a folder day= without a value"),
        ("in/day=2026-01-02/region=%ff/a", "is not UTF-8"),
    ],
)
def test_an_object_with_another_path_fails(key: str, reason: str) -> None:
    with pytest.raises(ObjectCorrupt, match=reason):
        PathPartitions(DDL).values(at(key))


@given(st.text(st.characters(codec="utf-8", exclude_characters="/%"), min_size=1))
def test_every_text_is_read_as_it_is(text: str) -> None:
    assert values("t STRING", f"t={text}/x")["t"] == text
    encoded = "".join(f"%{byte:02X}" for byte in text.encode())
    assert values("t STRING", f"t={encoded}/x")["t"] == text


def test_declarations_are_checked_and_remembered() -> None:
    options = checked(ReadOptions(schema_ddl="id long", partitions_ddl=partitions_ddl({"day": "date", "a b": "int"})))
    assert options.partitions_ddl == "day DATE, `a b` INT"
    assert options.columns.names == ["id", "day", "a b", "_object", "_offset"]
    assert from_text(as_text(options)).partitions_ddl == options.partitions_ddl
    with pytest.raises(UsageError, match="also a column of the schema"):
        checked(ReadOptions(schema_ddl="id long, Day date", partitions_ddl="day date"))
    with pytest.raises(UsageError, match="cannot be read from a path"):
        checked(ReadOptions(schema_ddl="id long", partitions_ddl="tags array<string>"))
