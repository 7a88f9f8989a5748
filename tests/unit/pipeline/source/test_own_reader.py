"""Readers of users: what they get, what becomes of their rows, and what they raise. The examples of the docs."""

import io
import re
import sys
import zipfile
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import openpyxl
import pyarrow as pa
import pytest
from tests.property.source_run import Case, Found, MemoryReader, read, whole

from penstock import ObjectSource, Reject
from penstock.app.pipelines.declaration import reader_name
from penstock.errors import ConfigurationError, ObjectGone, ObjectUnreadable, TemporaryError, UsageError
from penstock.messaging.failure import FailureDetails
from penstock.objects.reference import ObjectRef
from penstock.pipeline.spark.engine import read_failure
from penstock.pipeline.spark.source.formats import OWN_FORMAT
from penstock.pipeline.spark.source.options import ReadOptions, checked
from penstock.pipeline.spark.source.own_reader import OwnReader, SourceObject
from penstock.pipeline.spark.source.plan import Piece
from penstock.pipeline.spark.source.report import FailureKind, ObjectFailure

DOCS = Path(__file__).parents[4] / "docs" / "use" / "own-formats.md"


def options(name: str, ddl: str = "id bigint", **more: Any) -> ReadOptions:
    return ReadOptions(schema_ddl=ddl, format=OWN_FORMAT, reader=f"{__name__}:{name}", **more)


def found_by(name: str, *contents: bytes, ddl: str = "id bigint") -> Found:
    return read(Case(contents=contents, partitions=whole(contents), options=options(name, ddl)))


def batch(*ids: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": list(ids)})


def lines(obj: SourceObject) -> Iterator[pa.RecordBatch]:
    """Yield a batch per line, with its numbers."""
    with obj.open() as file:
        for line in file:
            yield batch(*map(int, line.split()))


def texts(obj: SourceObject) -> Sequence[pa.RecordBatch]:
    return [pa.RecordBatch.from_pydict({"ID": obj.read().decode().split(), "other": [1] * 3})]


def nothing(obj: SourceObject) -> None:
    return None


def tables(obj: SourceObject) -> Iterator[Any]:
    yield batch(1)
    yield {"id": 1}


def exits(obj: SourceObject) -> Iterator[pa.RecordBatch]:
    sys.exit("no more")


def rejects(obj: SourceObject) -> Iterator[pa.RecordBatch]:
    yield batch(1)
    raise Reject("it is for nobody")


def swallows(obj: SourceObject) -> Iterator[pa.RecordBatch]:
    try:
        obj.read()
    except Exception:
        yield batch(1)


def copied(obj: SourceObject) -> Iterator[pa.RecordBatch]:
    path = obj.local_path()
    yield batch(len(path.read_bytes()))
    path.with_name("more").touch()
    assert str(path.parent) not in ("", "."), "a folder of its own"
    sys.modules[__name__].__dict__["COPY"] = path


def test_rows_are_numbered_over_all_batches_and_empty_batches_are_none() -> None:
    found = found_by("lines", b"1 2\n\n3\n", b"4\n", b"")
    assert [(uri[-2:], number, row["id"]) for uri, number, row in found.rows] == [
        ("k0", 0, 1),
        ("k0", 1, 2),
        ("k0", 2, 3),
        ("k1", 0, 4),
    ]
    assert found.failures == {}


def test_an_exception_of_the_function_fails_the_object_alone_with_the_line_of_its_code() -> None:
    found = found_by("lines", b"1\n2\n", b"1\nx\n", b"3\n")
    assert sorted(row["id"] for uri, _, row in found.rows if not uri.endswith("k1")) == [1, 2, 3]
    assert list(found.failures) == [1]
    assert re.fullmatch(
        r"s3://b/k1 cannot be read by \S+:lines at test_own_reader.py:\d+: ValueError: invalid literal .*'x'",
        found.failures[1],
    )


def test_a_row_with_a_value_of_another_type_is_a_bad_row() -> None:
    found = found_by("texts", b"7.5 x 8", ddl="id decimal(9,2)")
    assert [(number, row["id"]) for _, number, row in found.rows] == [(0, Decimal("7.50")), (2, Decimal("8.00"))]
    assert [(at, raw, reason) for _, at, raw, reason in found.bad] == [(1, b'{"ID":"x"}', "wrong type")]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nothing", "TypeError: 'NoneType' object is not iterable"),
        ("tables", "TypeError: it yielded a dict, and pyarrow.RecordBatch is expected"),
        ("exits", "SystemExit: no more"),
    ],
)
def test_a_function_that_yields_no_batches_fails_its_object(name: str, reason: str) -> None:
    assert found_by(name, b"x").failures[0].endswith(reason)


