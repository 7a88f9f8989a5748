"""`penstock run`: finding the pipeline, and the parts that need no Spark."""

import json
from pathlib import Path

import pytest
from tests.cli.conftest import Call

SHOP = """
from penstock import App, DeltaSink, ObjectSource

app = App()
clicks = app.pipeline(
    "clicks",
    source=ObjectSource("landing", queue="clicks-events", schema="id long"),
    sink=DeltaSink("lake/clicks"{sink}),
)
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write an app's module into the current folder; return its name, a new one each time, as Python caches modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"shop_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SHOP.format(sink=""))
    (tmp_path / "landing").mkdir()
    return name


def test_a_run_with_nothing_to_do_starts_no_spark(penstock: Call, shop: str) -> None:
    report = penstock("run", f"{shop}:app", "clicks", "--available-now", "--source", "landing", "--json").document
    assert (report["pipeline"], report["objects_found"], report["objects_processed"]) == ("clicks", 0, 0)
    assert (report["table_version"], report["stopped"], report["messages_left"]) == (None, False, 0)
    result = penstock("run", f"{shop}:app", "clicks", "--available-now")
    assert result.exit_code == 0
    assert "clicks: 0 objects processed, 0 rows written in 0 batches" in result.out
    assert "(no version yet)" in result.out
    assert "Spark" not in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("{shop}", "clicks"), "does not name an app"),
        (("nowhere:app", "clicks"), "no module nowhere"),
        (("{shop}:app", "visits"), "has no pipeline visits; its pipelines: clicks"),
        (("{shop}:app", "clicks", "--source", "nowhere"), "does not exist"),
        (("{shop}:app", "clicks", "--source", "."), "is not in"),
        (("{shop}:app", "clicks", "--source", "s3://bucket/"), "s3://bucket is not in"),
    ],
)
def test_missing_apps_and_sources_are_reported_in_one_line(
    penstock: Call, shop: str, arguments: tuple[str, ...], words: str
) -> None:
    result = penstock("run", *(argument.format(shop=shop) for argument in arguments))
    assert result.exit_code == 2
    assert words in result.err
    assert len(result.err.splitlines()) == 1


def test_columns_that_do_not_fit_the_table_are_reported_before_spark_starts(
    penstock: Call, shop: str, tmp_path: Path
) -> None:
    (tmp_path / f"{shop}.py").write_text(SHOP.format(sink=", partition_by=['day']"))
    (tmp_path / "landing" / "a.jsonl").write_text(json.dumps({"id": 1}) + "\n")
    result = penstock("run", f"{shop}:app", "clicks", "--available-now", "--source", "landing")
    assert result.exit_code == 2
    assert "no column day to partition by" in result.err
    assert "Spark started" not in result.err


def test_a_missing_source_folder_is_reported(penstock: Call, shop: str, tmp_path: Path) -> None:
    (tmp_path / "landing").rmdir()
    result = penstock("run", f"{shop}:app", "clicks", "--available-now")
    assert (result.exit_code, "landing does not exist" in result.err) == (2, True)
