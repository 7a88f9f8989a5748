"""The addresses of sources: folders, files, patterns."""

from pathlib import Path

import pytest

from penstock.app.sources import SourceLocation, source_at
from penstock.errors import UsageError
from penstock.storage.aws import Aws


def local(source: object, **options: object) -> SourceLocation:
    return source_at(str(source), Aws(), **options)  # type: ignore[arg-type]


def found(source: SourceLocation) -> list[str]:
    return [Path(ref.key).name for chunk in source.scan().chunks() for ref in chunk]


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    for name in ("a.csv", "b.csv", "c.jsonl", "odd [1]*.csv", "2026-01/d.csv", "2026-01/x/e.csv", "2025/f.csv"):
        file = tmp_path / "in" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("x\n1\n")
    return tmp_path / "in"


def test_a_file_is_a_source_of_one_object(landing: Path) -> None:
    source = local(landing / "a.csv")
    assert found(source) == ["a.csv"]
    assert str(source) == f"{landing}/a.csv"
    assert source.address == str(landing)
    scan = source.scan()
    assert sum(1 for _ in scan.chunks()) == 1
    assert not scan.report().ignored, "its neighbours are not left out"


@pytest.mark.parametrize("name", ["odd [1]*.csv", "odd [[]1][*].csv", "odd [[]1[]][*].csv"])
def test_a_name_with_wildcards_can_be_named(landing: Path, name: str) -> None:
    assert found(local(landing / name)) == ["odd [1]*.csv"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("*.csv", ["a.csv", "b.csv", "odd [1]*.csv"]),
        ("2026-*/**/*.csv", ["d.csv", "e.csv"]),
        ("2026-*/*", ["d.csv"]),
        ("202[!5]*/", ["d.csv", "e.csv"]),
        ("2026-01/?.csv", ["d.csv"]),
        ("2*", []),
    ],
)
def test_a_pattern_selects_below_its_literal_part(landing: Path, pattern: str, expected: list[str]) -> None:
    source = local(f"{landing}/{pattern}")
    assert found(source) == expected
    assert str(source) == f"{landing}/{pattern}".replace(f"{landing}/2026-01/", f"{source.address}/")


def test_filters_are_part_of_the_name(landing: Path) -> None:
    source = local(landing, include=["*.csv"], exclude=["2*/", "odd*"])
    assert found(source) == ["a.csv", "b.csv"]
    assert str(source) == f"{landing} (include *.csv; exclude 2*/, odd*)"
    assert str(local(landing)) == str(landing)


def test_a_part_is_judged_by_both(landing: Path) -> None:
    source = local(landing, exclude=["x/"])
    names = [Path(ref.key).name for chunk in source.scan(local(landing / "**/*.csv")).chunks() for ref in chunk]
    assert names == ["a.csv", "b.csv", "odd [1]*.csv", "f.csv", "d.csv"]


def test_a_missing_folder_or_file_is_refused(landing: Path) -> None:
    with pytest.raises(UsageError, match="does not exist; give a folder or file to read"):
        local(landing / "none")
    with pytest.raises(UsageError, match=r"in which .* would look, does not exist"):
        local(landing / "none" / "*.csv")
    with pytest.raises(UsageError, match="which is no folder"):
        local(landing / "a.csv" / "*.csv")


@pytest.mark.parametrize(
    ("address", "folder", "listed"),
    [
        ("s3://b/logs/2026-*/x.gz", "s3://b/logs", "logs/2026-"),
        ("s3a://b/*.gz", "s3://b", ""),
        ("s3://b/k.csv", "s3://b/k.csv", "k.csv/"),
        ("s3://b/a[*]b/c", "s3://b/a*b/c", "a*b/c/"),
        ("s3://b/a[*]b/c?", "s3://b/a*b", "a*b/c"),
    ],
)
def test_s3_is_listed_by_the_longest_literal_prefix(address: str, folder: str, listed: str) -> None:
    source = source_at(address, Aws())
    assert source.address == folder
    assert source.selection.listed == listed


def test_a_bucket_has_no_wildcards() -> None:
    with pytest.raises(UsageError, match="name one bucket"):
        source_at("s3://logs-*/x", Aws())
