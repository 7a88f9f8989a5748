"""`penstock reconcile` and the scheduled reconcile of object handlers: the source against the ledger, without Spark."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.process import Process, Start

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.ledger import Ledger
from penstock.ledger.records import ObjectState
from penstock.objects.reference import ObjectRef
from penstock.pipeline.reconcile.alone import FOLDERS_MAX, ExistingObject, LeftOut, MissingAlone, ReconcileScope

FOUND, STOPPED = 3, 75
SRC = Path(__file__).parents[2] / "src"
SHOP = """
from penstock import App, Reject

app = App.from_config()

@app.object_handler("landed", source="landing", name="parse")
def parse(incoming):
    if b"bad" in incoming.read():
        raise Reject("bad")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PENSTOCK_OBJECTS_RECONCILE_OLDER_THAN", "0")
    name = f"shop_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(SHOP)
    (tmp_path / "landing" / "2026").mkdir(parents=True)
    for path in ("a", "2026/b", "2026/c", ".hidden"):
        (tmp_path / "landing" / path).write_text(path)
    return f"{name}:app"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[Process] = []

    def started(*arguments: object) -> Process:
        processes.append(Process(tmp_path, *arguments))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()


def messages() -> int:
    with closing(SqliteBroker(Path(".penstock/queue.db"), holder="test")) as broker:
        return broker.stats("landed").messages


def test_objects_without_notification_are_found_and_enqueued(penstock: Call, shop: str) -> None:
    result = penstock("reconcile", shop, "parse", "--dry-run", "--json")
    assert result.exit_code == FOUND, result.err
    report = json.loads(result.out)
    assert (report["listed"], report["missing"], report["sent"], report["stopped"]) == (3, 3, 0, False)
    assert [(prefix["uri"].rpartition("/landing/")[2], prefix["missing"]) for prefix in report["prefixes"]] == [
        ("2026/", 2),
        ("", 1),
    ]
    result = penstock("reconcile", shop, "parse", "--limit", "2")
    assert result.exit_code == FOUND
    assert "enqueued 2 of them in landed" in result.out
    assert messages() == 2
    assert "missing" in penstock("status").out
    result = penstock("reconcile", shop, "parse")
    assert result.exit_code == 0, result.err
    assert messages() == 5, "objects that still wait are enqueued once more, which does no harm"


def test_processed_failed_and_young_objects_are_not_missing(
    penstock: Call, shop: str, start: Start, tmp_path: Path
) -> None:
    (tmp_path / "landing" / "bad").write_text("bad")
    assert penstock("reconcile", shop, "parse").exit_code == 0
    worker = start("worker", shop)
    worker.expect("object.finished", times=3)
    worker.expect("object.failed")
    worker.signal(signal.SIGTERM)
    worker.exit_code()
    with closing(Ledger.open(f"sqlite:///{tmp_path}/.penstock/ledger.db")) as ledger:
        assert ledger.counts("parse")[ObjectState.PROCESSED] == 3
        assert ledger.counts("parse")[ObjectState.DEAD] == 1
    (tmp_path / "landing" / "new").write_text("new")
    result = penstock("reconcile", shop, "parse", "--older-than", "1h", "--json")
    report = result.document
    assert (report["listed"], report["missing"], report["left_out"]) == (5, 0, {"young": 1})
    (tmp_path / "landing" / "a").write_text("changed: another version")
    report = penstock("reconcile", shop, "parse", "--json").document
    assert (report["missing"], report["sent"]) == (2, 2)


def missing(penstock: Call, shop: str) -> int:
    """Return the number that `status` and the monitor show."""
    (shown,) = penstock("status", "--json").document["pipelines"]
    (measured,) = penstock("admin", "monitor", shop, "--once", "--json").document["pipelines"]
    assert shown["objects_missing"] == measured["missing"]
    return int(measured["missing"])


def test_status_and_the_monitor_report_missing_objects_until_they_are_processed(
    penstock: Call, shop: str, start: Start
) -> None:
    assert penstock("reconcile", shop, "parse", "--limit", "2").exit_code == FOUND
    assert missing(penstock, shop) == 3, "messages wait"
    worker = start("worker", shop)
    worker.expect("object.finished", times=2)
    worker.signal(signal.SIGTERM)
    worker.exit_code()
    assert missing(penstock, shop) == 1, "the one over the limit"
    assert "objects never processed, found by the latest reconcile: 1" in penstock("status").out
    assert penstock("reconcile", shop, "parse").exit_code == 0
    worker = start("worker", shop)
    worker.expect("object.finished")
    worker.signal(signal.SIGTERM)
    worker.exit_code()
    assert "found by the latest reconcile" not in penstock("status").out
    assert missing(penstock, shop) == 0


def test_reconcile_needs_no_package_of_spark(penstock: Call, shop: str, tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['pyspark', 'py4j', 'pyarrow', 'deltalake', 'numpy']))\n"
        "sys.argv[0] = 'penstock'; from penstock.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "reconcile", shop, "parse", "--json"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{SRC}:{tmp_path}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sent"] == 3


def test_a_worker_reconciles_its_object_handlers_on_schedule(
    penstock: Call, shop: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = start("worker", shop, "--reconcile-every", "60s")
    worker.expect("objects.missing")
    worker.expect("reconcile.finished")
    worker.expect("object.finished", times=3)
    worker.signal(signal.SIGTERM)
    worker.exit_code()
    assert penstock("reconcile", shop, "parse", "--json").document["missing"] == 0


def test_memory_is_bounded_if_every_object_has_its_own_folder() -> None:
    found = MissingAlone(ReconcileScope(bucket="b", below="in/", before=1e12))
    with closing(found):
        for number in range(2 * FOLDERS_MAX + 10):
            found.take(_listed(f"in/{number}/x"))
        for _ in range(5):
            found.take(_listed("in/many/x"))
        assert len(found._folders) <= 2 * FOLDERS_MAX
        assert found.prefixes()[0].missing == 5
        assert sum(len(chunk) for chunk in found.chunks(objects_max=1_000)) == found.count
        assert [len(chunk) for chunk in found.chunks(limit=3, objects_max=2)] == [2, 1]


def test_only_keys_that_no_notification_can_name_are_left_out() -> None:
    found = MissingAlone(ReconcileScope(bucket="b", below="", before=1e12))
    strange = ["\udc80", "a b/%2F?", "画像"]
    with closing(found):
        for key in ("http://x", "k" * 1_025, *strange):
            found.take(_listed(key))
        assert found.left_out == {LeftOut.UNNAMEABLE: 2}
        assert [ref.key for chunk in found.chunks() for ref in chunk] == strange


def _listed(key: str) -> ExistingObject:
    return ExistingObject(ObjectRef(bucket="b", key=key, size_bytes=1, version_id=None, etag="e"), 1.0)
