"""`penstock quarantine`, and the warning that other commands show until the lines were replayed or dismissed."""

from pathlib import Path
from shutil import rmtree

import pytest
from tests.cli.conftest import Call
from tests.cli.scene import HOSTILE_NAMES, Scene

from penstock.ledger.records import AttemptFailure
from penstock.objects.notification import parse
from penstock.objects.replays import replayed_attempt

USAGE, FOUND = 2, 3
LOG = b"--- log rotated ---"


def uri(scene: Scene, name: str) -> str:
    return f"file://{scene.source}/{name}"


def test_without_bad_lines_there_is_nothing_to_list_or_do(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.send("a")  # so that there is a queue
    assert penstock("quarantine", "list").err == "No bad lines.\n"
    assert penstock("quarantine", "list", "--json").document == []
    assert penstock("quarantine", "list", "--warnings").err == "No such bad lines.\n"
    for verb in ("replay", "dismiss"):
        done = penstock("quarantine", verb, "--yes")
        assert (done.exit_code, done.out, done.err) == (0, "", "No such bad lines.\n")
        assert penstock("quarantine", verb, "--yes", "--json").document["objects"] == 0


def test_the_list_has_a_row_per_object_and_attempt(penstock: Call, scene: Scene) -> None:
    bad = scene.quarantine("b.jsonl", LOG, rows=3)
    scene.quarantine("a.jsonl", LOG, LOG, rows=98)
    header, *rows = penstock("quarantine", "list").out.splitlines()
    assert header.split()[:2] == ["object", "version"]
    assert [row.split()[0] for row in rows] == [f"{scene.source}/a.jsonl", f"{scene.source}/b.jsonl"]
    a, b = penstock("quarantine", "list", "--json").document
    assert a | {"version": ""} == {
        "table": str(scene.table),
        "pipeline": scene.where.pipeline,
        "object": uri(scene, "a.jsonl"),
        "version": "",
        "attempt_id": a["attempt_id"],
        "bad_lines": 2,
        "good_lines": 98,
        "share": 0.02,
        "warning": False,
        "first_reason": "malformed: no object",
        "state": "open",
        "replay": None,
        "replay_reason": None,
        "quarantined_at": a["quarantined_at"],
        "ended_at": None,
    }
    assert (b["attempt_id"], b["bad_lines"], b["share"], b["warning"]) == (bad, 1, 0.25, True)
    assert [one["object"] for one in penstock("quarantine", "list", "--warnings", "--json").document] == [b["object"]]
    assert [one["object"] for one in penstock("quarantine", "list", "--filter", "A.J", "--json").document] == [
        a["object"]
    ]
    assert len(penstock("quarantine", "list", "--attempt", bad, "--json").document) == 1
    assert penstock("quarantine", "list", "--only", "replayed", "--json").document == []
    limited = penstock("quarantine", "list", "--limit", "1", "--json")
    assert (len(limited.document), "more than 1" in limited.err) == (1, True)


def test_the_lines_of_an_object_are_shown_with_place_and_reason(penstock: Call, scene: Scene) -> None:
    scene.quarantine("a.jsonl", b"\x1b[2J[red]", b"\xff\xfe", b"x" * 5_000, rows=2)
    shown = penstock("quarantine", "show", "landing/a.jsonl")
    rows = [line for line in shown.out.splitlines() if "malformed: no object" in line]
    assert [row.split()[0] for row in rows] == ["20", "30", "33"]
    assert [row.split()[-1] for row in rows[:2]] == [r"\x1b[2J[red]", r"\xff\xfe"]
    assert rows[2].endswith(f"{'x' * 200}... (5,000 characters)")
    (document,) = penstock("quarantine", "show", uri(scene, "a.jsonl"), "--json").document
    assert document["bad_lines"] == 3
    assert document["shown"][0] == {
        "place": 20,
        "reason": "malformed",
        "detail": "no object",
        "line": "\x1b[2J[red]",
        "bytes": 9,
    }
    assert (len(document["shown"][2]["line"]), document["shown"][2]["bytes"]) == (4_096, 5_000)
    limited = penstock("quarantine", "show", "landing/a.jsonl", "--limit", "1")
    assert "1 of 3 bad lines; --limit shows more." in limited.err


def test_an_object_without_bad_lines_is_named(penstock: Call, scene: Scene) -> None:
    scene.process("a")
    scene.send("a")
    shown = penstock("quarantine", "show", "landing/a")
    assert shown.exit_code == USAGE
    assert f"knows no bad lines of {uri(scene, 'a')}; `penstock quarantine list` lists" in shown.err
    for verb in ("replay", "dismiss"):
        done = penstock("quarantine", verb, "landing/a", "--yes")
        assert (done.exit_code, f"knows no bad lines of {uri(scene, 'a')}." in done.err) == (USAGE, True)
        assert penstock("quarantine", verb, "", "--yes").exit_code == USAGE
        assert "Name objects or give --filter" in penstock("quarantine", verb, "x", "--filter", "y", "--yes").err


def test_many_bad_lines_are_a_warning_until_they_are_dismissed(penstock: Call, scene: Scene) -> None:
    scene.quarantine("a.jsonl", LOG, rows=3)
    scene.quarantine("b.jsonl", LOG, rows=99)
    scene.publish()
    found = penstock("status", "--check")
    assert found.exit_code == FOUND
    assert found.out.startswith("bad lines: 1 in 1 object, over 5% of their lines; `penstock quarantine list` shows")
    document = penstock("status", "--json").document
    assert (document["problem_kinds"], document["warned_objects"], document["warned_lines"]) == (["bad lines"], 1, 1)
    assert (document["pipelines"][0]["warned_objects"], document["pipelines"][0]["warned_lines"]) == (1, 1)
    shown = penstock("objects", "show", "landing/a.jsonl")
    assert "Warning: 25.0% of its lines are bad (malformed: no object); `penstock quarantine show" in shown.out
    assert [one["warning"] for one in penstock("objects", "show", "landing/a.jsonl", "--json").document] == [True]
    assert [one["warning"] for one in penstock("objects", "show", "landing/b.jsonl", "--json").document] == [False]

    assert penstock("quarantine", "dismiss").exit_code == USAGE, "there is no terminal to confirm at"
    assert penstock("quarantine", "dismiss", "--dry-run").out == "Would dismiss 2 bad lines in 2 objects.\n"
    done = penstock("quarantine", "dismiss", "landing/a.jsonl", "--yes", "--json").document
    assert (done["dismissed"], done["lines"], done["interrupted"]) == (1, 1, False)
    assert penstock("status", "--check").out.startswith("all well")
    assert "Warning" not in penstock("objects", "show", "landing/a.jsonl").out
    again = penstock("quarantine", "dismiss", "landing/a.jsonl", "--yes")
    assert (again.exit_code, "dismissed before" in again.err) == (0, True)
    (entry,) = penstock("admin", "audit", "--json").document
    assert (entry["action"], entry["messages"], entry["outcome"]) == ("dismiss lines", 1, "done")
    assert len(penstock("quarantine", "show", "landing/a.jsonl", "--json").document[0]["shown"]) == 1


def test_a_replay_is_sent_for_each_object_with_open_lines(penstock: Call, scene: Scene) -> None:
    attempts = {scene.quarantine("a.jsonl", LOG, LOG), scene.quarantine("b.jsonl", LOG, rows=99)}
    scene.send("other")  # so that there is a queue
    before = scene.bodies()
    assert penstock("quarantine", "replay").exit_code == USAGE, "there is no terminal to confirm at"
    planned = penstock("quarantine", "replay", "--dry-run", "--json").document
    assert (planned["objects"], planned["lines"], sum(planned["by_queue"].values())) == (2, 3, 2)
    assert scene.bodies() == before
    sent = penstock("quarantine", "replay", "--yes")
    assert sent.out == "Replays sent for 2 objects; run the same `penstock ingest` again, which reads the lines.\n"
    bodies = [body for body in scene.bodies() if body not in before]
    found = [ref for body in bodies for ref in parse(body, buckets_allowed=None).objects]
    assert {replayed_attempt(ref) for ref in found} == attempts
    assert [one["state"] for one in penstock("quarantine", "list", "--json").document] == ["open", "open"]
    (entry,) = penstock("admin", "audit", "--json").document
    assert (entry["action"], entry["messages"], entry["outcome"]) == ("replay lines", 2, "done")


def test_lines_that_were_replayed_are_left_alone(penstock: Call, scene: Scene) -> None:
    attempt = scene.quarantine("a.jsonl", LOG)
    scene.send("other")
    assert penstock("status", "--json").document["warned_objects"] == 1
    scene.replay("a.jsonl", attempt)
    assert penstock("status", "--json").document["warned_objects"] == 0
    assert [one["state"] for one in penstock("quarantine", "list", "--json").document] == ["replayed"]
    assert penstock("quarantine", "replay", "--yes", "--json").document["objects"] == 0
    named = penstock("quarantine", "replay", "landing/a.jsonl", "--yes")
    assert (named.exit_code, named.out) == (0, "")
    assert "1 object left alone: the lines were replayed before." in named.err
    listed = penstock("objects", "list", "--json").document
    assert {(one["object"], one["replay"]) for one in listed} == {(uri(scene, "a.jsonl"), way) for way in (False, True)}
    assert sorted(line.split()[1] for line in penstock("objects", "list").out.splitlines()[1:]) == [
        "processed",
        "processed,",
    ]


@pytest.mark.parametrize("change", ["deleted", "changed"])
def test_lines_whose_object_is_gone_stay_in_quarantine(penstock: Call, scene: Scene, change: str) -> None:
    scene.quarantine("a.jsonl", LOG)
    scene.send("other")
    path = scene.source / "a.jsonl"
    path.unlink() if change == "deleted" else path.write_bytes(b"another")
    done = penstock("quarantine", "replay", "--yes", "--json")
    assert (done.document["objects"], [one["object"] for one in done.document["missing"]]) == (
        0,
        [uri(scene, "a.jsonl")],
    )
    assert f"{uri(scene, 'a.jsonl')} cannot be read again, and its lines stay in quarantine: " in done.err
    assert len(done.err.splitlines()) == 1
    assert penstock("quarantine", "show", "landing/a.jsonl", "--json").document[0]["shown"][0]["line"] == LOG.decode()
    assert penstock("status", "--json").document["warned_objects"] == 1


def test_a_replay_that_failed_says_why_and_is_sent_again(penstock: Call, scene: Scene) -> None:
    attempt = scene.quarantine("a.jsonl", LOG)
    scene.send("other")
    scene.fail_replay("a.jsonl", attempt, AttemptFailure.DEAD, "the format places lines by _row")
    (one,) = penstock("quarantine", "list", "--json").document
    assert (one["state"], one["replay"], one["replay_reason"]) == ("open", "dead", "the format places lines by _row")
    assert "replay failed: the format places lines by _row" in penstock("quarantine", "list").out
    assert penstock("quarantine", "replay", "--yes", "--json").document["sent"] == 1


def test_the_folder_of_a_table_and_a_queue_are_known_from_the_apps_code(
    penstock: Call, app_scene: Scene, shop: str
) -> None:
    app_scene.quarantine("a.jsonl", LOG)
    app_scene.send("other")
    shown = penstock("quarantine", "show", "landing/a.jsonl", "--pipeline", "clicks")
    assert (shown.exit_code, "give --app" in shown.err) == (USAGE, True)
    replayed = penstock("quarantine", "replay", "--pipeline", "clicks", "--yes")
    assert (replayed.exit_code, "give --app" in replayed.err) == (USAGE, True)
    assert penstock("quarantine", "list", "--app", shop, "--json").document[0]["table"] == str(app_scene.table)
    assert len(penstock("quarantine", "show", "landing/a.jsonl", "--app", shop, "--json").document) == 1
    sent = penstock("quarantine", "replay", "--app", shop, "--yes")
    assert sent.out == "Replays sent for 1 object; the workers read the lines.\n"


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_hostile_names_are_shown_and_replayed(penstock: Call, scene: Scene, name: str) -> None:
    attempt = scene.quarantine(name, LOG)
    scene.send("other")
    assert all(line.isprintable() for line in penstock("quarantine", "list").out.splitlines())
    assert penstock("quarantine", "replay", "--yes", "--json").document["sent"] == 1
    found = [ref for body in scene.bodies() for ref in parse(body, buckets_allowed=None).objects]
    assert [ref.key for ref in found if replayed_attempt(ref) == attempt] == [str(scene.source / name)]


def test_lines_are_found_after_their_files_were_merged(penstock: Call, scene: Scene) -> None:
    scene.process("rows")
    attempts = [scene.quarantine(f"{number}.jsonl", b"line %d" % number) for number in range(3)]
    attempts += [scene.quarantine("twice.jsonl", b"line"), scene.quarantine("twice.jsonl", b"another line")]
    scene.publish()
    assert penstock("admin", "compact", "--json").exit_code == 0
    for attempt in attempts:  # as a vacuum does later
        rmtree(Path(str(scene.where.quarantine), "data", attempt))
    (shown,) = penstock("quarantine", "show", "landing/1.jsonl", "--json").document
    assert [line["line"] for line in shown["shown"]] == ["line 1"]
    twice = penstock("quarantine", "show", "landing/twice.jsonl")
    assert twice.exit_code == USAGE
    assert "it no longer tells them from those of other attempts" in twice.err
