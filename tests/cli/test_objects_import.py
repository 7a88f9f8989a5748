"""`penstock objects import`: objects that another system processed are adopted."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call
from tests.cli.scene import Scene
from tests.services.aws_server import AwsServer

from penstock.ledger.records import AttemptFailure


@pytest.fixture
def done(scene: Scene) -> Path:
    """A list of three objects."""
    return write(scene, "a", "b", "c")


def write(scene: Scene, *names: str) -> Path:
    lines = []
    for name in names:
        ref = scene.ref(name)
        lines.append(json.dumps({"uri": ref.uri, "size": ref.size_bytes, "etag": ref.etag}) + "\n")
    file = scene.source.parent / "done.jsonl"
    file.write_text("".join(lines), encoding="utf-8")
    return file


def test_what_is_imported_is_processed_and_nothing_more_is_known(penstock: Call, scene: Scene, done: Path) -> None:
    said = penstock("objects", "import", "--processed", done, "--table", scene.table, "--dry-run")
    assert "3 objects listed: 3 would be imported as processed, 0 known already" in said.out
    document = penstock("objects", "import", "--processed", done, "--table", scene.table, "--json").document
    assert document == {
        "pipeline": scene.where.pipeline,
        "source": "done.jsonl",
        "listed": 3,
        "new": 3,
        "known": 0,
        "busy": 0,
        "replaced": {},
        "dry_run": False,
    }
    assert penstock("status", "--json").document["objects"]["processed"] == 3
    said = penstock("objects", "show", scene.ref("a").uri)
    assert "processed, imported from done.jsonl: nothing more is known of it" in said.out
    assert "archived" not in said.out
    assert "Of 3 imported objects only the identity is known" in penstock("objects", "list", "--archived").err


def test_doing_it_again_adds_nothing(penstock: Call, scene: Scene, done: Path) -> None:
    penstock("objects", "import", "--processed", done, "--table", scene.table)
    document = penstock("objects", "import", "--processed", done, "--table", scene.table, "--json").document
    assert (document["new"], document["known"]) == (0, 3)


def test_a_line_that_names_no_object_stops_all_of_it(penstock: Call, scene: Scene, done: Path) -> None:
    with done.open("a", encoding="utf-8") as file:
        file.write('{"uri": "s3://b/k"}\nnonsense\x1b\n')
    said = penstock("objects", "import", "--processed", done, "--table", scene.table)
    assert said.exit_code == 2
    assert "done.jsonl, line 4 needs version_id, or etag and size" in said.err
    assert "done.jsonl, line 5 is not JSON" in said.err
    assert "2 entries that name no object; nothing was imported" in said.err
    assert "\x1b" not in said.err
    assert penstock("status", "--json").document["objects"]["processed"] == 0


def test_one_line_that_names_no_object_is_one(penstock: Call, scene: Scene, done: Path) -> None:
    done.write_text("nonsense\n", encoding="utf-8")
    said = penstock("objects", "import", "--processed", done, "--table", scene.table)
    assert "1 entry that names no object; nothing was imported: mend it first." in said.err


def test_what_waits_or_is_dead_is_replaced_and_what_is_done_known(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.fail("b", AttemptFailure.RETRY, "not now")
    scene.fail("c", AttemptFailure.DEAD, "bad")
    said = penstock("objects", "import", "--processed", write(scene, "a", "b", "c", "d"), "--table", scene.table)
    assert "3 imported as processed (1 dead, 1 unprocessed before), 1 known already" in said.out
    assert penstock("dead", "list", "--json").document == []


def test_a_table_that_does_not_exist_yet_gets_its_state(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "done.csv").write_text("uri,version_id\ns3://landing/a,v-1\n", encoding="utf-8")
    document = penstock("objects", "import", "--processed", "done.csv", "--table", "clicks", "--json").document
    assert document["new"] == 1
    assert penstock("objects", "show", "s3://landing/a", "--json").document[0]["state"] == "processed"


def test_a_pipeline_of_an_app(penstock: Call, app_scene: Scene, shop: str) -> None:
    done = write(app_scene, "a")
    assert penstock("objects", "import", "--processed", done, shop, "clicks", "--json").document["new"] == 1
    said = penstock("objects", "import", "--processed", done, shop, "click")
    assert said.exit_code == 2
    assert "no pipeline or object handler click; it has clicks, views" in said.err


def test_missing_packages_are_reported(penstock: Call, scene: Scene, done: Path) -> None:
    assert penstock("objects", "import", "--table", scene.table).exit_code == 2
    assert "APP PIPELINE" in penstock("objects", "import", "--processed", done).err
    said = penstock("objects", "import", "--processed", "not-there.csv", "--table", scene.table)
    assert (said.exit_code, "not-there.csv cannot be read" in said.err) == (2, True)


@pytest.fixture
def landing(moto: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A bucket that keeps versions, at a server of this machine."""
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    s3 = moto.client("s3")
    s3.create_bucket(Bucket="landing")
    return s3


