"""A replay reads exactly the lines that were bad, wherever the object is cut, under another schema or the same."""

import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.property.source_run import Case, Found, any_pieces, read, whole

from penstock.pipeline.spark.source.options import CsvOptions, ReadOptions
from penstock.pipeline.spark.source.places import ranges_of
from penstock.pipeline.spark.source.plan import Piece

JSON_LINES = st.sampled_from(
    [b'{"id": 1, "v": 2}', b'{"id": 1, "v": "x"}', b'{"id": "x"}', b'{"id": 3, "v": 1.5}', b"junk", b"", b"\xff{}"]
)
CSV_LINES = st.sampled_from(
    [b"1,2", b"1;2", b"x,2", b'"1",2', b'1,"a', b'b",2', b"1,2,3", b"", b'"', b"\xff,1", b"7;8"]
)
ENDINGS = st.sampled_from([b"\n", b"\r\n"])


@st.composite
def contents(draw: st.DrawFn, lines: st.SearchStrategy[bytes]) -> list[bytes]:
    return [
        b"".join(line + draw(ENDINGS) for line in draw(st.lists(lines, max_size=12)))
        for _ in range(draw(st.integers(1, 3)))
    ]


def check(draw: st.DataObject, objects: list[bytes], first: ReadOptions, then: ReadOptions, *, suffix: str) -> Found:
    """Replay the bad lines of a first reading, and compare with a reading of everything under the same options."""
    stored = [gzip.compress(each, mtime=0) if suffix else each for each in objects]

    def pieces() -> list[list[Piece]]:
        return whole(stored) if suffix else draw.draw(any_pieces(stored))

    def case(options: ReadOptions, places: dict[int, bytes]) -> Case:
        return Case(stored, pieces(), options, suffix=suffix, places=places)

    before = read(case(first, {}))
    bad: dict[str, list[tuple[int, int]]] = {ref.uri: [] for ref in before.plan.objects}
    for uri, offset, raw, _ in before.bad:
        bad[uri].append((offset, len(raw)))
    places = {number: ranges_of(spans, place="_offset") for number, spans in enumerate(bad.values())}
    replayed = read(case(then, places))
    everything = read(case(then, {}))

    def is_meant(uri: str, offset: int) -> bool:
        return any(start <= offset < start + max(1, size) for start, size in bad[uri])

    assert sorted(map(repr, replayed.rows)) == sorted(repr(row) for row in everything.rows if is_meant(*row[:2]))
    assert sorted(replayed.bad) == sorted(line for line in everything.bad if is_meant(*line[:2]))
    for number, ref in enumerate(replayed.plan.objects):
        rows = sum(uri == ref.uri for uri, *_ in replayed.rows)
        lines = sum(uri == ref.uri for uri, *_ in replayed.bad)
        if bad[ref.uri] and not rows + lines:  # the lines are no records under these options
            assert "has no record that begins where its bad lines do" in replayed.failures[number]
        else:
            assert replayed.counts[number] == (rows, lines)
    if then.format == "jsonl":
        read_again = {(uri, offset) for uri, offset, *_ in (*replayed.rows, *replayed.bad)}
        assert read_again == {(uri, offset) for uri, offset, *_ in before.bad}, "each bad line is read again"
    return replayed


@given(st.data(), contents(JSON_LINES), st.sampled_from(["", ".gz"]))
def test_bad_json_lines_are_read_again_and_no_others(draw: st.DataObject, objects: list[bytes], suffix: str) -> None:
    first, then = ReadOptions(schema_ddl="id bigint, v bigint"), ReadOptions(schema_ddl="id string, v string")
    check(draw, objects, first, then, suffix=suffix)


@given(
    st.data(), contents(CSV_LINES), st.sampled_from([("", '"'), (".gz", '"'), ("", "")]), st.sampled_from([",", ";"])
)
def test_bad_csv_records_are_read_again_and_no_others(
    draw: st.DataObject, objects: list[bytes], how: tuple[str, str], delimiter: str
) -> None:
    suffix, quote = how
    first = ReadOptions(schema_ddl="a bigint, b bigint", format="csv", csv=CsvOptions(header=False))
    csv = CsvOptions(header=False, delimiter=delimiter, quote=quote)
    check(draw, objects, first, ReadOptions(schema_ddl="a string, b string", format="csv", csv=csv), suffix=suffix)


@pytest.mark.parametrize(
    ("content", "csv"),
    [
        pytest.param(b"1,'a\nb,c'\n3,c\n", CsvOptions(header=False, quote="'"), id="within another record"),
        pytest.param(b"1,a\nb,c\n3,c\n", CsvOptions(header=False, comment="b"), id="a comment"),
    ],
)
def test_a_replay_whose_lines_are_no_records_fails(content: bytes, csv: CsvOptions) -> None:
    options = ReadOptions(schema_ddl="id bigint, name string", format="csv", csv=csv)
    found = read(
        Case([content], whole([content]), options, places={0: ranges_of([(content.index(b"b,c"), 3)], place="_offset")})
    )
    assert (found.rows, found.bad) == ([], [])
    assert found.failures[0].endswith(
        "k0 has no record that begins where its bad lines do, under the pipeline's present options: correct the quote, "
        "comment or other options and replay the lines again, or dismiss them"
    )


@given(st.data(), contents(JSON_LINES))
def test_a_replay_that_changes_nothing_finds_the_same_bad_lines(draw: st.DataObject, objects: list[bytes]) -> None:
    options = ReadOptions(schema_ddl="id bigint, v bigint", quarantine_ratio_max=1.0)
    found = check(draw, objects, options, options, suffix="")
    assert found.rows == []
    assert found.failures == {}, "lines that are bad again fail no object"
