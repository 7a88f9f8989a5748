"""`penstock run`: finding the pipeline, and what needs no Spark."""

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
    """The name of a module in the current folder; another one each time, as Python remembers modules."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"shop_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SHOP.format(sink=""))
    (tmp_path / "landing").mkdir()
    return name


def test_with_nothing_to_do_it_is_done_without_spark(penstock: Call, shop: str) -> None:
    report = penstock("run", f"{shop}:app", "clicks", "--available-now", "--source", "landing", "--json").document
    assert (report["pipeline"], report["objects_found"], report["objects_processed"]) == ("clicks", 0, 0)
    assert (report["table_version"], report["stopped"], report["messages_left"]) == (None, False, 0)
    said = penstock("run", f"{shop}:app", "clicks", "--available-now")
    assert said.exit_code == 0
    assert "clicks: 0 objects processed, 0 rows written in 0 batches" in said.out
    assert "(no version yet)" in said.out
    assert "Spark" not in said.err


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
def test_missing_apps_and_sources_are_reported_in_a_sentence(
    penstock: Call, shop: str, arguments: tuple[str, ...], words: str
) -> None:
    said = penstock("run", *(argument.format(shop=shop) for argument in arguments))
    assert said.exit_code == 2
    assert words in said.err
    assert len(said.err.splitlines()) == 1


def test_columns_that_do_not_go_with_the_table_are_reported_before_spark_is_started(
    penstock: Call, shop: str, tmp_path: Path
) -> None:
    (tmp_path / f"{shop}.py").write_text(SHOP.format(sink=", partition_by=['day']"))
    (tmp_path / "landing" / "a.jsonl").write_text(json.dumps({"id": 1}) + "\n")
    said = penstock("run", f"{shop}:app", "clicks", "--available-now", "--source", "landing")
    assert said.exit_code == 2
    assert "no column day to partition by" in said.err
    assert "Spark started" not in said.err


def test_a_source_folder_that_does_not_exist_is_said(penstock: Call, shop: str, tmp_path: Path) -> None:
    (tmp_path / "landing").rmdir()
    said = penstock("run", f"{shop}:app", "clicks", "--available-now")
    assert (said.exit_code, "landing does not exist" in said.err) == (2, True)
