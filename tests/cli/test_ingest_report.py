"""The report of an ingest whose batches are committed without Spark."""

from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.scene import Scene

from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.operations.ingest.pipeline import IngestPipeline


class FilesScene(Scene):
    """A scene whose objects are the files of its source."""

    def ref(self, name: str, *, version: str = "") -> ObjectRef:
        return LocalStore(self.source).describe(self.source / name)


def test_changed_files_are_reported_by_the_run_that_adds_them(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    at = Scene.at(tmp_path)
    scene = FilesScene(where=at.where, source=at.source)
    scene.source.mkdir()

    def serve(pipeline: IngestPipeline, **_: object) -> None:
        if not pipeline.state.ledger.states(scene.where.pipeline, [scene.ref("a.jsonl").object_id]):
            scene.process("a.jsonl")

    monkeypatch.setattr(IngestPipeline, "serve", serve)
    (scene.source / "a.jsonl").write_text('{"id": 1}\n')
    adding = ("ingest", "landing", "clicks", "--on-change", "add")
    assert "had changed" not in penstock(*adding).out

    (scene.source / "a.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    result = penstock(*adding)
    assert "1 file had changed: all its lines were added, and the rows of its earlier version stay." in result.out

    document = penstock(*adding, "--json").document
    assert (document["objects_skipped"], document["objects_new_versions"]) == (1, 1)
    assert "objects_changed" not in document
    result = penstock(*adding)
    assert result.out.startswith("Nothing new: the only object is in the table already. 0 rows added.")
    assert "had changed" not in result.out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--on-change", "merge"), "--on-change merge is unknown; write one of add, replace, tail, refuse."),
        (
            ("--on-change", "replace", "--no-provenance"),
            "leave out --no-provenance, or write --on-change add or refuse.",
        ),
        (("--merge-key", "id", "--order-by", "at", "--on-change", "replace"), "a merge replaces rows by their keys"),
        (("--merge-key", "id"), "--merge-key needs --order-by, which says which row of a key is the last one."),
        (("--order-by", "at"), "--order-by is for --merge-key, which names the columns that identify a row."),
        (("--merge-key", "id,", "--order-by", "at"), "--merge-key 'id,' has an empty column name"),
        (("--merge-key", "id", "--order-by", "at", "--merge-drop", "at"), "The merge drops at, by which rows of later"),
    ],
)
def test_a_rule_for_changed_files_that_cannot_hold_is_a_mistake(
    penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "landing").mkdir()
    result = penstock("ingest", "landing", "clicks", *options)
    assert result.exit_code == 2
    assert words in result.err
    assert not (tmp_path / "clicks").exists()
