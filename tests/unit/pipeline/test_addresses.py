"""The addresses of objects in files that a transform has made: as they were, or changed, so that they find no row."""

from typing import Any

import pytest

from penstock.pipeline.replacing import may_be_of
from penstock.sinks.manifest import DataFile

ADDRESSES = ["file:///landing/a.jsonl", "file:///landing/b.jsonl"]


def file(least: str | None = None, greatest: str | None = None, **partition: str | None) -> DataFile:
    bounds: dict[str, Any] = {}
    if least is not None:
        bounds["minValues"] = {"_object": least}
    if greatest is not None:
        bounds["maxValues"] = {"_object": greatest}
    return DataFile(path="f", size_bytes=1, rows=1, modified_at=0.0, statistics=bounds, partition_values=partition)


@pytest.mark.parametrize(
    "made",
    [
        file(*ADDRESSES),
        file(ADDRESSES[1], ADDRESSES[1]),
        file("file:///landing/", "file:///landing0"),  # cut
        file(None, ADDRESSES[0]),
        file(),
        file(_object=ADDRESSES[0]),
        file(_object=None),
    ],
)
def test_addresses_as_they_were(made: DataFile) -> None:
    assert may_be_of([made], ADDRESSES)


@pytest.mark.parametrize(
    "made",
    [
        file("a.jsonl", "b.jsonl"),
        file("a.jsonl", ADDRESSES[1]),
        file(ADDRESSES[0], "z"),
        file(None, "s3://b/k"),
        file(_object="a.jsonl"),
    ],
)
def test_addresses_that_a_transform_changed(made: DataFile) -> None:
    assert not may_be_of([file(*ADDRESSES), made], ADDRESSES)


def test_addresses_with_little_in_common_rule_nothing_out_that_they_share() -> None:
    assert may_be_of([file("s3://a/1", "s3://b/2")], ["s3://a/1", "s3://b/2"])
    assert not may_be_of([file("1", "2")], ["s3://a/1", "s3://b/2"])


def test_one_object_and_no_file() -> None:
    assert may_be_of([], ADDRESSES[:1])
    assert may_be_of([file(ADDRESSES[0], ADDRESSES[0])], ADDRESSES[:1])
    assert not may_be_of([file("a", "a")], ADDRESSES[:1])
