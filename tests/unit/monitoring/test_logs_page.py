"""docs/fix/logs.md says what the table says, and its queries find what they promise."""

import ast
import io
import json
import os
import re
import shutil
import subprocess
from collections import defaultdict
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from penstock import events
from penstock.app.telemetry import Process
from penstock.events import Event
from penstock.messaging.settlement import Ack, DeadLetter
from penstock.monitoring.errors.hook import ErrorContext
from penstock.monitoring.logs.listener import configure_logs
from penstock.monitoring.logs.plans import ROWS, LogSettings
from penstock.monitoring.logs.rows import LogRow, rows_of
from penstock.testing import FakeClock

DOCS = Path(__file__).parents[3] / "docs"
SOURCES = Path(events.__file__).parents[1]
PAGE = (DOCS / "fix" / "logs.md").read_text(encoding="utf-8")
ERRORS = (DOCS / "run" / "errors.md").read_text(encoding="utf-8")
COMMON = {"ts", "level", "event", "msg", "service", "version", "environment", "worker", "pid", "trace_id", "span_id"}


def table_in_code() -> dict[str, tuple[set[str], set[str]]]:
    rows: dict[str, list[LogRow]] = defaultdict(list)
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


def test_every_event_of_the_page_is_told_by_something() -> None:
    assert {kind.__name__ for kind in ROWS} - told_in_code() == set()


def told_in_code() -> set[str]:
    """Names that something outside of the events' own package calls, or hands on to be called."""
    told: set[str] = set()
    for file in SOURCES.rglob("*.py"):
        if file.relative_to(SOURCES).parts[0] in ("events", "cli"):
            continue  # they define and hear events
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) not in ("isinstance", "issubclass"):
                handed = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
                told |= {name.id for name in handed if isinstance(name, ast.Name)}
    return told


def test_the_page_has_every_field_that_lines_share() -> None:
    section = PAGE.split("## Fields")[1].split("## Messages")[0]
    assert {name for name in COMMON if f"`{name}`" not in section} == set()


@pytest.mark.parametrize("field", [field.name for field in fields(ErrorContext)])
def test_the_page_has_every_field_of_the_hooks_context(field: str) -> None:
    assert f"`{field}`" in ERRORS.split("## What is reported")[1].split("## ")[0]


@pytest.mark.parametrize("kind", get_args(Process))
def test_the_page_has_every_kind_of_process(kind: str) -> None:
    (row,) = [line for line in ERRORS.splitlines() if line.startswith("| `process` |")]
    assert f"`{kind}`" in row


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
    return events.MessageInterrupted(queue="q", handler="h", message_id=message_id, attempt=1, duration_seconds=0.5)


def finished(message_id: str, attempt: int = 1) -> Event:
    return events.MessageFinished(**message(message_id, attempt), duration_seconds=1.0)


def started(uri: str, attempt_id: str, attempt: int = 1) -> Event:
    return events.ObjectStarted(pipeline="p", object_uri=uri, attempt_id=attempt_id, attempt=attempt)


def processed(uri: str, attempt_id: str) -> Event:
    return events.ObjectFinished(pipeline="p", object_uri=uri, attempt_id=attempt_id, rows=1, lines_quarantined=0)


def object_back(uri: str, attempt_id: str) -> Event:
    return events.ObjectInterrupted(pipeline="p", object_uri=uri, attempt_id=attempt_id, reason="a stop")


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


def test_which_objects_a_shutdown_interrupted(tmp_path: Path) -> None:
    history = [object_back("o", "1"), object_back("left", "2"), processed("o", "3"), processed("o", "4")]
    first, second = map(json.loads, answer(tmp_path, "What a shutdown interrupted", history))
    assert (first["object"], first["finished_by"]["attempt_id"]) == ("o", "3")
    assert (second["object"], second["finished_by"]) == ("left", None)


def test_what_was_wrongly_marked_as_processed(tmp_path: Path) -> None:
    history = [
        skipped("a"),
        processed("a", "late"),
        processed("b", "x"),
        skipped("b"),
        skipped("c", "in_progress"),
        events.ObjectSkipped(pipeline="another", object_uri="b", reason="already_processed"),
    ]
    wrong = [json.loads(line) for line in answer(tmp_path, "Wrongly marked as processed: skipped as", history)]
    assert [(one["pipeline"], one["object"]) for one in wrong] == [("p", "a"), ("another", "b")]


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
        object_back("back", "5"),
        events.ObjectStarted(pipeline="another", object_uri="lost", attempt_id="6", attempt=1),
        events.ObjectFinished(pipeline="another", object_uri="lost", attempt_id="6", rows=1, lines_quarantined=0),
    ]
    died = answer(tmp_path, "Sudden death without another attempt: an `object", history)
    assert len(died) == 1
    assert '"object":"lost"' in died[0]


