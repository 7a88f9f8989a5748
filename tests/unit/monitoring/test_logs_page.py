"""docs/logs.md says what the table says, and its queries find what they promise."""

import io
import os
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from penstock import events
from penstock.events import Event
from penstock.monitoring.errors import ErrorContext
from penstock.monitoring.logs import configure_logs
from penstock.monitoring.plans import LogSettings
from penstock.monitoring.rows import Row, rows_of
from penstock.monitoring.table import ROWS
from penstock.testing import FakeClock

PAGE = (Path(__file__).parents[3] / "docs" / "logs.md").read_text(encoding="utf-8")
COMMON = {"ts", "level", "event", "msg", "service", "version", "environment", "worker", "pid", "trace_id", "span_id"}


def table_in_code() -> dict[str, tuple[set[str], set[str]]]:
    rows: dict[str, list[Row]] = defaultdict(list)
    for entry in ROWS.values():
        for row in rows_of(entry):
            rows[row.name].append(row)
    return {
        name: (
            {row.level for row in same},
            {field for row in same for field in row.fields} | ({"message_id"} if same[0].each else set()),
        )
        for name, same in rows.items()
    }


def test_the_page_has_every_event_with_its_levels_and_fields() -> None:
    found = re.findall(r"^\| `([a-z_]+\.[a-z_]+)` \| ([a-z, ]+) \| ((?:`[a-z_.]+` ?)+) \| (.+) \|$", PAGE, re.MULTILINE)
    on_page = {name: (set(levels.split(", ")), set(re.findall(r"`(.+?)`", names))) for name, levels, names, _ in found}
    assert len(found) == len(on_page)
    assert on_page == table_in_code()


def test_the_page_has_every_field_that_lines_share() -> None:
    section = PAGE.split("## Fields")[1].split("## Messages")[0]
    assert {name for name in COMMON if f"`{name}`" not in section} == set()


@pytest.mark.parametrize("field", [field.name for field in fields(ErrorContext)])
def test_the_page_has_every_field_of_the_hooks_context(field: str) -> None:
    assert f"`{field}`" in PAGE.split("## The error hook")[1]


def test_the_settings_on_the_page_are_settings() -> None:
    example = re.search(r"```python\n(LogSettings\(.+?\n\))\n```", PAGE, re.DOTALL)
    assert example is not None
    chosen = eval(example[1], {"LogSettings": LogSettings})
    assert configure_logs(chosen, io.StringIO()).dropped == 0


# The queries, on a small history


def answer(tmp_path: Path, heading: str, history: list[Event], **replaced: str) -> list[str]:
    """What the query below this sentence prints."""
    with (tmp_path / "worker.log").open("w", encoding="utf-8") as stream:
        stream.write("a line of another program\n")
        clock = FakeClock()
        log = configure_logs(LogSettings(worker="w1", level="debug"), stream, clock=clock)
        for fact in history:
            log(fact)
            clock.advance(1)
    return asked(tmp_path, heading, **replaced)