def test_an_object_without_any_declared_column_fails() -> None:
    assert found_by("lines", b"1\n", ddl="x bigint").failures == {
        0: "s3://b/k0 has no column of the schema, it has 'id'"
    }


def failure(name: str, reader: MemoryReader, **more: Any) -> BaseException:
    with pytest.raises((ObjectUnreadable, ObjectGone, TemporaryError)) as raised:
        list(OwnReader(options(name, **more)).read(reader, Piece(object=0, start=0, stop=1)))
    return raised.value


def opened(content: bytes) -> MemoryReader:
    return MemoryReader(ObjectRef(bucket="b", key="in/k.xlsx", size_bytes=len(content), etag="e"), content)


def test_the_traceback_is_kept_for_the_dead_letter_and_a_rejection_is_final() -> None:
    failed = ObjectFailure.of(failure("rejects", opened(b"x")))  # type: ignore[arg-type] # an ObjectError
    assert failed.kind is FailureKind.CORRUPT
    read_failed = read_failure(failed)
    assert isinstance(read_failed.raised, FailureDetails)
    assert read_failed.raised.summary == "Reject: it is for nobody"
    assert 'raise Reject("it is for nobody")' in read_failed.raised.traceback
    assert read_failure(ObjectFailure.of(failure("tables", opened(b"x")))).raised is not None  # type: ignore[arg-type]


@pytest.mark.parametrize("fault", [ObjectGone("deleted"), TemporaryError("the store is away")])
def test_an_error_of_the_store_stays_one_even_if_the_function_catches_it(fault: Exception) -> None:
    class Away(MemoryReader):
        def pread(self, offset: int, length_bytes: int) -> bytes:
            raise fault

    reader = Away(ObjectRef(bucket="b", key="k", size_bytes=3, etag="e"), b"abc")
    assert failure("swallows", reader) is fault
    assert failure("lines", reader) is fault


def test_a_copy_is_deleted_at_the_end() -> None:
    assert [row["id"] for *_, row in found_by("copied", b"abc").rows] == [3]
    copy: Path = sys.modules[__name__].__dict__["COPY"]
    assert not copy.parent.exists()


def test_sizes_are_limited() -> None:
    obj = SourceObject(opened(b"abcdef"), bytes_max=5)
    with pytest.raises(ObjectUnreadable, match=r"has 6 bytes, and at most 5 are copied"):
        obj.local_path()
    with pytest.raises(ObjectUnreadable, match=r"has 6 bytes, and at most 2 are read at once"):
        obj.read(2)
    assert obj.read() == b"abcdef"
    assert SourceObject(opened(b"abcdef"), bytes_max=6).local_path().name == "object-k.xlsx"


def test_an_open_object_is_a_file() -> None:
    with SourceObject(opened(b"abcdef"), bytes_max=5).open() as file:
        assert (file.read(2), file.seek(-1, io.SEEK_END), file.read(), file.read()) == (b"ab", 5, b"f", b"")
        with pytest.raises(OSError, match="negative position -1"):
            file.raw.seek(-1)  # type: ignore[attr-defined] # of a BufferedReader


