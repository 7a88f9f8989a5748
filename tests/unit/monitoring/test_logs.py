"""Log lines: their fields, levels and sampling, and failures of the stream that must not disturb the work."""

import io
import logging
import sys
from typing import Any

import pytest
import structlog
from tests.unit.monitoring.event_strategies import lines_in

from penstock.errors import ConfigurationError
from penstock.events import (
    BatchClaimed,
    Bus,
    DeliveryAcked,
    DeliverySettled,
    Event,
    LeaseLost,
    LeasesExtended,
    LinesQuarantined,
    MessageFailed,
    MessageFinished,
    MessagesReceived,
    MessageStarted,
    SettlementFailed,
    SourceCleaned,
    StacksDumped,
    WorkerDraining,
    WorkerStopped,
)
from penstock.messaging.failure import failure_of
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.monitoring.logs.lines import ITEMS_MAX, TRIMMED, plain
from penstock.monitoring.logs.listener import configure_logs
from penstock.monitoring.logs.plans import LogSettings
from penstock.testing import FakeClock

MESSAGE: dict[str, Any] = {"queue": "thumbnails", "handler": "make", "message_id": "m1", "attempt": 2}
STARTED = MessageStarted(**MESSAGE, enqueued_at=1_700_000_000.25)


def failed(*, final: bool = True, error_type: str = "ValueError", **changed: Any) -> MessageFailed:
    fields: dict[str, Any] = {
        **MESSAGE,
        "enqueued_at": 1_700_000_000.25,
        "duration_seconds": 0.5,
        "error_type": error_type,
        "error": "no number",
        "traceback": "Traceback (most recent call last):\n  ...\nValueError: no number\n",
        "exception": ValueError("no number"),
        "final": final,
        "delay_seconds": None,
    }
    return MessageFailed(**{**fields, **changed})


def log_of(*facts: Event, **options: Any) -> list[dict[str, Any]]:
    stream = io.StringIO()
    bus = Bus(configure_logs(LogSettings(**{"format": "json", "level": "debug", **options}), stream, clock=FakeClock()))
    for fact in facts:
        bus.emit(fact)
    return lines_in(stream)


