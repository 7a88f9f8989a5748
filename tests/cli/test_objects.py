"""`penstock objects`: its list and its details, and names from outside."""

import re
from pathlib import Path

import pytest
from tests.cli.conftest import Call
from tests.cli.scene import HOSTILE_NAMES, Scene

from penstock.ledger.records import AttemptFailure, UnknownCounts

USAGE = 2


def test_an_empty_ledger_lists_no_objects(penstock: Call, scene: Scene) -> None:
    result = penstock("objects", "list")
    assert (result.exit_code, result.out, result.err) == (0, "", "No such objects.\n")
    assert penstock("objects", "list", "--json").document == []


def test_the_list_has_a_row_per_object_sorted_by_name(penstock: Call, scene: Scene) -> None:
    scene.process("b", "a", rows=3, bad_lines=1)
    scene.fail("c", AttemptFailure.DEAD, f"{scene.ref('c').uri} is a truncated gzip")
    result = penstock("objects", "list")
    rows = [line.split() for line in result.out.splitlines()[1:]]
    assert [row[0] for row in rows] == [f"{scene.source}/{name}" for name in "abc"]
    assert rows[0][1:6] == ["processed", "1", "3", "1", "1"]
    assert rows[2][1] == "dead"
    assert result.out.rstrip().endswith("Z  is a truncated gzip"), "the reason need not name the object once more"

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


@pytest.mark.parametrize(("limit", "shown", "has_notice"), [(2, 2, True), (3, 3, False), (4, 3, False)])
def test_a_limit_that_hides_objects_is_reported(
    penstock: Call, scene: Scene, limit: int, shown: int, has_notice: bool
) -> None:
    scene.process("a", "b", "c")
    result = penstock("objects", "list", "--limit", limit, "--json")
    assert len(result.document) == shown
    assert ("--limit shows more" in result.err) is has_notice


@pytest.mark.parametrize("options", [("--only", "lost"), ("--limit", "0"), ("--limit", "many")])
def test_invalid_options_are_usage_errors(penstock: Call, scene: Scene, options: tuple[str, ...]) -> None:
    result = penstock("objects", "list", *options)
    assert (result.exit_code, result.out) == (USAGE, "")
    assert options[0] in result.err


def test_show_prints_every_version_with_its_attempts(penstock: Call, scene: Scene) -> None:
    scene.fail("a", AttemptFailure.RETRY, "Permission denied")
    scene.process("a")
    scene.process("a", version="2")
    result = penstock("objects", "show", scene.ref("a").uri)
    assert result.exit_code == 0
    assert result.out.count("object ") == 2
    assert "retry" in result.out
    assert "Permission denied" in result.out

    versions = {d["version"]: d for d in penstock("objects", "show", scene.ref("a").uri, "--json").document}
    assert set(versions) == {"1-1000", "2-1000"}
    assert [attempt["outcome"] for attempt in versions["1-1000"]["timeline"]] == ["retry", "processed"]
    assert versions["1-1000"]["attempts"] == 2


def test_show_prints_fields_without_a_column(penstock: Call, scene: Scene) -> None:
    scene.process("a", unknown=UnknownCounts(fields={"x": 1_200, "s.b": 1}, others=7))
    shown = penstock("objects", "show", scene.ref("a").uri)
    assert re.search(r"unknown +x \(1,200 rows\), s\.b \(1 row\), others \(7\)", shown.out)
    (document,) = penstock("objects", "show", scene.ref("a").uri, "--json").document
    assert (document["unknown_fields"], document["unknown_others"]) == ({"x": 1_200, "s.b": 1}, 7)


def test_show_prints_columns_with_rescued_values_of_another_type(penstock: Call, scene: Scene) -> None:
    scene.process("a", unknown=UnknownCounts(wrong_type={"amount": 400}, wrong_type_others=3))
    shown = penstock("objects", "show", scene.ref("a").uri)
    assert re.search(r"wrong type +amount \(400 rows\), others \(3\)", shown.out)
    assert not re.search(r"^unknown +amount", shown.out, re.MULTILINE)
    (document,) = penstock("objects", "show", scene.ref("a").uri, "--json").document
    assert (document["wrong_type_fields"], document["wrong_type_others"]) == ({"amount": 400}, 3)
    assert (document["unknown_fields"], document["unknown_others"]) == ({}, 0)


