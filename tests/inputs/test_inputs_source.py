"""The rows of INPUTS for the reader: objects that cannot be read, and contents that are odd but valid."""

import bz2
import gzip
import io
import pickle
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import zstandard

from penstock.ledger.records import AttemptFailure
from penstock.objects.local_store import LocalStore
from penstock.pipeline.spark.engine import read_failure
from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.plan import Piece, ReadPlan, make_plan
from penstock.pipeline.spark.source.reading import partition_task, read_partition
from penstock.pipeline.spark.source.report import ReadingId
from penstock.pipeline.spark.source.summary import Summary, summarise
from penstock.storage.aws import Aws
from penstock.storage.local import LocalFiles

LINE = b'{"id":1}\n'
MIB = 1 << 20


def plan_of(folder: Path, files: dict[str, bytes], options: ReadOptions) -> ReadPlan:
    source = folder / "in"
    source.mkdir(parents=True)
    for name, data in files.items():
        (source / name).write_bytes(data)
    store = LocalStore(source)
    return make_plan(
        [store.describe(source / name) for name in files],
        attempt_id="A",
        run=1,
        options=options,
        cores=1,
        source=str(source),
        aws=Aws(),
        quarantine=LocalFiles(folder / "quarantine"),
        work=LocalFiles(folder / "work"),
    )


def read(plan: ReadPlan) -> tuple[list[dict[str, object]], Summary]:
    rows: list[dict[str, object]] = []
    for number in range(len(plan.partitions)):
        reading = ReadingId(plan.reports, number)
        for batch in read_partition(partition_task(plan, number), LocalStore(plan.source), reading):
            rows.extend(batch.drop_columns(["_object"]).to_pylist())
    return rows, summarise(plan)


def ids(rows: list[dict[str, object]]) -> list[object]:
    return [row["id"] for row in rows]


JSONL = ReadOptions(schema_ddl="id bigint, s string")


def refused(tmp_path: Path, name: str, data: bytes, options: ReadOptions = JSONL) -> str:
    """Read one bad object between two good ones; return its reason, and check that only it has one."""
    plan = plan_of(tmp_path, {"0.jsonl": LINE, name: data, "2.jsonl": LINE}, options)
    rows, summary = read(plan)
    assert (ids(rows), sorted(summary.readings), sorted(summary.failures)) == ([1, 1], [0, 2], [1])
    failure = summary.failures[1]
    assert read_failure(failure).failure is (
        AttemptFailure.DEAD if failure.kind in ("too_large", "corrupt") else AttemptFailure.RETRY
    )
    return failure.reason


# -- rows 28 to 31: objects that end dead ----------------------------------------------------------------------------


def gzip_bomb(byte: bytes, mebibytes: int) -> bytes:
    squeezer = zlib.compressobj(9, zlib.DEFLATED, 31)
    return b"".join(squeezer.compress(byte * MIB) for _ in range(mebibytes)) + squeezer.flush()


def bzip2_bomb(byte: bytes, mebibytes: int) -> bytes:
    squeezer = bz2.BZ2Compressor()
    return b"".join(squeezer.compress(byte * MIB) for _ in range(mebibytes)) + squeezer.flush()


def zstd_bomb(byte: bytes, mebibytes: int) -> bytes:
    """Blocks of one byte repeated 128 Ki times, 4 bytes each (RFC 8878, 3.1.1.2)."""
    block, last = (((128 << 10) << 3 | 1 << 1 | last).to_bytes(3, "little") + byte for last in (0, 1))
    return b"\x28\xb5\x2f\xfd\x00\x38" + block * (8 * mebibytes - 1) + last


