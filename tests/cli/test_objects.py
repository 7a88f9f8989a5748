"""`penstock objects`: what it lists, what it shows, and how it behaves towards names from outside."""

from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.scene import HOSTILE_NAMES, Scene

from penstock.ledger.records import AttemptFailure

USAGE = 2


def test_an_empty_ledger_says_so(penstock: Call, scene: Scene) -> None:
    said = penstock("objects", "list")
    assert (said.exit_code, said.out, said.err) == (0, "", "No such objects.\n")
    assert penstock("objects", "list", "--json").document == []


def test_the_list_has_a_row_an_object_in_the_order_of_their_names(penstock: Call, scene: Scene) -> None:
    scene.process("b", "a", rows=3, bad_lines=1)
    scene.fail("c", AttemptFailure.DEAD, f"{scene.ref('c').uri} is a truncated gzip")
    said = penstock("objects", "list")
    rows = [line.split() for line in said.out.splitlines()[1:]]
    assert [row[0] for row in rows] == [f"{scene.source}/{name}" for name in "abc"]
    assert rows[0][1:6] == ["processed", "1", "3", "1", "1"]
    assert rows[2][1] == "dead"
    assert said.out.rstrip().endswith("Z  is a truncated gzip"), "the reason need not name the object once more"

    documents = penstock("objects", "list", "--json").document
    assert [(d["object"], d["state"], d["rows"], d["lines_quarantined"], d["batch"]) for d in documents] == [
        (scene.ref("a").uri, "processed", 3, 1, 1),
        (scene.ref("b").uri, "processed", 3, 1, 1),
        (scene.ref("c").uri, "dead", None, None, None),
    ]
    assert documents[2]["reason"] == f"{scene.ref('c').uri} is a truncated gzip"


def test_the_list_is_filtered_by_state_and_by_text(penstock: Call, scene: Scene) -> None:
    scene.process("2026-01-01/a", "2026-01-02/a")
    scene.fail("2026-01-01/bad", AttemptFailure.DEAD, "bad")

    def listed(*options: str) -> list[str]:
        return [d["object"].rpartition("landing/")[2] for d in penstock("objects", "list", "--json", *options).document]

    assert listed("--only", "dead") == ["2026-01-01/bad"]
    assert listed("--filter", "01-01/") == ["2026-01-01/a", "2026-01-01/bad"]
    assert listed("--filter", "01-01/", "--only", "processed") == ["2026-01-01/a"]
    assert listed("--filter", "100%") == []
    assert listed("--older-than", "1h") == []
    assert len(listed("--older-than", "0.001s")) == 3


@pytest.mark.parametrize(("limit", "shown", "told"), [(2, 2, True), (3, 3, False), (4, 3, False)])
def test_a_limit_that_leaves_something_out_is_reported(
    penstock: Call, scene: Scene, limit: int, shown: int, told: bool
) -> None:
    scene.process("a", "b", "c")
    said = penstock("objects", "list", "--limit", limit, "--json")
    assert len(said.document) == shown
    assert ("--limit shows more" in said.err) is told


@pytest.mark.parametrize("options", [("--only", "lost"), ("--limit", "0"), ("--limit", "many")])
def test_options_that_make_no_sense(penstock: Call, scene: Scene, options: tuple[str, ...]) -> None:
    said = penstock("objects", "list", *options)
    assert (said.exit_code, said.out) == (USAGE, "")
    assert options[0] in said.err


def test_show_has_every_version_with_its_attempts(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.RETRY, "Permission denied")
    scene.process("a")
    scene.process("a", version="2")
    said = penstock("objects", "show", scene.ref("a").uri)
    assert said.exit_code == 0
    assert said.out.count("object ") == 2
    assert "retry" in said.out
    assert "Permission denied" in said.out

    versions = {d["version"]: d for d in penstock("objects", "show", scene.ref("a").uri, "--json").document}
    assert set(versions) == {"1-1000", "2-1000"}
    assert [attempt["outcome"] for attempt in versions["1-1000"]["timeline"]] == ["retry", "processed"]
    assert versions["1-1000"]["attempts"] == 2