def current_versions(scene: Scene) -> Path:
    """An inventory without version ids: its manifest."""
    folder = scene.table.parent / "inventory" / "2026-01-01T00-00Z"
    folder.mkdir(parents=True)
    (folder / "data.csv").write_text('"landing","a","10","2026-01-01T00:00:00.000Z","abc"\n', encoding="utf-8")
    manifest = {
        "sourceBucket": "landing",
        "destinationBucket": "arn:aws:s3:::lists",
        "version": "2016-11-30",
        "creationTimestamp": "1767225600000",
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, Size, LastModifiedDate, ETag",
        "files": [{"key": "inventory/2026-01-01T00-00Z/data.csv", "size": 1}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    return folder / "manifest.json"


def test_an_inventory_without_version_ids_needs_a_bucket_without_versions(
    penstock: Call, scene: Scene, landing: Any
) -> None:
    listed = scene.table.parent / "done.jsonl"
    entry = {"uri": "s3://landing/b", "size": 10, "etag": "abc"}
    listed.write_text(json.dumps(entry), encoding="utf-8")
    lists = (current_versions(scene), listed)
    for file in lists:
        said = penstock("objects", "import", "--processed", file, "--table", scene.table, "--dry-run")
        assert (said.exit_code, "1 object listed" in said.out) == (0, True), said.err
    landing.put_bucket_versioning(Bucket="landing", VersioningConfiguration={"Status": "Enabled"})
    for file in lists:
        said = penstock("objects", "import", "--processed", file, "--table", scene.table)
        assert said.exit_code == 78
        assert "has no version ids, and versioning is Enabled, so the bucket landing keeps versions" in said.err
        assert penstock("objects", "show", "s3://landing/b").exit_code == 2, "something was imported"
    listed.write_text(json.dumps({**entry, "version_id": "null"}), encoding="utf-8")  # from before versions were kept
    assert penstock("objects", "import", "--processed", listed, "--table", scene.table, "--json").document["new"] == 1


def test_an_inventory_of_s3(penstock: Call, scene: Scene) -> None:
    folder = scene.table.parent / "inventory" / "2026-01-01T00-00Z"
    folder.mkdir(parents=True)
    (folder / "data.csv").write_text(
        '"landing","a%2Bb+c","","true","false","10","2026-01-01T00:00:00.000Z","abc"\n'
        '"landing","gone","v-2","true","true","","2026-01-01T00:00:00.000Z",""\n'
        '"landing","versioned","v-1","true","false","7","2026-01-01T00:00:00.000Z","def"\n',
        encoding="utf-8",
    )
    manifest = {
        "sourceBucket": "landing",
        "destinationBucket": "arn:aws:s3:::lists",
        "version": "2016-11-30",
        "creationTimestamp": "1767225600000",
        "fileFormat": "CSV",
        "fileSchema": "Bucket, Key, VersionId, IsLatest, IsDeleteMarker, Size, LastModifiedDate, ETag",
        "files": [{"key": "inventory/2026-01-01T00-00Z/data.csv", "size": 1}],
    }
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    said = penstock("objects", "import", "--processed", folder / "manifest.json", "--table", scene.table, "--json")
    assert said.document["new"] == 2
    assert penstock("objects", "show", "s3://landing/a+b c").exit_code == 0
    assert penstock("objects", "show", "s3://landing/versioned").exit_code == 0
