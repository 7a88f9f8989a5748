"""Any event becomes one line of harmless characters, with the values of the event."""

import io
import json
import unicodedata
from operator import attrgetter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.monitoring.event_strategies import ANY_TEXT, events_of, lines_in

from penstock.events import Event, MessagesReceived, ObjectFailed, ObjectStarted
from penstock.monitoring.logs.listener import configure_logs
from penstock.monitoring.logs.plans import ROWS, LogSettings
from penstock.monitoring.logs.rows import LogRow, rows_of
from penstock.testing import FakeClock

ANY_EVENT = st.one_of([events_of(kind) for kind in ROWS])


def logged(event: Event, **chosen: str) -> io.StringIO:
    stream = io.StringIO()
    log = configure_logs(LogSettings(level="debug", **chosen), stream, clock=FakeClock())  # type: ignore[arg-type]
    log(event)
    assert log.dropped == 0
    return stream


def lines_expected(event: Event) -> int:
    return len(event.message_ids) if isinstance(event, MessagesReceived) else 1


@settings(max_examples=400)
@given(event=ANY_EVENT)
def test_an_event_is_one_line_of_portable_json(event: Event) -> None:
    text = logged(event, format="json").getvalue()
    assert {unicodedata.category(character) for character in text.replace("\n", "")} & {"Cc", "Cs", "Zl", "Zp"} == set()
    text.encode("utf-8")  # raises for a lone surrogate
    assert len(text.splitlines()) == text.count("\n") == lines_expected(event)
    for line in text.splitlines():
        json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
        json.loads(line)["ts"].encode("utf-8")
        json.dumps(json.loads(line), ensure_ascii=False).encode("utf-8")  # raises for a lone surrogate


@settings(max_examples=400)
@given(event=ANY_EVENT)
def test_texts_and_whole_numbers_are_logged_unchanged(event: Event) -> None:
    for line in lines_in(logged(event, format="json")):
        row = next(row for row in rows_of(ROWS[type(event)]) if (row.name, row.level) == (line["event"], line["level"]))
        for name, value in logged_values(event, row):
            assert line[name] == value


def logged_values(event: Event, row: LogRow) -> list[tuple[str, object]]:
    values = [(name, attrgetter(source)(event)) for name, source in row.fields.items() if isinstance(source, str)]
    texts = [(name, value.encode("utf-8", "backslashreplace").decode()) for name, value in values if type(value) is str]
    return texts + [(name, value) for name, value in values if type(value) in (int, bool)]


@settings(max_examples=400)
@given(event=ANY_EVENT)
def test_control_characters_are_escaped_on_the_console(event: Event) -> None:
    text = logged(event, format="console").getvalue()
    assert {unicodedata.category(character) for character in text.replace("\n", "")} & {"Cc", "Cf", "Cs"} == set()
    lines = text.split("\n")[:-1]
    assert len([line for line in lines if not line.startswith("    | ")]) == lines_expected(event)


@given(key=ANY_TEXT)
def test_a_key_stays_in_its_line_and_is_logged_unchanged(key: str) -> None:
    event = ObjectStarted(pipeline="clicks", object_uri=key, attempt_id="a", attempt=1)
    [line] = lines_in(logged(event, format="json"))
    assert line["object"] == key.encode("utf-8", "backslashreplace").decode()


@settings(max_examples=200)
@given(event=ANY_EVENT)
def test_an_ascii_stream_gets_equal_json(event: Event) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict")
    log = configure_logs(LogSettings(level="debug", format="json"), stream, clock=FakeClock())
    log(event)
    assert log.dropped == 0
    assert [json.loads(line) for line in raw.getvalue().decode("ascii").splitlines()] == lines_in(
        logged(event, format="json")
    )


def test_a_non_ascii_name_is_logged_as_it_is_written() -> None:
    event = ObjectStarted(pipeline="clicks", object_uri="s3://b/画像/ключ 😀.txt", attempt_id="a", attempt=1)
    assert "s3://b/画像/ключ 😀.txt" in logged(event, format="json").getvalue()


@given(outcome=ANY_TEXT)
def test_an_unknown_outcome_is_a_failure(outcome: str) -> None:
    event = ObjectFailed(pipeline="p", object_uri="o", attempt_id="a", outcome=f"?{outcome}", reason="r")
    [line] = lines_in(logged(event, format="json"))
    assert (line["event"], line["level"]) == ("object.failed", "error")
