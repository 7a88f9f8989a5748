"""The pages about batches and reconciles."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from html import unescape
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.cli.scene import Scene
from tests.web.clients import client_of
from tests.web.object_scene import ObjectScene, settings_in
from tests.web.test_objects import page, seen

from penstock.app.processes import PROCESSES_FOLDER, ProcessRegistry
from penstock.app.registry import RecordWriter
from penstock.app.scope import Scope, ScopeRequest, find_scope
from penstock.events import BatchClaimed, BatchProgressed, BatchWritten
from penstock.ledger.records import BatchRecord
from penstock.messaging.clock import SystemClock
from penstock.operations.status.model import PipelineStatus
from penstock.sinks.manifest import DataFile, encode
from penstock.web.batches import Visibility
from penstock.web.rendering import UNKNOWN
from penstock.worker.shutdown import StopSignal

HERE = "here-1-A"


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[ObjectScene]:
    scene = ObjectScene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
def client(scene: ObjectScene) -> Iterator[TestClient]:
    with client_of(scene.scope) as client:
        yield client


# Lists


def test_without_batches_the_page_says_how_one_is_made(client: TestClient) -> None:
    shown = page(client, "/batches")
    assert shown.count("No batch yet") == 2, "one for each pipeline"


def test_the_newest_batches_of_each_pipeline_are_listed(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a", "b")
    scene.process("c", pipeline="orders", bad_lines=2)
    shown = page(client, "/batches")
    for words in ("Pipeline clicks", "Pipeline orders", "4.1 kB"):
        assert words in shown
    assert 'href="/batch?pipeline=clicks&amp;seq=1"' in shown
    assert "Pipeline orders" not in page(client, "/batches", pipeline="clicks").split("</form>")[2]


def test_batches_are_in_pages_by_number(scene: ObjectScene, client: TestClient) -> None:
    for number in range(103):
        scene.process(f"{number}")
    shown = page(client, "/batches", pipeline="clicks")
    assert [int(seq) for seq in re.findall(r"clicks&amp;seq=(\d+)", shown)] == [*range(103, 3, -1)]
    following = re.search(r'<a href="([^"]+)" rel="next">', shown)
    assert following is not None
    last = page(client, unescape(following[1]))
    assert [int(seq) for seq in re.findall(r"clicks&amp;seq=(\d+)", last)] == [3, 2, 1]
    assert 'rel="next"' not in last
    assert "First page" in last


def test_a_retraction_and_a_replacement_are_no_ordinary_batches(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a")
    scene.process("a", version="2")
    scene.retract("a")
    shown = seen(page(client, "/batches", pipeline="clicks"))
    assert "1 retracted" in shown
    assert "Retracted objects" in page(client, "/batch", pipeline="clicks", seq=3)
    assert "Objects whose earlier rows left the table" in page(client, "/batch", pipeline="clicks", seq=2)


def test_running_attempts_have_their_worker_their_lease_and_the_page_of_spark(
    scene: ObjectScene, client: TestClient
) -> None:
    scene.process("a")
    claim = scene.claim("b", "c")
    shown = page(client, "/batches", pipeline="clicks")
    assert claim.attempt_id in shown
    assert 'href="http://spark.test:4040/jobs/"' in shown
    assert re.search(rf"worker-1 2 {UNKNOWN} \d{{4}}-.* until \d{{4}}-", seen(shown))
    assert scene.ledger.extend(claim.attempt_id, lease_seconds=-120.0)
    assert "expired 2 min ago" in seen(page(client, "/batches", pipeline="clicks"))


def test_a_running_attempt_has_the_progress_of_its_worker_on_this_host(scene: ObjectScene, client: TestClient) -> None:
    attempt_id = scene.claim("b").attempt_id
    registry = ProcessRegistry(scene.folder / PROCESSES_FOLDER)
    writer = RecordWriter(registry.record(HERE), worker=HERE, version="1", stop=StopSignal(), clock=SystemClock())
    events = (
        (
            BatchClaimed(pipeline="clicks", attempt_id=attempt_id, objects=1, bytes=9, seconds=0.1),
            "Spark has not begun",
        ),
        (BatchProgressed(pipeline="clicks", attempt_id=attempt_id, tasks_done=3, tasks=8), "3 of 8 tasks"),
        (
            BatchWritten(pipeline="clicks", attempt_id=attempt_id, rows=1, lines_quarantined=0, seconds=1.0),
            "written, to be committed",
        ),
    )
    with registry.register(HERE):
        for event, words in events:
            writer(event)
            registry.record(HERE).write_text(json.dumps(asdict(writer.record())))
            assert words in seen(page(client, "/batches", pipeline="clicks"))


def test_an_address_that_is_none_of_the_web_is_no_link(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a", record=BatchRecord(rows=1, spark_ui_url="javascript:alert(1)"))
    scene.claim("b")
    assert 'href="javascript' not in page(client, "/batches")
    shown = page(client, "/batch", pipeline="clicks", seq=1)
    assert 'href="javascript' not in shown
    assert "javascript:alert(1)" in shown, "as text"


@pytest.mark.parametrize(
    "query",
    [
        {"pipeline": "none"},
        {"before": "x"},
        {"before": "0"},
        {"before": "-1"},
        {"before": "9" * 40},
        {"before": "²"},
    ],
)
def test_bad_parameters_of_the_list_are_refused(client: TestClient, query: dict[str, str]) -> None:
    assert "This is not possible" in page(client, "/batches", status=400, **query)


# One batch


def test_a_batch_has_its_numbers_stages_files_and_objects(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a", "名前.jsonl")
    shown = page(client, "/batch", pipeline="clicks", seq=1)
    for words in ("shop:clean", "01ATTEMPT0001", "data/01ATTEMPT0001/a.parquet", "read and write", "3.0"):
        assert words in shown
    assert '<rect x="0" y="1" width="180"' in shown, "three of four seconds"
    assert '<rect x="180" y="1" width="60"' in shown
    assert "名前.jsonl" in shown
    assert "not known whether visible" in shown, "this app's code has no table"


def test_many_files_and_objects_are_cut(scene: ObjectScene, client: TestClient) -> None:
    files = [DataFile(path=f"data/{number}.parquet", size_bytes=1, rows=1, modified_at=1.0) for number in range(130)]
    scene.process(*(f"{number}" for number in range(120)), record=BatchRecord(rows=1, manifest=encode(files)))
    shown = page(client, "/batch", pipeline="clicks", seq=1)
    assert "30 more files are not shown." in shown
    assert "These are 100 of 120." in shown


def test_a_batch_without_records_of_its_stages_says_so(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a", record=BatchRecord())
    shown = page(client, "/batch", pipeline="clicks", seq=1)
    assert "The stages of this batch were not recorded." in shown
    assert "This batch has no files" in shown


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"pipeline": "clicks", "seq": "7"}, "There is no batch 7 of clicks; the last one is 0."),
        ({"pipeline": "none", "seq": "1"}, "The ledger knows no pipeline none."),
        ({"pipeline": "clicks"}, "Which batch?"),
        ({"pipeline": "clicks", "seq": "one"}, "has to be the number of a batch"),
    ],
)
def test_a_batch_that_is_none_gets_one_clear_sentence(client: TestClient, query: dict[str, str], words: str) -> None:
    assert words in page(client, "/batch", status=400, **query)


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.chdir(tmp_path)
    return Scene.at(tmp_path)


def test_the_log_of_the_table_says_since_when_a_batch_is_visible(table: Scene) -> None:
    table.read({"a": [1, 2]})
    table.publish()
    table.read({"b": [3]})
    pipeline = table.where.pipeline
    with client_of(find_scope(ScopeRequest(), here=table.table.parent)) as client:
        first = page(client, "/batch", pipeline=pipeline, seq=1)
        assert "since version" not in first, "it is read on demand"
        assert 'hx-trigger="load"' in first
        whole = page(client, "/batch", pipeline=pipeline, seq=1, tables=1)
        assert re.search(r"visible in the table since version \d+ · published", seen(whole)), seen(whole)
        assert "after the commit" in whole
        assert 'hx-trigger="load"' not in whole, "or it would load for ever"
        second = page(client, "/batch", pipeline=pipeline, seq=2, tables=1)
        assert "committed, not yet visible" in second
        assert "1 batch is committed and not yet visible" in page(client, "/batches")


def test_a_batch_is_visible_once_a_reading_that_is_later_counts_it_as_published() -> None:
    status = PipelineStatus(
        pipeline="clicks",
        objects={},
        objects_overdue=0,
        oldest_unprocessed_age_seconds=None,
        batches_committed=7,
        reconciled=None,
        objects_replaced=0,
        batches_unpublished=2,
        table="/lake/clicks",
        table_version=1,
        disagreement=None,
    )
    known = Visibility(status=status, read_at=1_000.0)
    assert [known.of(seq, 900.0) for seq in (5, 6, 7)] == [True, False, False]
    assert known.of(5, 990.0) is None, "the reading may have counted before"
    assert Visibility(status=None, read_at=1_000.0).of(5, 900.0) is None
    assert Visibility(status=replace(status, batches_unpublished=None), read_at=1_000.0).of(5, 900.0) is None


# Reconciles


def test_each_pipeline_has_its_latest_reconcile_and_the_command(scene: ObjectScene, client: TestClient) -> None:
    scene.reconciled(missing=3, sent=2)
    shown = page(client, "/reconcile")
    assert "clicks 2023-11-14 22:13:20Z 1,234 3 2 1 12 s s3://landing/" in seen(shown)
    assert "orders never" in seen(shown)
    assert "penstock reconcile --app shop:app clicks" in shown
    assert "It is not run automatically." in shown


def test_the_command_for_a_table_names_its_source(table: Scene) -> None:
    table.read({"a": [1]})
    with client_of(find_scope(ScopeRequest(), here=table.table.parent)) as client:
        shown = page(client, "/reconcile")
    assert f"penstock reconcile --table {table.table} --source SOURCE" in shown
    assert "The messages wait for the next ingest of that source." in shown


def test_without_a_pipeline_the_pages_say_so(tmp_path: Path) -> None:

    with client_of(Scope(settings=settings_in(tmp_path))) as client:
        for path in ("/batches", "/reconcile"):
            assert "No pipeline yet" in page(client, path)
        assert "The ledger has no pipeline yet" in page(client, "/object", address="x")
        assert "No such objects" in page(client, "/objects")


def test_the_pages_are_there_in_japanese(scene: ObjectScene, client: TestClient) -> None:
    scene.process("a")
    scene.reconciled(missing=1, sent=0)
    client.headers["accept-language"] = "ja"
    assert "コミット済みのバッチ" in page(client, "/batches")
    assert "実行の段階" in page(client, "/batch", pipeline="clicks", seq=1)
    assert "各パイプラインの最新の照合" in page(client, "/reconcile")
