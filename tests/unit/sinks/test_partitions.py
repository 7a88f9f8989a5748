"""Partition fields as texts: parsed, checked, and named as other writers name them."""

import pytest

from penstock.errors import UsageError
from penstock.sinks.partitions import PartitionField, declared, names_of, parse, resolve, split


@pytest.mark.parametrize(
    ("text", "field", "spelled", "name"),
    [
        ("country", PartitionField(source="country"), "country", "country"),
        ("a b.c", PartitionField(source="a b.c"), "a b.c", "a b.c"),
        ("day(ts)", PartitionField(source="ts", transform="day"), "day(ts)", "ts_day"),
        (" Day ( ts ) ", PartitionField(source="ts", transform="day"), "day(ts)", "ts_day"),
        ("year(ts)", PartitionField(source="ts", transform="year"), "year(ts)", "ts_year"),
        ("month(ts)", PartitionField(source="ts", transform="month"), "month(ts)", "ts_month"),
        ("hour(a (b), c)", PartitionField(source="a (b), c", transform="hour"), "hour(a (b), c)", "a (b), c_hour"),
        (
            "bucket(16,user)",
            PartitionField(source="user", transform="bucket", argument=16),
            "bucket(16, user)",
            "user_bucket",
        ),
        (
            "truncate(4, path)",
            PartitionField(source="path", transform="truncate", argument=4),
            "truncate(4, path)",
            "path_trunc",
        ),
    ],
)
def test_a_text_is_a_field(text: str, field: PartitionField, spelled: str, name: str) -> None:
    assert parse(text) == field
    assert (str(field), field.name) == (spelled, name)
    assert parse(str(field)) == field


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "days(ts)",
            (
                "The partition field days(ts) has an unknown transform; write a column, or one of year(COLUMN), "
                "month(COLUMN), day(COLUMN), hour(COLUMN), bucket(N, COLUMN), truncate(W, COLUMN)."
            ),
        ),
        ("day()", "The partition field day() cannot be understood; write day(COLUMN)."),
        (
            "bucket(user, 16)",
            (
                "The partition field bucket(user, 16) cannot be understood; write bucket(N, COLUMN), with a whole "
                "number N from 1 to 2147483647."
            ),
        ),
        (
            "truncate(0, path)",
            (
                "The partition field truncate(0, path) cannot be understood; write truncate(W, COLUMN), with a whole "
                "number W from 1 to 2147483647."
            ),
        ),
    ],
)
def test_a_field_that_cannot_be_understood_is_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["bucket(user)", "bucket(-1, user)", "bucket(16,)", "bucket(2147483648, user)"])
def test_a_transform_needs_a_number_that_iceberg_can_store(text: str) -> None:
    with pytest.raises(UsageError, match=r"write bucket\(N, COLUMN\)"):
        parse(text)


def test_a_columns_name_always_means_the_column() -> None:
    assert resolve(["day(ts)", "ts"], ["day(ts)", "ts"]) == (
        PartitionField(source="day(ts)"),
        PartitionField(source="ts"),
    )
    assert resolve(["day(ts)"], ["ts"]) == (PartitionField(source="ts", transform="day"),)


def test_declared_fields_are_spelled_in_one_way() -> None:
    found = declared(["DAY( ts )", "bucket(16,user)", "country"], table="t", has_transforms=True)
    assert found == ("day(ts)", "bucket(16, user)", "country")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (["a", "a"], "The table t is partitioned by a more than once."),
        (["day(ts)", "day( ts )"], "The table t is partitioned by day(ts) more than once."),
        (["day(ts)", "hour(ts)"], "The table t is partitioned by day(ts) and hour(ts); keep one of them."),
        (
            ["bucket(8, a)", "bucket(16, a)"],
            "The table t is partitioned by bucket(8, a) and bucket(16, a); keep one of them.",
        ),
        (["truncate(2, a)", "a"], "The table t is partitioned by truncate(2, a) and a; keep one of them."),
    ],
)
def test_a_superfluous_field_is_refused(fields: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        declared(fields, table="t", has_transforms=True)
    assert str(caught.value) == message


def test_different_transforms_of_one_column_are_kept() -> None:
    fields = ("truncate(2, a)", "bucket(16, a)")
    assert declared(fields, table="t", has_transforms=True) == fields


def test_a_format_without_transforms_refuses_them_and_takes_any_name() -> None:
    with pytest.raises(UsageError) as caught:
        declared(["country", "day(ts)"], table="t", has_transforms=False)
    assert str(caught.value) == (
        "The table t cannot be partitioned by day(ts), as its format has no partition transforms; add a column with "
        "these values in the transform, and partition by that."
    )
    assert declared(["sum(x)"], table="t", has_transforms=False) == ("sum(x)",)


def test_fields_are_split_at_commas_outside_of_parentheses() -> None:
    assert split("day(ts), bucket(16, user),country") == ["day(ts)", "bucket(16, user)", "country"]
    assert split("a,,b)") == ["a", "", "b)"]
    assert split("") == [""]


def test_a_transforms_name_is_never_a_columns() -> None:
    fields = resolve(["day(ts)", "TS_day_"], ["ts", "TS_day", "TS_day_"])
    assert names_of(fields, ["ts", "TS_day", "TS_day_"]) == ("ts_day__", "TS_day_")
    assert names_of((parse("day(ts)"),), ["ts"]) == ("ts_day",)
