"""docs/fix/logs.md agrees with the table of events in the code, and its queries find what they describe."""

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


def test_every_event_of_the_table_is_emitted_somewhere() -> None:
    assert {kind.__name__ for kind in ROWS} - events_in_code() == set()


def events_in_code() -> set[str]:
    """Return the names that code outside the package of events calls or passes to a call."""
    names: set[str] = set()
    for file in SOURCES.rglob("*.py"):
        if file.relative_to(SOURCES).parts[0] in ("events", "cli"):
            continue  # these packages define events or listen to them
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) not in ("isinstance", "issubclass"):
                called_or_passed = [node.func, *node.args, *(keyword.value for keyword in node.keywords)]
                names |= {name.id for name in called_or_passed if isinstance(name, ast.Name)}
    return names


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
    options = eval(example[1], {"LogSettings": LogSettings})
    assert configure_logs(options, io.StringIO()).dropped == 0


# Queries in jq, on a small history


def query_history(tmp_path: Path, heading: str, history: list[Event], **replaced: str) -> list[str]:
    """Log these events and return what the query below a sentence of the page prints."""
    with (tmp_path / "worker.log").open("w", encoding="utf-8") as stream:
        stream.write("a line of another program\n")
        clock = FakeClock()
        log = configure_logs(LogSettings(worker="w1", level="debug"), stream, clock=clock)
        for fact in history:
            log(fact)
            clock.advance(1)
    return run_query(tmp_path, heading, **replaced)