Bomb = Callable[[bytes, int], bytes]
BOMBS: dict[str, Bomb] = {"gz": gzip_bomb, "bz2": bzip2_bomb, "zst": zstd_bomb}
CHILD = """
import pickle, resource, sys
from pathlib import Path
from tests.inputs.test_inputs_source import read
plan = pickle.loads(Path(sys.argv[1]).read_bytes())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows, summary = read(plan)
print((summary.failures or summary.exclude)[0].reason)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


@pytest.mark.parametrize("suffix", BOMBS)
def test_row_28_a_bomb_of_one_line_ends_at_the_limit_for_a_line(tmp_path: Path, suffix: str) -> None:
    reason, grown_mib = explode(tmp_path, f"bomb.jsonl.{suffix}", BOMBS[suffix](b"\0", 400), JSONL)
    assert "has a line of more than 134217728 bytes at offset 0" in reason
    assert grown_mib < 400


@pytest.mark.parametrize("suffix", BOMBS)
def test_row_28_a_bomb_of_newlines_ends_at_the_limit_for_an_object(tmp_path: Path, suffix: str) -> None:
    limited = replace(JSONL, inflated_bytes_max=70 * MIB)
    reason, grown_mib = explode(tmp_path, f"bomb.jsonl.{suffix}", BOMBS[suffix](b"\n", 400), limited)
    assert "inflates to more than 73400320 bytes" in reason
    assert grown_mib < 600


def explode(folder: Path, name: str, bomb: bytes, options: ReadOptions) -> tuple[str, int]:
    """Read a bomb in a separate process. Return the reason of the failure, and the growth of the process in MiB."""
    plan = plan_of(folder, {name: bomb}, options)
    assert plan.objects[0].size_bytes < MIB
    saved = folder / "plan.pickle"
    saved.write_bytes(pickle.dumps(plan))
    command = [sys.executable, "-c", CHILD, str(saved)]
    child = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    reason, grown_mib = child.stdout.splitlines()
    return reason, int(grown_mib)


def test_row_29_a_zip_archive_is_named(tmp_path: Path) -> None:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("bomb.jsonl", bytes(64 * MIB))
    assert "bomb.zip is a zip archive, which is not read" in refused(tmp_path, "bomb.zip", archive.getvalue())
    assert "is a zip archive" in refused(tmp_path / "x", "disguised.jsonl", archive.getvalue())


SQUEEZES: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": zstandard.ZstdCompressor(write_checksum=True).compress,
    "zstd": zstandard.ZstdCompressor(write_checksum=True).compress,
}


@pytest.mark.parametrize("suffix", SQUEEZES)
def test_row_30_corrupt_and_truncated_objects_are_named(tmp_path: Path, suffix: str) -> None:
    lines = b"".join(b'{"id":%d}\n' % number for number in range(100_000))
    data = bytearray(SQUEEZES[suffix](lines))
    name = {"gz": "gzip", "bz2": "bzip2"}.get(suffix, "zstd")
    for number, (damaged, words) in enumerate(
        [
            (data[:-9], f"is a truncated {name}"),
            (data[: len(data) // 2] + b"\x55\xaa" * 8 + data[len(data) // 2 + 16 :], f"is a corrupt {name}"),
            (data + b"garbage", f"has bytes behind the end of its {name} data"),
            (lines, f"is named like a {name} and is none"),
        ]
    ):
        assert words in refused(tmp_path / str(number), f"1.jsonl.{suffix}", bytes(damaged))


@pytest.mark.parametrize("suffix", SQUEEZES)
@pytest.mark.parametrize("data", [LINE, b""], ids=["a line", "no byte"])
def test_row_30_a_compressed_object_without_its_suffix_is_named(tmp_path: Path, suffix: str, data: bytes) -> None:
    assert f"not named so: give it a name that ends in .{suffix[:3]}" in refused(
        tmp_path, "1.jsonl", SQUEEZES[suffix](data)
    )


@pytest.mark.parametrize("line", [b"BZh9 is how bzip2 begins", b"(\xc2\xb5/\xc3\xbd", b"\x1f\x8b"])
def test_row_30_a_line_that_only_resembles_a_compressed_object_is_a_line(tmp_path: Path, line: bytes) -> None:
    options = ReadOptions(schema_ddl="value string", format="text")
    rows, summary = read(plan_of(tmp_path, {"1.txt": line + b"\nlast\n"}, options))
    assert not summary.failures
    assert len(rows) + summary.lines_quarantined == 2


@pytest.mark.parametrize("options", [JSONL, replace(JSONL, format="csv", schema_ddl="id bigint")], ids=["jsonl", "csv"])
def test_row_31_an_object_over_the_size_limit_is_dead_at_once_and_not_opened(
    tmp_path: Path, options: ReadOptions
) -> None:
    plan = plan_of(tmp_path, {"small": b"", "large": b"\n" * 5_001}, replace(options, object_bytes_max=5_000))
    (tmp_path / "in" / "large").unlink()
    rows, summary = read(plan)
    assert (rows, sorted(summary.readings)) == ([], [0])
    failure = read_failure(summary.failures[1])
    assert (failure.failure, failure.reason) == (
        AttemptFailure.DEAD,
        f"file://{tmp_path}/in/large has 5001 bytes, more than the limit of 5000 for one object",
    )


def test_row_31_a_large_object_in_pieces_fails_as_one(tmp_path: Path) -> None:
    options = replace(JSONL, object_bytes_max=9 * MIB)
    plan = plan_of(tmp_path, {"large": LINE * MIB, "small": LINE}, options)
    pieces = tuple(Piece(object=0, start=start, stop=start + 3 * MIB) for start in (0, 3 * MIB, 6 * MIB))
    plan = replace(plan, partitions=(*((piece,) for piece in pieces), (Piece(object=1, start=0, stop=len(LINE)),)))
    assert refused_of(replace(plan, options=replace(options, object_bytes_max=MIB))) == {0}
    assert refused_of(plan) == set()


def refused_of(plan: ReadPlan) -> set[int]:
    rows, summary = read(replace(plan, work=plan.work.beside(f"work-{plan.options.object_bytes_max}")))
    assert ids(rows)[-1:] == [1]
    return set(summary.failures)


# -- odd but valid ---------------------------------------------------------------------------------------------------

Written = Callable[[bytes], bytes]
FORMATS: dict[str, tuple[ReadOptions, Written, bytes]] = {  # options, a function from string to line, the header
    "jsonl": (JSONL, lambda text: b'{"s":"' + text + b'"}', b""),
    "csv": (ReadOptions(schema_ddl="s string", format="csv"), lambda text: text, b"s\n"),
    "text": (ReadOptions(schema_ddl="s string", format="text"), lambda text: text, b""),
}


def strings(
    folder: Path, form: str, lines: list[bytes], end: bytes = b"\n"
) -> tuple[list[tuple[object, object]], Summary]:
    """Read the lines as an object of that format, and return their values and offsets."""
    options, written, head = FORMATS[form]
    rows, summary = read(plan_of(folder, {"o": head + end.join(written(line) for line in lines)}, options))
    return sorted(((row["s"], row["_offset"]) for row in rows), key=lambda row: str(row[1]).zfill(9)), summary


@pytest.mark.parametrize("value", [b"=1+1", b"@SUM(A1)", b"+1", b"-2+3", b"=cmd|' /C calc'!A0"])
def test_row_47_formula_cells_come_through_literally(tmp_path: Path, value: bytes) -> None:
    assert strings(tmp_path, "csv", [value])[0] == [(value.decode(), 2)]


@pytest.mark.parametrize("form", FORMATS)
def test_row_50_an_object_of_0_bytes_has_no_row_and_is_read(tmp_path: Path, form: str) -> None:
    rows, summary = read(plan_of(tmp_path, {"o": b"", "o.gz": b"", "o.bz2": b"", "o.zst": b""}, FORMATS[form][0]))
    assert (rows, sorted(summary.readings), summary.rows) == ([], [0, 1, 2, 3], 0)


@pytest.mark.parametrize("form", FORMATS)
def test_row_51_a_last_line_without_its_newline_is_a_row(tmp_path: Path, form: str) -> None:
    assert [value for value, _ in strings(tmp_path, form, [b"a", b"b"])[0]] == ["a", "b"]


@pytest.mark.parametrize("form", FORMATS)
def test_row_52_lines_may_end_with_a_carriage_return_and_a_newline(tmp_path: Path, form: str) -> None:
    assert [value for value, _ in strings(tmp_path, form, [b"a", b"b", b"c"], b"\r\n")[0]] == ["a", "b", "c"]


@pytest.mark.parametrize("form", FORMATS)
def test_row_53_a_line_of_50_mb_is_a_row(tmp_path: Path, form: str) -> None:
    found = strings(tmp_path, form, [b"a", b"x" * 50_000_000, b"b"])[0]
    assert [len(str(value)) for value, _ in found] == [1, 50_000_000, 1]


@pytest.mark.parametrize("form", FORMATS)
def test_row_73_an_invalid_line_is_quarantined_with_its_offset_and_the_rest_is_read(tmp_path: Path, form: str) -> None:
    _, written, head = FORMATS[form]
    found, summary = strings(tmp_path, form, [b"a", b"\xff", b"b"])
    start = len(head) + len(written(b"a")) + 1
    assert found == [("a", len(head)), ("b", start + len(written(b"\xff")) + 1)]
    [file] = summary.quarantine
    [bad] = pq.read_table(tmp_path / "quarantine" / file.path).to_pylist()
    assert (bad["offset"], bad["raw"], bad["reason"]) == (start, written(b"\xff"), "invalid UTF-8")
