"""`penstock batches list` and `penstock dead list`."""

from tests.cli.conftest import Call
from tests.cli.scene import Scene


def test_no_batch_and_no_letter_say_so(penstock: Call, scene: Scene) -> None:
    for verb, sentence in (("batches", "No batch was committed yet.\n"), ("dead", "No dead letters.\n")):
        said = penstock(verb, "list")
        assert (said.exit_code, said.out, said.err) == (0, "", sentence)
        assert penstock(verb, "list", "--json").document == []


def test_batches_come_in_their_order_with_what_they_hold(penstock: Call, scene: Scene) -> None:
    scene.process("a", "b", rows=3, bad_lines=1)
    scene.process("c", rows=1)
    rows = [line.split() for line in penstock("batches", "list").out.splitlines()[1:]]
    assert [row[0] for row in rows] == ["1", "2"]
    assert rows[0][3:7] == ["2", "6", "2", "2,000"]

    first, second = penstock("batches", "list", "--json").document
    assert (first["batch"], first["objects"], first["rows"], first["lines_quarantined"]) == (1, 2, 6, 2)
    assert (second["batch"], second["objects"], second["rows"], second["bytes"]) == (2, 1, 1, 1_000)
    assert first["stage_seconds"] == {"read and write": 1.25}
    assert first["attempt_id"] != second["attempt_id"]


def test_a_limit_keeps_the_newest_batches(penstock: Call, scene: Scene) -> None:
    for name in "abc":
        scene.process(name)
    said = penstock("batches", "list", "--limit", 2, "--json")
    assert [batch["batch"] for batch in said.document] == [2, 3]
    assert "newest 2 of 3" in said.err
    assert penstock("batches", "list", "--limit", 3, "--json").err == ""


def test_a_dead_letter_has_its_reason_and_its_body(penstock: Call, scene: Scene) -> None:
    scene.bury(b'{"Records": 1}', "`Records` is no list")
    said = penstock("dead", "list")
    assert said.exit_code == 0
    first, reason, body = said.out.splitlines()
    assert "after 1 attempt" in first
    assert reason.strip() == "`Records` is no list"
    assert body.strip() == '{"Records": 1}'

    (letter,) = penstock("dead", "list", "--json").document
    assert (letter["reason"], letter["attempts"], letter["body"]) == ("`Records` is no list", 1, '{"Records": 1}')
    assert letter["queue"].endswith("-dlq")


def test_dead_letters_are_oldest_first_and_limited(penstock: Call, scene: Scene) -> None:
    for number in range(3):
        scene.bury(b"%d" % number, "bad")
    letters = penstock("dead", "list", "--limit", 2, "--json").document
    assert [letter["body"] for letter in letters] == ["0", "1"]


def test_a_hostile_body_is_printed_on_one_line_and_not_obeyed(penstock: Call, scene: Scene) -> None:
    scene.bury(b"\x1b[2J[red]\n\xff\xfe" + b"x" * 1_000_000, "\x1b]0;title\x07 [bold]\nno JSON")
    said = penstock("dead", "list")
    assert len(said.out.splitlines()) == 3
    assert len(said.out) < 1_000
    assert not {"\x1b", "\x07"} & set(said.out)
    assert "[red]" in said.out
    assert "[bold]" in said.out
    (letter,) = penstock("dead", "list", "--json").document
    assert len(letter["body"]) > 1_000_000
