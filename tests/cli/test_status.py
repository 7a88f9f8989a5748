"""`penstock status`: the first line says what needs a person; and which table the verbs mean."""

from pathlib import Path

import pytest
from tests.cli.conftest import Call, Said
from tests.cli.scene import Scene

from penstock.ledger.records import Failure

USAGE = 2


def verdict(said: Said) -> str:
    assert (said.exit_code, said.err) == (0, "")
    return said.out.splitlines()[0]


def test_a_new_state_is_well(penstock: Call, scene: Scene) -> None:
    said = penstock("status")
    assert verdict(said) == "all well"
    assert "(no version yet)" in said.out
    assert "none running" in said.out
    document = penstock("status", "--json").document
    assert (document["verdict"], document["troubles"], document["table_version"]) == ("all well", [], None)
    assert set(document["objects"].values()) == {0}


def test_what_is_committed_and_not_published_is_told_until_it_is(penstock: Call, scene: Scene) -> None:
    scene.process("a", "b")
    assert verdict(penstock("status")) == "batches committed and not yet published: 1"
    assert penstock("status", "--json").document["batches_unpublished"] == 1
    scene.publish()
    said = penstock("status")
    assert verdict(said) == "all well"
    assert "2 processed" in said.out
    assert penstock("status", "--json").document["table_version"] is not None


def test_the_dead_are_told(penstock: Call, scene: Scene) -> None:
    scene.fail("a", Failure.DEAD, "bad")
    scene.bury(b"?", "no JSON")
    assert verdict(penstock("status")) == "dead objects: 1; dead letters: 1"
    assert penstock("status", "--json").document["troubles"] == ["dead objects: 1", "dead letters: 1"]


def test_what_waits_is_a_trouble_only_where_nobody_works(penstock: Call, scene: Scene) -> None:
    scene.send("a", "b")
    assert verdict(penstock("status")) == "messages waiting with no worker running: 2"
    scene.fail("a", Failure.RETRY, "once more")
    assert verdict(penstock("status")) == "objects waiting with no worker running: 1"
    with scene.worker() as worker:
        said = penstock("status")
        assert verdict(said) == "at work"
        assert worker in said.out
        document = penstock("status", "--json").document
    assert document["workers"] == [worker]
    assert document["messages"]["visible"] == 2
    assert document["messages"]["oldest_visible_age_seconds"] >= 0


@pytest.mark.parametrize(
    "verb", [("status",), ("objects", "list"), ("objects", "show", "x"), ("batches", "list"), ("dead", "list"), ("gc",)]
)
def test_every_verb_asks_which_table_where_there_are_two(penstock: Call, scene: Scene, verb: tuple[str, ...]) -> None:
    (Path.cwd() / "orders" / "_penstock").mkdir(parents=True)
    said = penstock(*verb)
    assert (said.exit_code, said.out) == (USAGE, "")
    assert "--table" in said.err
    assert "clicks, orders" in said.err
    said = penstock(*verb, "--table", "orders")
    assert (said.exit_code, said.out) == (USAGE, "")
    assert "no Penstock state" in said.err


def test_the_table_of_the_current_folder_goes_without_saying(
    penstock: Call, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(scene.where.table)
    assert penstock("status", "--json").document["table"] == str(scene.where.table)


def test_looking_at_nothing_makes_nothing(penstock: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments in (
        ("status",),
        ("status", "--table", "t"),
        ("gc", "--table", "t"),
        ("dead", "list", "--state", "s"),
    ):
        assert penstock(*arguments).exit_code == USAGE
    assert list(tmp_path.iterdir()) == []