def test_messages_that_died_with_their_worker(tmp_path: Path) -> None:
    def begun(message_id: str, attempt: int = 1) -> Event:
        return events.MessageStarted(**message(message_id, attempt))

    where: dict[str, Any] = {"queue": "q", "attempt": 2}
    history = [
        *(begun("fine"), finished("fine")),
        *(begun("lost"), events.MessagesReceived(queue="q", message_ids=("lost",), redelivered=0)),
        *(begun("again"), begun("again", 2), finished("again", 2)),
        *(begun("back"), given_back("back")),
        *(begun("done"), events.DeliverySettled(**where, message_id="done", settlement=Ack())),
        *(begun("grave"), events.DeliverySettled(**where, message_id="grave", settlement=DeadLetter(reason="no"))),
    ]
    died = answer(tmp_path, "The same for messages: a `message.started`", history)
    assert [json.loads(line)["message_id"] for line in died] == ["lost"]


# The same for tools that are not at hand: what they name has to be there


FIELDS = COMMON | {field for _, fields in table_in_code().values() for field in fields}
INSIGHTS_WORDS = {
    *("fields", "filter", "stats", "sort", "by", "as", "and", "or", "in", "asc", "desc"),
    *("count", "earliest", "latest", "min", "max", "sum", "coalesce", "strcontains"),
}
LOGQL_WORDS = {"json", "sum", "by", "count_over_time", "unless", "and", "h"}


def queries(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.+?)```", PAGE, re.DOTALL)
    assert len(found) >= 6, "the diagnoses, and what failed for good"
    return found


def events_named(query: str) -> set[str]:
    """Also those in a pattern, as in object[.](finished|failed)."""
    plain = set(re.findall(r'"([a-z_]+\.[a-z_]+)"', query))
    patterns = re.findall(r'"([a-z_]+)\[\.\]\(([a-z_|]+)\)"', query)
    return plain | {f"{room}.{name}" for room, names in patterns for name in names.split("|")}


@pytest.mark.parametrize("language", ["insights", "logql", "sh"])
def test_queries_name_events_that_there_are(language: str) -> None:
    named = set().union(*map(events_named, queries(language)))
    assert {"object.skipped", "object.finished", "object.failed", "object.started"} <= named
    assert named <= set(table_in_code())


def test_insights_queries_name_fields_that_there_are() -> None:
    for query in queries("insights"):
        made = set(re.findall(r"\bas (\w+)", query))
        bare = re.sub(r'"[^"]*"', "", query)
        quoted = set(re.findall(r"`([^`]+)`", bare))
        words = set(re.findall(r"(?<![@\w.])[a-z_]+(?![\w.])", re.sub(r"`[^`]+`", "", bare)))
        assert (words | quoted) - made - INSIGHTS_WORDS <= FIELDS, query
        assert set(re.findall(r"@\w+", bare)) <= {"@timestamp"}
        assert "." not in "".join(re.sub(r"`[^`]+`", "", bare)), "a name with a dot stands in backquotes"


def test_logql_queries_name_fields_that_there_are() -> None:
    flat = {field.replace(".", "_") for field in FIELDS}
    for query in queries("logql"):
        bare = re.sub(r'"[^"]*"', "", query)
        assert set(re.findall(r"[a-z_]+", bare)) - LOGQL_WORDS <= flat, query
        assert bare.count("(") == bare.count(")")


def test_each_diagnosis_is_asked_in_each_language() -> None:
    for language in ("### jq", "### CloudWatch Logs Insights", "### Loki"):
        section = PAGE.split(language)[1].split("\n### ")[0]
        for heading in (
            "Wrongly marked as processed",
            "Which objects failed",
            "Finished, but wrong",
            "Sudden death",
            "What a",
        ):
            assert f"\n{heading}" in section, (language, heading)


OPERATIONS = """worker.started worker.draining worker.drained worker.interrupted worker.forced message.received
message.started message.finished message.failed message.retrying message.skipped message.invalid message.acked
message.released message.dead_lettered object.started object.finished object.failed object.retrying object.interrupted
object.skipped object.deleted object.superseded lease.extended heartbeat.failed lease.lost lines.quarantined
batch.claimed batch.written batch.committed batch.published dead_letter.replayed objects.missing"""


def test_the_names_that_queries_and_alerts_hang_on_are_there() -> None:
    table = table_in_code()
    assert set(OPERATIONS.split()) <= set(table)
    assert {"queue", "message_id", "attempt", "attempt_id", "object", "handler", "enqueued_at", "duration_s"} <= FIELDS
    assert {"error.type", "exception", "environment", "trace_id", "span_id"} <= FIELDS
    assert "reason" in table["worker.draining"][1]
    assert {"count", "ids"} <= table["worker.interrupted"][1]
    assert "objects" in table["message.acked"][1]
    assert "reason" in table["object.skipped"][1]