def console_of(*facts: Event) -> str:
    stream = io.StringIO()
    log = configure_logs(LogSettings(format="console", service="shop", level="debug"), stream, clock=FakeClock())
    for fact in facts:
        log(fact)
    return stream.getvalue()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class FailingStream(io.StringIO):
    """A stream whose writes fail while `error` is set."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error: Exception | None = error

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        return super().write(text)


class NoClock(FakeClock):
    def now(self) -> float:
        raise AssertionError("a line was written")


# Fields of a line


def test_a_line_has_the_fields_of_its_event_and_of_its_process() -> None:
    [line] = log_of(STARTED, service="shop", version="1.2.3", worker="w1", environment="prod")
    assert list(line)[:4] == ["ts", "level", "event", "msg"]
    assert isinstance(line.pop("pid"), int)
    assert line == {
        "ts": "2023-11-14T22:13:20.000000Z",
        "level": "debug",
        "event": "message.started",
        "msg": "The handler was called.",
        "service": "shop",
        "version": "1.2.3",
        "worker": "w1",
        "environment": "prod",
        "queue": "thumbnails",
        "handler": "make",
        "message_id": "m1",
        "attempt": 2,
        "enqueued_at": "2023-11-14T22:13:20.250000Z",
    }


def test_a_failure_has_its_type_message_and_traceback() -> None:
    [line] = log_of(failed(delay_seconds=3.0, final=False))
    assert line["error.type"] == "ValueError"
    assert line["error.message"] == "no number"
    assert line["exception"].endswith("ValueError: no number\n")
    assert (line["duration_s"], line["delay_s"], line["final"]) == (0.5, 3.0, False)


@pytest.mark.parametrize(
    ("final", "error_type", "level"),
    [(True, "ValueError", "error"), (True, "Reject", "warning"), (False, "ValueError", "warning")],
)
def test_only_an_unexpected_final_failure_is_an_error(final: bool, error_type: str, level: str) -> None:
    [line] = log_of(failed(final=final, error_type=error_type))
    assert (line["event"], line["level"]) == ("message.failed", level)


def test_each_settlement_has_its_event_name() -> None:
    settlements = (
        Ack(),
        Release(delay_seconds=2, reason="busy"),
        DeadLetter(reason="poison", exception="ValueError: no"),
    )
    lines = log_of(
        DeliveryAcked(queue="q", message_id="m", attempt=1, settlement=settlements[0]),
        *(
            DeliverySettled(queue="q", message_id="m", attempt=1, settlement=settlement)
            for settlement in settlements[1:]
        ),
    )
    assert [line["event"] for line in lines] == ["message.acked", "message.released", "message.dead_lettered"]
    assert (lines[1]["delay_s"], lines[1]["reason"]) == (2, "busy")
    assert (lines[2]["error.message"], lines[2]["reason"]) == ("ValueError: no", "poison")


def test_each_received_message_has_a_line() -> None:
    lines = log_of(MessagesReceived(queue="q", message_ids=("m1", "m2"), redelivered=1))
    assert [(line["event"], line["message_id"]) for line in lines] == [
        ("message.received", "m1"),
        ("message.received", "m2"),
    ]


def test_a_lost_lease_does_not_claim_that_another_worker_has_the_message() -> None:
    lost = log_of(
        LeaseLost(queue="q", message_id="m", attempt=1),
        SettlementFailed(queue="q", message_id="m", attempt=1, operation="ack", reason="it was deleted", lost=True),
    )
    assert [line["event"] for line in lost] == ["lease.lost", "settlement.failed"]
    assert lost[0]["msg"] == "The lease was lost: it expired, or the broker no longer knows the delivery."
    assert not [line for line in lost for word in ("somebody", "worker") if word in line["msg"]]


def test_the_end_of_a_worker_names_the_released_messages() -> None:
    lines = log_of(
        WorkerDraining(reason="SIGTERM", in_flight=2), WorkerStopped(outcome="interrupted", released=("m", "n"))
    )
    assert (lines[0]["event"], lines[0]["reason"]) == ("worker.draining", "SIGTERM")
    assert (lines[1]["event"], lines[1]["count"], lines[1]["ids"]) == ("worker.interrupted", 2, ["m", "n"])


def test_trace_ids_are_read_for_each_line() -> None:
    stream = io.StringIO()
    spans = iter([("t1", "s1"), None])
    log = configure_logs(LogSettings(format="json", level="debug"), stream, trace_ids=lambda: next(spans))
    log(STARTED)
    log(STARTED)
    first, second = lines_in(stream)
    assert (first["trace_id"], first["span_id"]) == ("t1", "s1")
    assert "trace_id" not in second


def test_no_value_of_a_variable_is_logged() -> None:
    def handle() -> None:
        password = "hunter" + "2"
        assert password
        raise ValueError("no number")

    with pytest.raises(ValueError, match="no number") as caught:
        handle()
    event = failed(traceback=failure_of(caught.value).traceback, exception=caught.value)
    for text in (log_of(event)[0]["exception"], console_of(event)):
        assert "in handle" in text
        assert "hunter2" not in text


def test_a_logged_traceback_begins_in_the_users_code() -> None:
    part = (
        "Traceback (most recent call last):\n"
        '  File "/opt/lib/python3.12/site-packages/tenacity/__init__.py", line 470, in __call__\n'
        "    do = self.iter(retry_state=retry_state)\n"
        '  File "/app/shop.py", line 7, in handle\n'
        "    charge(body)\n"
        '  File "/opt/lib/python3.12/json/decoder.py", line 3, in decode\n'
        "ValueError: no\n"
    )
    tenacity, users = part.index("  File"), part.index('  File "/app')
    cut = part[:tenacity] + part[users:]
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    [line] = log_of(failed(traceback=part + between + part))
    assert line["exception"] == cut + between + cut
    unknown = part.replace("/app/", "/opt/lib/python3.12/site-packages/")
    assert log_of(failed(traceback=unknown))[0]["exception"] == unknown


def test_a_lone_surrogate_in_a_traceback_is_escaped() -> None:
    [line] = log_of(failed(traceback="in \ud800 work"))
    assert line["exception"] == r"in \ud800 work"


def test_long_values_are_trimmed_with_a_marker() -> None:
    [line] = log_of(failed(error="e" * 9_000, traceback="t" * 40_000 + "the end"))
    assert line["error.message"] == "e" * 8_000 + "[... trimmed ...]"
    assert line["exception"].startswith("[... trimmed ...]\nttt")
    assert line["exception"].endswith("the end")
    ids = tuple(str(number) for number in range(1_500))
    [line] = log_of(LeasesExtended(queue="q", message_ids=ids), level="debug")
    assert (line["count"], len(line["ids"]), line["ids"][-1]) == (1_500, 1_001, "[... trimmed ...]")


# Levels and sampling


def test_events_below_the_level_cost_no_formatting() -> None:
    stream = io.StringIO()
    log = configure_logs(LogSettings(level="warning"), stream, clock=NoClock())
    log(STARTED)
    log(DeliveryAcked(queue="q", message_id="m", attempt=1, settlement=Ack()))
    assert (stream.getvalue(), log.dropped) == ("", 0)
    log(failed())  # this line reads the clock, which raises
    assert log.dropped == 1


def test_an_event_with_several_levels_is_filtered_by_its_actual_level() -> None:
    assert [line["final"] for line in log_of(failed(final=True), failed(final=False), level="error")] == [True]


def test_an_event_may_be_given_another_level() -> None:
    finished = MessageFinished(**MESSAGE, enqueued_at=0, duration_seconds=1)
    lines = log_of(STARTED, finished, levels={"message.started": "debug", "message.finished": "warning"}, level="info")
    assert [(line["event"], line["level"]) for line in lines] == [("message.finished", "warning")]
    extended = LeasesExtended(queue="q", message_ids=("m",))
    assert log_of(extended, level="info") == []
    assert log_of(extended, levels={"lease.extended": "info"}, level="info") != []


@pytest.mark.parametrize("make_id", [str, "01JD3M9Z8Q{:016d}".format, "{:032x}".format], ids=["1", "ulid", "hex"])
def test_sampling_keeps_a_share_and_the_lines_of_a_message_together(make_id: Any) -> None:
    def events_of(message_id: str) -> list[Event]:
        fields = {**MESSAGE, "message_id": message_id}
        return [
            MessagesReceived(queue="q", message_ids=(message_id,), redelivered=0),
            MessageStarted(**fields, enqueued_at=0),
            MessageStarted(**{**fields, "attempt": 3}, enqueued_at=0),
        ]

    facts = [fact for number in range(4_000) for fact in events_of(make_id(number))]
    lines = log_of(*facts, sampling={"message.received": 0.1, "message.started": 0.1})
    kept = {line["message_id"] for line in lines}
    assert 300 <= len(kept) <= 500
    assert len(lines) == 3 * len(kept)
    assert kept == {
        line["message_id"]
        for line in log_of(*facts, sampling={"message.started": 0.1})
        if line["event"] == "message.started"
    }


def test_a_message_id_with_a_lone_surrogate_can_be_sampled() -> None:
    event = MessageStarted(**{**MESSAGE, "message_id": "m\udcff"}, enqueued_at=0)
    [line] = log_of(event, sampling={"message.started": 1.0})
    assert line["message_id"] == r"m\udcff"


def test_sampling_accepts_zero_and_one() -> None:
    facts = [
        BatchClaimed(pipeline="p", attempt_id=str(number), objects=1, bytes=1, seconds=0.1) for number in range(100)
    ]
    assert len(log_of(*facts, sampling={"batch.claimed": 1.0})) == 100
    assert log_of(*facts, sampling={"batch.claimed": 0.0}) == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"level": "loud"}, "no log level 'loud'"),
        ({"levels": {"message.failed": "loud"}}, "no log level 'loud'"),
        ({"format": "xml"}, "no log format 'xml'"),
        ({"levels": {"message.fnished": "debug"}}, "no log event 'message.fnished'"),
        ({"sampling": {"message.fnished": 0.5}}, "no log event 'message.fnished'"),
        ({"sampling": {"message.started": 1.5}}, "from 0 to 1, not 1.5"),
        ({"sampling": {"message.started": float("nan")}}, "from 0 to 1, not nan"),
        ({"sampling": {"message.failed": 0.5}}, "never sampled"),
        ({"sampling": {"lines.quarantined": 0.5}}, "never sampled"),
        ({"sampling": {"worker.started": 0.5}}, "no single message"),
    ],
)
def test_invalid_settings_are_refused_at_start(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        configure_logs(LogSettings(**options), io.StringIO())


# Failures of the log


@pytest.mark.parametrize(
    "error", [BrokenPipeError(32, "Broken pipe"), OSError(28, "No space left"), ValueError("closed")]
)
def test_a_failing_stream_loses_only_its_lines(error: Exception) -> None:
    stream = FailingStream(error)
    log = configure_logs(LogSettings(format="json", level="debug"), stream)
    log(STARTED)
    log(STARTED)
    assert log.dropped == 2
    stream.error = None
    log(STARTED)
    assert (log.dropped, len(lines_in(stream))) == (2, 1)


def test_a_process_without_stderr_can_be_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    log = configure_logs(LogSettings(level="debug"))
    log(STARTED)
    assert log.dropped == 1


def test_a_value_that_cannot_be_printed_loses_only_its_line() -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError

    stream = io.StringIO()
    log = configure_logs(LogSettings(format="json", level="debug"), stream)
    log(failed(error=Unprintable()))
    log(STARTED)
    assert (log.dropped, len(lines_in(stream))) == (1, 1)


def test_characters_missing_in_the_streams_encoding_are_escaped() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="latin-1")
    log = configure_logs(LogSettings(format="console", level="debug"), stream)
    log(MessageStarted(**{**MESSAGE, "message_id": "日é"}, enqueued_at=0))
    assert log.dropped == 0
    assert b"message_id=\\u65e5\xe9" in raw.getvalue()


def test_the_applications_structlog_and_logging_are_unchanged() -> None:
    processed: list[Any] = []
    before = (logging.root.level, list(logging.root.handlers), logging.getLogger().manager.disable)

    def own_processor(_logger: object, _name: str, line: Any) -> Any:
        processed.append(line)
        return line

    structlog.configure(processors=[own_processor])
    try:
        settings = structlog.get_config()
        [line] = log_of(STARTED)
        assert line["event"] == "message.started"
        assert processed == []
        assert structlog.get_config() == settings
    finally:
        structlog.reset_defaults()
    assert before == (logging.root.level, list(logging.root.handlers), logging.getLogger().manager.disable)


# Readable format


def test_the_default_format_is_json_and_on_a_terminal_readable() -> None:
    for stream, begins in ((io.StringIO(), '{"ts":'), (Terminal(), "\x1b[2m2023-11-14T22:13:20.000Z")):
        configure_logs(LogSettings(level="debug"), stream, clock=FakeClock())(STARTED)
        assert stream.getvalue().startswith(begins)


def test_a_readable_line_has_no_colours_without_a_terminal() -> None:
    assert console_of(STARTED) == (
        "2023-11-14T22:13:20.000Z [debug    ] message.started        The handler was called. queue=thumbnails"
        " handler=make message_id=m1 attempt=2 enqueued_at=2023-11-14T22:13:20.250Z\n"
    )


@pytest.mark.parametrize(
    ("seconds", "attempt", "sentence"),
    [
        (0.045, 1, "make m1 finished in 45 ms queue=thumbnails"),
        (2.34, 2, "make m1 finished in 2.3 s (attempt 2) queue=thumbnails"),
        (61.0, 1, "make m1 finished in 1 min 1 s queue=thumbnails"),
    ],
)
def test_a_finished_message_is_one_readable_sentence(seconds: float, attempt: int, sentence: str) -> None:
    finished = MessageFinished(**{**MESSAGE, "attempt": attempt}, enqueued_at=0.0, duration_seconds=seconds)
    stream = io.StringIO()
    settings = LogSettings(format="console", worker="host-1-01J9ZZZZZZZZZZZZZZZZ3Q8Z1K")
    Bus(configure_logs(settings, stream, clock=FakeClock())).emit(finished)
    assert stream.getvalue() == f"2023-11-14T22:13:20.000Z [info     ] 3Q8Z1K message.finished       {sentence}\n"


def test_a_successful_message_is_one_line_at_level_info() -> None:
    facts = (
        MessagesReceived(queue="q", message_ids=("m",), redelivered=0),
        STARTED,
        MessageFinished(**MESSAGE, enqueued_at=0.0, duration_seconds=1.0),
        DeliveryAcked(queue="q", message_id="m", attempt=1, settlement=Ack()),
    )
    assert [line["event"] for line in log_of(*facts, level="info")] == ["message.finished"]


def test_terminal_escape_sequences_are_escaped() -> None:
    text = console_of(MessageStarted(**{**MESSAGE, "message_id": "a\x1b[2J\nb\x9b0m\u202e"}, enqueued_at=0))
    assert r"message_id='a\x1b[2J\nb\x9b0m\u202e'" in text
    assert text.count("\n") == 1


def test_a_traceback_is_indented_below_its_line_and_escaped() -> None:
    text = console_of(failed(traceback="Traceback:\n2023 [info] worker.drained\x1b[0m\r\n"))
    assert text.split("\n")[1:] == ["    | Traceback:", r"    | 2023 [info] worker.drained\x1b[0m\r", ""]


def test_stacks_are_indented_below_their_line() -> None:
    assert console_of(StacksDumped(stacks="one\ntwo")).split("\n")[1:] == ["    | one", "    | two", ""]


def test_reasons_keep_their_counts_in_both_formats() -> None:
    quarantined = LinesQuarantined(
        pipeline="clicks",
        object_uri="s3://b/k",
        count=5,
        reasons={"malformed": 3, "invalid UTF-8": 2},
        sample=((130, "malformed: not a JSON object"),),
    )
    (line,) = log_of(quarantined)
    assert line["reasons"] == {"malformed": 3, "invalid UTF-8": 2}
    assert line["sample"] == ["130: malformed: not a JSON object"]
    stream = io.StringIO()
    Bus(configure_logs(LogSettings(format="console", level="debug"), stream, clock=FakeClock())).emit(quarantined)
    assert "reasons={'malformed': 3, 'invalid UTF-8': 2}" in stream.getvalue()


def test_source_cleaned_has_the_count_of_each_reason() -> None:
    reasons = {"changed since": 2, "newer version": 1}
    cleaned = SourceCleaned(pipeline="clicks", action="tag", seq=7, objects=40, skipped=3, reasons=reasons)
    (line,) = log_of(cleaned)
    assert line["reasons"] == reasons


def test_a_mapping_is_bounded_like_a_list() -> None:
    long = plain({f"n{number}": number for number in range(ITEMS_MAX + 5)})
    assert isinstance(long, dict)
    assert (len(long), long[TRIMMED]) == (ITEMS_MAX + 1, 5)