def test_a_function_that_executors_cannot_import_is_refused() -> None:
    def inner(obj: SourceObject) -> Iterator[pa.RecordBatch]:
        yield batch(1)

    assert reader_name(lines) == f"{__name__}:lines"
    readers: list[Any] = [inner, lambda obj: []]
    for reader in readers:
        with pytest.raises(UsageError, match="cannot be imported by Spark's executors: define it with def at the top"):
            ObjectSource("/in", queue="q", schema="id long", reader=reader)
    with pytest.raises(UsageError, match="is not a function"):
        ObjectSource("/in", queue="q", schema="id long", reader="readers:lines")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has a reader and the format csv; give one of them"):
        ObjectSource("/in", queue="q", schema="id long", reader=lines, format="csv")
    with pytest.raises(UsageError, match="has no schema"):
        ObjectSource("/in", queue="q", reader=lines)


def test_the_format_cannot_be_named_without_a_reader() -> None:
    with pytest.raises(UsageError, match=r"The format 'reader' is unknown: this version reads jsonl, .*, binary\."):
        checked(ReadOptions(schema_ddl="id long", format=OWN_FORMAT))


@pytest.mark.parametrize("name", ["no_such_module:f", f"{__name__}:missing", f"{__name__}:DOCS"])
def test_a_reader_that_a_worker_cannot_import_is_a_wrong_configuration(name: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"The reader {name} (cannot be imported|is no function) on the host"):
        OwnReader(ReadOptions(schema_ddl="id bigint", format=OWN_FORMAT, reader=name))


