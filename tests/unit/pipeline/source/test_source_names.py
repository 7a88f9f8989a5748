"""Names and paths of objects: the format, and columns that are not those of the objects."""

import codecs

from tests.property.source_run import MemoryStore

from penstock.objects.reference import ObjectRef
from penstock.objects.selection import Selection, SkipReason
from penstock.pipeline.spark.source.formats import KNOWN_SUFFIXES, follows_from_names
from penstock.pipeline.spark.source.infer import infer_schema
from penstock.pipeline.spark.source.options import CsvOptions, GivenCsv, ReadOptions, as_text, from_text, is_by_names


def refs(objects: dict[str, bytes]) -> list[ObjectRef]:
    return [ObjectRef(bucket="b", key=key, size_bytes=len(data), etag="e") for key, data in objects.items()]


def test_names_of_no_format_are_left_out_if_the_format_follows_from_names() -> None:
    names = ["a.csv", "A.CSV.GZ", "b.jsonl.zst", "c.csv.zip", "README.md", "a.csv.tmp", "part-00000", "gz"]
    selection = Selection(suffixes=KNOWN_SUFFIXES)
    kept = [name for name in names if selection.left_out(name, 1) is None]
    assert kept == names[:4], "a zip archive fails, with a reason"
    assert selection.left_out("README.md", 1) is SkipReason.OTHER_SUFFIX
    assert follows_from_names(refs(dict.fromkeys(names, b"")))
    assert not follows_from_names(refs(dict.fromkeys(names[4:], b"")))


def test_that_is_remembered() -> None:
    assert is_by_names(as_text(ReadOptions(), by_names=True))
    assert not is_by_names(as_text(ReadOptions()))
    assert not is_by_names('{"format":"csv","csv":{"delimiter":";"}}'), "of an earlier version"
    assert from_text('{"format":"csv","csv":{"delimiter":";"}}').csv == CsvOptions(delimiter=";")


def test_a_column_of_the_path_is_not_inferred_from_the_objects() -> None:
    objects = {"day=2026-01-02/a.csv": b"id,Day\n1,x\n"}
    options = ReadOptions(format="csv", partitions_ddl="day DATE")
    found = infer_schema(refs(objects), MemoryStore(objects), options)
    assert found.ddl == "id BIGINT"
    assert found.notes == ("Day: from the path, not from the objects",)


def test_the_dialect_of_utf16_is_found() -> None:
    text = "id;t\r\n" + '1;"a \\"b\\"; c"\r\n' * 50_000
    objects = {"a.csv": codecs.BOM_UTF16_LE + text.encode("utf-16-le")}
    found = infer_schema(refs(objects), MemoryStore(objects), ReadOptions(format="csv"))
    assert found.ddl == "id BIGINT, t STRING"
    assert (found.options.csv.delimiter, found.options.csv.escape) == (";", "\\")


def test_given_options_go_first() -> None:
    detected = CsvOptions(delimiter=";", escape="\\", unnamed_first=True, null_marks=("NA",))
    assert GivenCsv().over(detected) == detected
    given = GivenCsv(header=False, escape='"', nulls=("-",))
    expected = CsvOptions(delimiter=";", escape='"', header=False, null_marks=("NA",), nulls=("-",))
    assert given.over(detected) == expected
    assert given.names == ("header", "nulls", "escape")