def test_show_takes_a_path_too_also_a_relative_one(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    for name in (scene.source / "a", "landing/a"):
        (document,) = penstock("objects", "show", name, "--json").document
        assert document["state"] == "processed"


def test_show_of_an_unknown_object_says_how_to_find_one(penstock: Call, scene: Scene) -> None:
    said = penstock("objects", "show", "landing/nothing")
    assert (said.exit_code, said.out) == (USAGE, "")
    assert f"knows no object {scene.ref('nothing').uri}" in said.err
    assert "objects list" in said.err


def test_hostile_names_are_printed_and_not_obeyed(penstock: Call, scene: Scene) -> None:
    for name in HOSTILE_NAMES:
        scene.fail(name, AttemptFailure.DEAD, f"{name} is bad".encode("utf-8", "backslashreplace").decode())
    said = penstock("objects", "list")
    assert len(said.out.splitlines()) == 1 + len(HOSTILE_NAMES), "one line an object, whatever its name holds"
    assert not {"\x1b", "\u202e", "\x00"} & set(said.out)
    for shown in (
        "two\\nlines",
        "\\x1b[31mred\\x1b[0m",
        "[red]markup[/red]",
        "\\u202egnp",
        "emoji😀",
        "名前",
        "\\udcff",
    ):
        assert shown in said.out
    assert len(penstock("objects", "list", "--json").document) == len(HOSTILE_NAMES)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_an_object_of_a_hostile_name_is_found_by_the_path_on_the_disk(penstock: Call, scene: Scene, name: str) -> None:
    scene.process(name)
    said = penstock("objects", "show", f"landing/{name}")
    assert said.exit_code == 0, said.err
    assert not {"\x1b", "\u202e"} & set(said.out)


def test_long_names_are_not_folded_where_a_program_reads(penstock: Call, scene: Scene) -> None:
    name = "/".join(["folder-with-a-long-name"] * 30)
    scene.process(name)
    assert f"{scene.source}/{name}  processed" in penstock("objects", "list").out


def test_objects_of_an_app_say_whose_they_are(penstock: Call, app_scene: Scene, tmp_path: Path) -> None:
    app_scene.process("a")
    Scene.of_app(tmp_path, "views").fail("a", AttemptFailure.DEAD, "bad")
    header, first, second = penstock("objects", "list").out.splitlines()
    assert header.split()[:3] == ["pipeline", "object", "state"]
    assert [line.split()[0] for line in (first, second)] == ["clicks", "views"]
    assert [line.split()[2] for line in (first, second)] == ["processed", "dead"]
    assert [d["pipeline"] for d in penstock("objects", "list", "--json").document] == ["clicks", "views"]
    assert len(penstock("objects", "list", "--limit", 1, "--json").document) == 1

    said = penstock("objects", "list", "--pipeline", "views")
    assert said.out.split()[0] == "object", "one pipeline need not be named in every row"
    assert len(said.out.splitlines()) == 2


def test_show_has_the_object_as_each_pipeline_of_the_app_knows_it(
    penstock: Call, app_scene: Scene, tmp_path: Path
) -> None:
    app_scene.process("a")
    Scene.of_app(tmp_path, "views").fail("a", AttemptFailure.DEAD, "bad")
    said = penstock("objects", "show", "landing/a")
    assert [line.split()[1] for line in said.out.splitlines() if line.startswith("pipeline")] == ["clicks", "views"]
    (document,) = penstock("objects", "show", "landing/a", "--pipeline", "views", "--json").document
    assert (document["pipeline"], document["state"]) == ("views", "dead")
    said = penstock("objects", "show", "landing/b", "--pipeline", "views")
    assert said.exit_code == USAGE
    assert "`penstock objects list --pipeline views` shows all" in said.err


def test_a_pipeline_that_the_ledger_does_not_know(penstock: Call, app_scene: Scene) -> None:
    said = penstock("objects", "list", "--pipeline", "click")
    assert (said.exit_code, said.out) == (USAGE, "")
    assert "knows no pipeline click; its pipelines: clicks." in said.err