def run_query(tmp_path: Path, heading: str, **replaced: str) -> list[str]:
    """Return what the query below a sentence of the page prints for the existing log."""
    if shutil.which("jq") is None:
        assert os.environ.get("CI") != "true", "jq is missing, and CI has to run the queries"
        pytest.skip("jq is missing: apt-get install jq")
    query = PAGE.split(heading)[1].split("```sh\n")[1].split("```")[0]
    for old, new in replaced.items():
        query = re.sub(rf"(--arg \w+) {old}\b", rf"\1 {new}", query)
    completed = subprocess.run(
        ["bash", "-c", query], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert completed.returncode == 0, completed.stderr
    return completed.stdout.splitlines()


def message(message_id: str, attempt: int = 1) -> dict[str, Any]:
    return {"queue": "q", "handler": "h", "message_id": message_id, "attempt": attempt, "enqueued_at": 1.0}


def message_interrupted(message_id: str) -> Event:
    return events.MessageInterrupted(queue="q", handler="h", message_id=message_id, attempt=1, duration_seconds=0.5)


def finished(message_id: str, attempt: int = 1) -> Event:
    return events.MessageFinished(**message(message_id, attempt), duration_seconds=1.0)


def started(uri: str, attempt_id: str, attempt: int = 1) -> Event:
    return events.ObjectStarted(pipeline="p", object_uri=uri, attempt_id=attempt_id, attempt=attempt)


def processed(uri: str, attempt_id: str) -> Event:
    return events.ObjectFinished(pipeline="p", object_uri=uri, attempt_id=attempt_id, rows=1, lines_quarantined=0)


def object_interrupted(uri: str, attempt_id: str) -> Event:
    return events.ObjectInterrupted(pipeline="p", object_uri=uri, attempt_id=attempt_id, reason="a stop")


def skipped(uri: str, reason: str = "already_processed") -> Event:
    return events.ObjectSkipped(pipeline="p", object_uri=uri, reason=reason)


def object_failed(uri: str, outcome: str, attempt_id: str = "a") -> Event:
    return events.ObjectFailed(pipeline="p", object_uri=uri, attempt_id=attempt_id, outcome=outcome, reason="r")


def test_the_query_for_one_message_finds_its_events_in_order(tmp_path: Path) -> None:
    history = [
        events.MessagesReceived(queue="q", message_ids=("m1", "m2"), redelivered=0),
        events.MessageStarted(**message("m1")),
        events.LeasesExtended(queue="q", message_ids=("m1", "m2")),
        finished("m2"),
        finished("m1"),
    ]
    lines = query_history(tmp_path, "What happened to message X", history, X="m1")
    names = [re.findall(r'"event":"(.+?)"', line)[0] for line in lines]
    assert names == ["message.received", "message.started", "lease.extended", "message.finished"]
    log = tmp_path / "worker.log"
    log.write_text("".join(reversed(log.read_text().splitlines(keepends=True))))  # as in files of several hosts
    assert run_query(tmp_path, "What happened to message X", X="m1") == lines


def test_the_queries_for_failures_find_final_failures(tmp_path: Path) -> None:
    history = [finished("m1"), object_failed("a", "dead"), object_failed("b", "retry"), object_failed("c", "gone")]
    assert len(query_history(tmp_path, "What failed for good", history)) == 1
    fault = events.WorkerFailed(error_type="ConfigurationError", error="access denied", traceback="")
    (failed,) = query_history(tmp_path, "What failed for good", [fault])
    assert '"event":"worker.failed"' in failed
    assert query_history(tmp_path, "Which objects failed", history) == ["a"]


def test_the_shutdown_query_finds_interrupted_messages_and_their_next_attempts(tmp_path: Path) -> None:
    history = [
        finished("m1"),
        message_interrupted("m1"),
        message_interrupted("m2"),
        finished("m3"),
        finished("m1", attempt=2),
    ]
    interrupted = query_history(tmp_path, "What a shutdown interrupted", history)
    assert len(interrupted) == 2
    assert '"message_id":"m1"' in interrupted[0]
    assert '"attempt":2' in interrupted[0]
    assert '"finished_by":null' in interrupted[1]


def test_the_shutdown_query_finds_interrupted_objects_and_their_next_attempts(tmp_path: Path) -> None:
    history = [object_interrupted("o", "1"), object_interrupted("left", "2"), processed("o", "3"), processed("o", "4")]
    first, second = map(json.loads, query_history(tmp_path, "What a shutdown interrupted", history))
    assert (first["object"], first["finished_by"]["attempt_id"]) == ("o", "3")
    assert (second["object"], second["finished_by"]) == ("left", None)


def test_the_query_for_wrongly_processed_objects_finds_skips_without_an_earlier_success(tmp_path: Path) -> None:
    history = [
        skipped("a"),
        processed("a", "late"),
        processed("b", "x"),
        skipped("b"),
        skipped("c", "in_progress"),
        events.ObjectSkipped(pipeline="another", object_uri="b", reason="already_processed"),
    ]
    wrong = [json.loads(line) for line in query_history(tmp_path, "Wrongly marked as processed: skipped as", history)]
    assert [(one["pipeline"], one["object"]) for one in wrong] == [("p", "a"), ("another", "b")]


def test_the_query_for_finished_objects_finds_the_attempt_of_one_object(tmp_path: Path) -> None:
    found = query_history(tmp_path, "Finished, but wrong?", [processed("a", "x"), processed("b", "y")], O="b")
    assert len(found) == 1
    assert '"attempt_id":"y"' in found[0]


def test_the_query_for_sudden_deaths_finds_objects_without_an_end_or_another_attempt(tmp_path: Path) -> None:
    history = [
        started("done", "1"),
        processed("done", "1"),
        started("resumed", "2"),
        started("resumed", "3", attempt=2),
        processed("resumed", "3"),
        started("lost", "4"),
        processed("other", "4"),
        started("back", "5"),
        object_interrupted("back", "5"),
        events.ObjectStarted(pipeline="another", object_uri="lost", attempt_id="6", attempt=1),
        events.ObjectFinished(pipeline="another", object_uri="lost", attempt_id="6", rows=1, lines_quarantined=0),
    ]
    found = query_history(tmp_path, "Sudden death without another attempt: an `object", history)
    assert len(found) == 1
    assert '"object":"lost"' in found[0]


def test_the_query_for_sudden_deaths_finds_messages_without_an_end_or_another_attempt(tmp_path: Path) -> None:
    def begun(message_id: str, attempt: int = 1) -> Event:
        return events.MessageStarted(**message(message_id, attempt))

    where: dict[str, Any] = {"queue": "q", "attempt": 2}
    history = [
        *(begun("fine"), finished("fine")),
        *(begun("lost"), events.MessagesReceived(queue="q", message_ids=("lost",), redelivered=0)),
        *(begun("again"), begun("again", 2), finished("again", 2)),
        *(begun("back"), message_interrupted("back")),
        *(begun("done"), events.DeliveryAcked(**where, message_id="done", settlement=Ack())),
        *(begun("grave"), events.DeliverySettled(**where, message_id="grave", settlement=DeadLetter(reason="no"))),
    ]
    found = query_history(tmp_path, "The same for messages: a `message.started`", history)
    assert [json.loads(line)["message_id"] for line in found] == ["lost"]


# Queries for tools that the tests cannot run: the events and fields that they name must exist


FIELDS = COMMON | {field for _, fields in table_in_code().values() for field in fields}
INSIGHTS_WORDS = {
    *("fields", "filter", "stats", "sort", "by", "as", "and", "or", "in", "asc", "desc"),
    *("count", "earliest", "latest", "min", "max", "sum", "coalesce", "strcontains"),
}
LOGQL_WORDS = {"json", "sum", "by", "count_over_time", "unless", "and", "h"}


def queries(language: str) -> list[str]:
    found = re.findall(rf"```{language}\n(.+?)```", PAGE, re.DOTALL)
    assert len(found) >= 6, "the diagnoses and the final failures"
    return found


def events_named(query: str) -> set[str]:
    """Return the event names in a query, including those in a pattern such as object[.](finished|failed)."""
    plain = set(re.findall(r'"([a-z_]+\.[a-z_]+)"', query))
    patterns = re.findall(r'"([a-z_]+)\[\.\]\(([a-z_|]+)\)"', query)
    return plain | {f"{subject}.{name}" for subject, names in patterns for name in names.split("|")}


@pytest.mark.parametrize("language", ["insights", "logql", "sh"])
def test_queries_name_only_existing_events(language: str) -> None:
    named = set().union(*map(events_named, queries(language)))
    assert {"object.skipped", "object.finished", "object.failed", "object.started"} <= named
    assert named <= set(table_in_code())


def test_insights_queries_name_only_existing_fields() -> None:
    for query in queries("insights"):
        aliases = set(re.findall(r"\bas (\w+)", query))
        bare = re.sub(r'"[^"]*"', "", query)
        quoted = set(re.findall(r"`([^`]+)`", bare))
        words = set(re.findall(r"(?<![@\w.])[a-z_]+(?![\w.])", re.sub(r"`[^`]+`", "", bare)))
        assert (words | quoted) - aliases - INSIGHTS_WORDS <= FIELDS, query
        assert set(re.findall(r"@\w+", bare)) <= {"@timestamp"}
        assert "." not in "".join(re.sub(r"`[^`]+`", "", bare)), "a name with a dot needs backquotes"


def test_logql_queries_name_only_existing_fields() -> None:
    flat = {field.replace(".", "_") for field in FIELDS}
    for query in queries("logql"):
        bare = re.sub(r'"[^"]*"', "", query)
        assert set(re.findall(r"[a-z_]+", bare)) - LOGQL_WORDS <= flat, query
        assert bare.count("(") == bare.count(")")


def test_each_diagnosis_has_a_query_in_each_language() -> None:
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


def test_names_used_by_queries_and_alerts_exist() -> None:
    table = table_in_code()
    assert set(OPERATIONS.split()) <= set(table)
    assert {"queue", "message_id", "attempt", "attempt_id", "object", "handler", "enqueued_at", "duration_s"} <= FIELDS
    assert {"error.type", "exception", "environment", "trace_id", "span_id"} <= FIELDS
    assert "reason" in table["worker.draining"][1]
    assert {"count", "ids"} <= table["worker.interrupted"][1]
    assert "objects" in table["message.acked"][1]
    assert "reason" in table["object.skipped"][1]