# The examples


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make the modules of the page importable."""
    blocks = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert [name for name, _ in blocks] == ["readers", "sheets"]
    for name, source in blocks:
        (tmp_path / f"{name}.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name, _ in blocks:
        sys.modules.pop(name, None)


def by_example(name: str, ddl: str, content: bytes) -> Found:
    read_options = ReadOptions(schema_ddl=ddl, format=OWN_FORMAT, reader=name)
    return read(Case(contents=[content], partitions=whole([content]), options=read_options, suffix=".xlsx"))


ORDERS = "id string, ordered timestamp, total decimal(9,2)"


@pytest.mark.usefixtures("examples")
def test_the_example_for_xml() -> None:
    content = """<?xml version="1.0"?>
        <orders>
          <order id="a1"><ordered>2024-05-06T07:08:09Z</ordered><total>12.50</total></order>
          <order id="a2"><total> 3 </total><note>gift &amp; card</note></order>
          <order id="a3"><total>many</total></order>
        </orders>"""
    found = by_example("readers:read_orders", ORDERS, content.encode())
    assert [(number, row) for _, number, row in found.rows] == [
        (0, {"id": "a1", "ordered": datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), "total": Decimal("12.50")}),
        (1, {"id": "a2", "ordered": None, "total": Decimal("3.00")}),
    ]
    assert [(at, reason) for _, at, _, reason in found.bad] == [(2, "wrong type")]


@pytest.mark.usefixtures("examples")
def test_the_example_for_xml_gives_no_element_the_text_inside_another() -> None:
    content = b'<orders><order id="a"><ordered><year>2024</year></ordered><total>1</total> </order></orders>'
    found = by_example("readers:read_orders", ORDERS, content)
    assert [row for *_, row in found.rows] == [{"id": "a", "ordered": None, "total": Decimal("1.00")}]


@pytest.mark.usefixtures("examples")
def test_the_example_for_xml_yields_the_rows_that_the_parser_holds_back_until_it_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fed: list[bytes] = []

    class HoldsBack(ElementTree.XMLParser):
        def feed(self, data: Any) -> None:
            fed.append(data)

        def close(self) -> Any:
            super().feed(b"".join(fed))
            return super().close()

    monkeypatch.setattr(ElementTree, "XMLParser", HoldsBack)
    found = by_example("readers:read_orders", ORDERS, b'<orders><order id="a"/></orders>')
    assert [row["id"] for *_, row in found.rows] == ["a"]


@pytest.mark.usefixtures("examples")
def test_the_example_for_xml_rejects_a_damaged_document_at_once() -> None:
    (reason,) = by_example("readers:read_orders", ORDERS, b"<orders>").failures.values()
    assert "Reject: the document is damaged: no element found" in reason


@pytest.mark.usefixtures("examples")
def test_the_example_for_xml_refuses_entities() -> None:
    bomb = (
        b'<!DOCTYPE orders [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">]><orders>&b;</orders>'
    )
    (reason,) = by_example("readers:read_orders", ORDERS, bomb).failures.values()
    assert reason.endswith("Reject: the document has a document type, which may define entities")


def sheet(*rows: Sequence[Any]) -> bytes:
    book = openpyxl.Workbook()
    for row in rows:
        book.active.append(row)
    data = io.BytesIO()
    book.save(data)
    return data.getvalue()


@pytest.mark.usefixtures("examples")
def test_the_example_for_excel() -> None:
    day = datetime.fromisoformat("2024-05-06")
    content = sheet(["id", "day", "note"], [1, day, "x"], [2, None, 7], ["many", day, None])
    found = by_example("sheets:read_sheet", "id bigint, day timestamp_ntz, note string", content)
    assert found.failures == {}
    assert [(number, row) for _, number, row in found.rows] == [
        (0, {"id": 1, "day": day, "note": "x"}),
        (1, {"id": 2, "day": None, "note": "7"}),
    ]
    assert [(at, reason) for _, at, _, reason in found.bad] == [(2, "wrong type")]


def read_invoices(*rows: Sequence[Any]) -> Found:
    content = sheet(["nr", "kunde", "preis", None, "am"], *rows)
    return by_example("sheets:read_sheet", "nr long, kunde string, preis decimal(9,2), am date", content)


@pytest.mark.usefixtures("examples")
def test_the_example_for_excel_reads_dates_and_prices_as_the_sheet_shows_them() -> None:
    days = [datetime(2026, 2, day) for day in range(1, 21)]  # noqa: DTZ001 # as openpyxl returns them
    found = read_invoices(*([number, "Ann", number * 1.1, "aside", day] for number, day in enumerate(days, 1)))
    assert [row for *_, row in found.rows] == [
        {"nr": number, "kunde": "Ann", "preis": Decimal(11 * number) / 10, "am": day.date()}
        for number, day in enumerate(days, 1)
    ]
    assert (found.bad, found.failures) == ([], {})


@pytest.mark.usefixtures("examples")
def test_the_example_for_excel_skips_empty_rows_and_mixes_no_types() -> None:
    day, moment = datetime(2026, 2, 1), datetime(2026, 2, 1, 7)  # noqa: DTZ001 # as openpyxl returns them
    found = read_invoices(
        [1, "a", 2, None, day], [None] * 5, [], [2, "b", 2.5, None, moment], [3, "c"], [4, "d", 1, 1, 5]
    )
    assert [(number, row["nr"]) for _, number, row in found.rows] == [(0, 1), (2, 3)]
    assert [(at, reason) for _, at, _, reason in found.bad] == [(1, "wrong type"), (3, "wrong type")]
    assert [row["am"] for *_, row in found.rows] == [day.date(), None]


@pytest.mark.usefixtures("examples")
def test_the_example_for_excel_reads_beyond_a_wrong_size_of_the_sheet_and_takes_an_empty_one() -> None:
    with zipfile.ZipFile(io.BytesIO(sheet(["id"], [1], [2]))) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = "xl/worksheets/sheet1.xml"
    assert b'<dimension ref="A1:A3"' in parts[name]
    parts[name] = parts[name].replace(b'<dimension ref="A1:A3"', b'<dimension ref="A1:A1"')
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for each, content in parts.items():
            archive.writestr(each, content)
    assert [row["id"] for *_, row in by_example("sheets:read_sheet", "id long", data.getvalue()).rows] == [1, 2]
    found = by_example("sheets:read_sheet", "id long", sheet())
    assert (found.rows, found.failures) == ([], {})


@pytest.mark.usefixtures("examples")
def test_the_example_for_excel_refuses_bombs_and_other_files() -> None:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x", "w", force_zip64=True) as part:
        for _ in range(257):
            part.write(bytes(1 << 20))
    found = by_example("sheets:read_sheet", "id bigint", data.getvalue())
    assert found.failures[0].endswith("Reject: the workbook inflates to more than 256 MiB")
    found = by_example("sheets:read_sheet", "id bigint", b"x")
    assert found.failures[0].endswith("Reject: the workbook is damaged: File is not a zip file")
