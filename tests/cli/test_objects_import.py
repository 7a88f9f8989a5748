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
    """Write a list of three objects."""
    return write_list(scene, "a", "b", "c")


def write_list(scene: Scene, *names: str) -> Path:
    lines = []
    for name in names:
        ref = scene.ref(name)
        lines.append(json.dumps({"uri": ref.uri, "size": ref.size_bytes, "etag": ref.etag}) + "\n")
    file = scene.source.parent / "done.jsonl"
    file.write_text("".join(lines), encoding="utf-8")
    return file


def test_imported_objects_are_processed_and_only_their_identity_is_known(
    penstock: Call, scene: Scene, done: Path
) -> None:
    result = penstock("objects", "import", "--processed", done, "--table", scene.table, "--dry-run")
    assert "3 objects listed: 3 would be imported as processed, 0 known already" in result.out
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
    result = penstock("objects", "show", scene.ref("a").uri)
    assert "processed, imported from done.jsonl: nothing more is known about it" in result.out
    assert "archived" not in result.out
    assert "Of 3 imported objects only the identity is known" in penstock("objects", "list", "--archived").err


def test_importing_again_adds_nothing(penstock: Call, scene: Scene, done: Path) -> None:
    penstock("objects", "import", "--processed", done, "--table", scene.table)
    document = penstock("objects", "import", "--processed", done, "--table", scene.table, "--json").document
    assert (document["new"], document["known"]) == (0, 3)


def test_an_invalid_line_stops_the_whole_import(penstock: Call, scene: Scene, done: Path) -> None:
    with done.open("a", encoding="utf-8") as file:
        file.write('{"uri": "s3://b/k"}\nnonsense\x1b\n')
    result = penstock("objects", "import", "--processed", done, "--table", scene.table)
    assert result.exit_code == 2
    assert "done.jsonl, line 4 needs version_id, or etag and size" in result.err
    assert "done.jsonl, line 5 is not JSON" in result.err
    assert "2 entries that name no object; nothing was imported" in result.err
    assert "\x1b" not in result.err
    assert penstock("status", "--json").document["objects"]["processed"] == 0


def test_one_invalid_line_is_reported_in_the_singular(penstock: Call, scene: Scene, done: Path) -> None:
    done.write_text("nonsense\n", encoding="utf-8")
    result = penstock("objects", "import", "--processed", done, "--table", scene.table)
    assert "1 entry that names no object; nothing was imported: correct it first." in result.err


def test_an_import_replaces_waiting_and_failed_objects_and_keeps_processed_ones(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.fail("b", AttemptFailure.RETRY, "not now")
    scene.fail("c", AttemptFailure.DEAD, "bad")
    result = penstock("objects", "import", "--processed", write_list(scene, "a", "b", "c", "d"), "--table", scene.table)
    assert "3 imported as processed (1 dead, 1 unprocessed before), 1 known already" in result.out
    assert penstock("dead", "list", "--json").document == []


def test_an_import_for_a_missing_table_creates_its_data_directory(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "done.csv").write_text("uri,version_id\ns3://landing/a,v-1\n", encoding="utf-8")
    document = penstock("objects", "import", "--processed", "done.csv", "--table", "clicks", "--json").document
    assert document["new"] == 1
    assert penstock("objects", "show", "s3://landing/a", "--json").document[0]["state"] == "processed"


def test_an_import_for_a_pipeline_of_an_app_names_unknown_pipelines(
    penstock: Call, app_scene: Scene, shop: str
) -> None:
    done = write_list(app_scene, "a")
    assert penstock("objects", "import", "--processed", done, shop, "clicks", "--json").document["new"] == 1
    result = penstock("objects", "import", "--processed", done, shop, "click")
    assert result.exit_code == 2
    assert "no pipeline or object handler click; it has clicks, views" in result.err


def test_missing_arguments_and_files_are_usage_errors(penstock: Call, scene: Scene, done: Path) -> None:
    assert penstock("objects", "import", "--table", scene.table).exit_code == 2
    assert "APP PIPELINE" in penstock("objects", "import", "--processed", done).err
    result = penstock("objects", "import", "--processed", "not-there.csv", "--table", scene.table)
    assert (result.exit_code, "not-there.csv cannot be read" in result.err) == (2, True)


@pytest.fixture
def landing(moto: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Create a bucket with versioning options, on a local server."""
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    s3 = moto.client("s3")
    s3.create_bucket(Bucket="landing")
    return s3


def current_versions(scene: Scene) -> Path:
    """Write an inventory without version ids; return its manifest."""
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
        result = penstock("objects", "import", "--processed", file, "--table", scene.table, "--dry-run")
        assert (result.exit_code, "1 object listed" in result.out) == (0, True), result.err
    landing.put_bucket_versioning(Bucket="landing", VersioningConfiguration={"Status": "Enabled"})
    for file in lists:
        result = penstock("objects", "import", "--processed", file, "--table", scene.table)
        assert result.exit_code == 78
        assert "has no version ids, and the bucket landing may keep versions (versioning: Enabled)" in result.err
        assert penstock("objects", "show", "s3://landing/b").exit_code == 2, "something was imported"
    listed.write_text(json.dumps({**entry, "version_id": "null"}), encoding="utf-8")  # from before versions were kept
    assert penstock("objects", "import", "--processed", listed, "--table", scene.table, "--json").document["new"] == 1


def test_an_s3_inventory_is_imported_without_delete_markers(penstock: Call, scene: Scene) -> None:
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
    result = penstock("objects", "import", "--processed", folder / "manifest.json", "--table", scene.table, "--json")
    assert result.document["new"] == 2
    assert penstock("objects", "show", "s3://landing/a+b c").exit_code == 0
    assert penstock("objects", "show", "s3://landing/versioned").exit_code == 0