def asked(tmp_path: Path, heading: str, **replaced: str) -> list[str]:
    """The same of the log that is there."""
    if shutil.which("jq") is None:
        assert os.environ.get("CI") != "true", "jq is missing, and CI has to run the queries"
        pytest.skip("jq is missing: apt-get install jq")
    query = PAGE.split(heading)[1].split("```sh\n")[1].split("```")[0]
    for old, new in replaced.items():
        query = re.sub(rf"(--arg \w+) {old}\b", rf"\1 {new}", query)
    ran = subprocess.run(["bash", "-c", query], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


def message(message_id: str, attempt: int = 1) -> dict[str, Any]:
    return {"queue": "q", "handler": "h", "message_id": message_id, "attempt": attempt, "enqueued_at": 1.0}


def given_back(message_id: str) -> Event:
    return events.MessageGivenBack(queue="q", handler="h", message_id=message_id, attempt=1)


def finished(message_id: str, attempt: int = 1) -> Event:
    return events.MessageFinished(**message(message_id, attempt), duration_seconds=1.0)


def started(uri: str, attempt_id: str, attempt: int = 1) -> Event:
    return events.ObjectStarted(pipeline="p", object_uri=uri, attempt_id=attempt_id, attempt=attempt)


def processed(uri: str, attempt_id: str) -> Event:
    return events.ObjectFinished(pipeline="p", object_uri=uri, attempt_id=attempt_id, rows=1, lines_quarantined=0)


def skipped(uri: str, reason: str = "already_processed") -> Event:
    return events.ObjectSkipped(pipeline="p", object_uri=uri, reason=reason)


def left(uri: str, outcome: str, attempt_id: str = "a") -> Event:
    return events.ObjectFailed(pipeline="p", object_uri=uri, attempt_id=attempt_id, outcome=outcome, reason="r")


def test_what_happened_to_a_message(tmp_path: Path) -> None:
    history = [
        events.MessagesReceived(queue="q", message_ids=("m1", "m2"), redelivered=0),
        events.MessageStarted(**message("m1")),
        events.LeasesExtended(queue="q", message_ids=("m1", "m2")),
        finished("m2"),
        finished("m1"),
    ]
    lines = answer(tmp_path, "What happened to message X", history, X="m1")
    names = [re.findall(r'"event":"(.+?)"', line)[0] for line in lines]
    assert names == ["message.received", "message.started", "lease.extended", "message.finished"]
    log = tmp_path / "worker.log"
    log.write_text("".join(reversed(log.read_text().splitlines(keepends=True))))  # files of several hosts, say
    assert asked(tmp_path, "What happened to message X", X="m1") == lines


def test_what_failed(tmp_path: Path) -> None:
    history = [finished("m1"), left("a", "dead"), left("b", "retry"), left("c", "gone")]
    assert len(answer(tmp_path, "What failed for good", history)) == 1
    fault = events.WorkerFailed(error_type="ConfigurationError", error="it refuses us", traceback="")
    (failed,) = answer(tmp_path, "What failed for good", [fault])
    assert '"event":"worker.failed"' in failed
    assert answer(tmp_path, "Which objects failed", history) == ["a"]


def test_what_a_shutdown_interrupted(tmp_path: Path) -> None:
    history = [finished("m1"), given_back("m1"), given_back("m2"), finished("m3"), finished("m1", attempt=2)]
    interrupted = answer(tmp_path, "What a shutdown interrupted", history)
    assert len(interrupted) == 2
    assert '"message_id":"m1"' in interrupted[0]
    assert '"attempt":2' in interrupted[0]
    assert '"finished_by":null' in interrupted[1]


def test_what_was_wrongly_marked_as_processed(tmp_path: Path) -> None:
    history = [skipped("a"), processed("b", "x"), skipped("b"), skipped("c", "in_progress")]
    wrong = answer(tmp_path, "Wrongly marked as processed", history)
    assert len(wrong) == 1
    assert '"object":"a"' in wrong[0]


def test_what_finished(tmp_path: Path) -> None:
    found = answer(tmp_path, "Finished, but wrong?", [processed("a", "x"), processed("b", "y")], O="b")
    assert len(found) == 1
    assert '"attempt_id":"y"' in found[0]


def test_what_died_suddenly(tmp_path: Path) -> None:
    history = [
        started("done", "1"),
        processed("done", "1"),
        started("resumed", "2"),
        started("resumed", "3", attempt=2),
        processed("resumed", "3"),
        started("lost", "4"),
        processed("other", "4"),
        started("back", "5"),
        events.ObjectGivenBack(pipeline="p", object_uri="back", attempt_id="5", reason="a stop"),
    ]
    died = answer(tmp_path, "Sudden death", history)
    assert len(died) == 1
    assert '"object":"lost"' in died[0]
