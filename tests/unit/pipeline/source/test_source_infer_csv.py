"""Schemas inferred from CSV and text."""

import gzip
from pathlib import Path

import pytest

from penstock.errors import UsageError
from penstock.objects.local_store import LocalStore
from penstock.pipeline.spark.source.infer import Inferred, infer_schema
from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions


def inferred(folder: Path, files: dict[str, bytes], csv: CsvOptions | None = None, form: str = "csv") -> Inferred:
    for name, data in files.items():
        (folder / name).write_bytes(data)
    store = LocalStore(folder)
    objects = [store.describe(folder / name) for name in sorted(files)]
    return infer_schema(objects, store, ReadOptions(format=form, csv=csv or CsvOptions()))


def test_names_come_from_the_header_and_types_from_the_values(tmp_path: Path) -> None:
    data = b'id, v,ts,zip,b,s,none,day,"large"\r\n1,1,2024-05-06T07:08:09.5Z,00501,true,"",,2024-05-06,9' + b"9" * 20
    more = b"\r\n\r\n2,1.5,2024-05-06 07:08,10001,False,=1+1,,,\r\nbad\r\n"
    assert inferred(
        tmp_path, {"a": b"\xef\xbb\xbf" + data + more, "b.gz": gzip.compress(b"id,more\n3,x\n")}
    ) == Inferred(
        ddl="id BIGINT, v DOUBLE, ts TIMESTAMP, zip STRING, b BOOLEAN, s STRING, none STRING, day STRING, "
        "large DECIMAL(38,0), more STRING",
        notes=(),
    )


def test_the_majority_decides_and_strings_accept_everything(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"n,s\n" + b"1,a\n" * 8 + b"x,2\ny,true\n"})
    assert found.ddl == "n BIGINT, s STRING"
    assert found.notes == ("n: 8 numbers, 2 text in the sample; lines with the latter are quarantined",)


def test_without_a_header_columns_are_numbered(tmp_path: Path) -> None:
    found = inferred(tmp_path, {"a": b"1;NA\n2;x\n"}, CsvOptions(header=False, delimiter=";", null_text="NA"))
    assert found.ddl == "_c0 BIGINT, _c1 STRING"


def test_a_header_alone_and_a_duplicate_name_are_accepted(tmp_path: Path) -> None:
    assert inferred(tmp_path, {"a": b"id,x,X,_object\n"}).ddl == "id STRING"


def test_nothing_to_infer_from_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can be read as CSV with a column"):
        inferred(tmp_path, {"a": b"", "b": b"\n\n", "c.gz": b"no gzip", "d": b'"open\n'})


def test_text_always_has_one_column(tmp_path: Path) -> None:
    assert inferred(tmp_path, {"a": b'{"id":1}\n'}, form="text") == Inferred(ddl="value STRING", notes=())