def test_show_accepts_absolute_and_relative_paths(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    for name in (scene.source / "a", "landing/a"):
        (document,) = penstock("objects", "show", name, "--json").document
        assert document["state"] == "processed"


def test_show_of_an_unknown_object_names_the_list_command(penstock: Call, scene: Scene) -> None:
    result = penstock("objects", "show", "landing/nothing")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert f"knows no object {scene.ref('nothing').uri}" in result.err
    assert "objects list" in result.err


def test_hostile_names_are_printed_escaped(penstock: Call, scene: Scene) -> None:
    for name in HOSTILE_NAMES:
        scene.fail(name, AttemptFailure.DEAD, f"{name} is bad".encode("utf-8", "backslashreplace").decode())
    result = penstock("objects", "list")
    assert len(result.out.splitlines()) == 1 + len(HOSTILE_NAMES), "one line per object, whatever its name"
    assert not {"\x1b", "\u202e", "\x00"} & set(result.out)
    for shown in (
        "two\\nlines",
        "\\x1b[31mred\\x1b[0m",
        "[red]markup[/red]",
        "\\u202egnp",
        "emoji😀",
        "名前",
        "\\udcff",
    ):
        assert shown in result.out
    assert len(penstock("objects", "list", "--json").document) == len(HOSTILE_NAMES)


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_an_object_with_a_hostile_name_is_found_by_its_path(penstock: Call, scene: Scene, name: str) -> None:
    scene.process(name)
    result = penstock("objects", "show", f"landing/{name}")
    assert result.exit_code == 0, result.err
    assert not {"\x1b", "\u202e"} & set(result.out)


def test_long_names_are_not_wrapped_without_a_terminal(penstock: Call, scene: Scene) -> None:
    name = "/".join(["folder-with-a-long-name"] * 30)
    scene.process(name)
    assert f"{scene.source}/{name}  processed" in penstock("objects", "list").out


def test_objects_of_an_app_are_listed_with_their_pipelines(penstock: Call, app_scene: Scene, tmp_path: Path) -> None:
    app_scene.process("a")
    Scene.of_app(tmp_path, "views").fail("a", AttemptFailure.DEAD, "bad")
    header, first, second = penstock("objects", "list").out.splitlines()
    assert header.split()[:3] == ["pipeline", "object", "state"]
    assert [line.split()[0] for line in (first, second)] == ["clicks", "views"]
    assert [line.split()[2] for line in (first, second)] == ["processed", "dead"]
    assert [d["pipeline"] for d in penstock("objects", "list", "--json").document] == ["clicks", "views"]
    assert len(penstock("objects", "list", "--limit", 1, "--json").document) == 1

    result = penstock("objects", "list", "--pipeline", "views")
    assert result.out.split()[0] == "object", "one pipeline need not be named in every row"
    assert len(result.out.splitlines()) == 2


def test_show_prints_an_object_once_per_pipeline(penstock: Call, app_scene: Scene, tmp_path: Path) -> None:
    app_scene.process("a")
    Scene.of_app(tmp_path, "views").fail("a", AttemptFailure.DEAD, "bad")
    result = penstock("objects", "show", "landing/a")
    assert [line.split()[1] for line in result.out.splitlines() if line.startswith("pipeline")] == ["clicks", "views"]
    (document,) = penstock("objects", "show", "landing/a", "--pipeline", "views", "--json").document
    assert (document["pipeline"], document["state"]) == ("views", "dead")
    result = penstock("objects", "show", "landing/b", "--pipeline", "views")
    assert result.exit_code == USAGE
    assert "`penstock objects list --pipeline views` shows all" in result.err


def test_an_unknown_pipeline_is_a_usage_error(penstock: Call, app_scene: Scene) -> None:
    result = penstock("objects", "list", "--pipeline", "click")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert "knows no pipeline click; its pipelines: clicks." in result.err
