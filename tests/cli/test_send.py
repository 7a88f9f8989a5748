"""`penstock send`: lines become messages, or an error names the line."""

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.cli.conftest import Call

from penstock.brokers.sqlite.broker import SqliteBroker
from penstock.cli.send import CHUNK_MAX, LINE_BYTES_MAX, chunks_of
from penstock.errors import TemporaryError, UnknownOutcome, UsageError
from penstock.messaging.message import Message, Outgoing

USAGE, TEMPORARY, CONFIGURATION = 2, 75, 78
APP = """
from pydantic import BaseModel
from penstock import App, Queue

class Order(BaseModel):
    id: int

orders = Queue("orders", Order)
app = App.from_config()

@app.handler(orders)
def take(body): ...
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "sendshop", raising=False)
    (tmp_path / "sendshop.py").write_text(APP)
    return tmp_path


def set_stdin(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def messages(queue: str = "q", file: str = ".penstock/queue.db") -> list[Message]:
    broker = SqliteBroker(file, holder="test")
    try:
        return list(broker.browse(queue, messages_max=10_000))
    finally:
        broker.close()


def bodies(queue: str = "q") -> list[bytes]:
    return [message.body for message in messages(queue)]


def test_lines_of_standard_input_are_sent_in_order_without_blank_ones(
    penstock: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_stdin(monkeypatch, b'{"a": 1}\n\n  \n"\xe5\x90\x8d"\r\n3')
    result = penstock("send", "q")
    assert (result.exit_code, result.out) == (0, "3 messages sent to q.\n")
    assert bodies() == [b'{"a": 1}', '"名"'.encode(), b"3"]


def test_a_file_is_sent_in_several_chunks(penstock: Call, here: Path) -> None:
    (here / "lines").write_text("".join(f"{n}\n" for n in range(2 * CHUNK_MAX + 1)))
    document = penstock("send", "q", "--file", "lines", "--json").document
    assert (document["queue"], document["sent"], len(document["message_ids"])) == ("q", 2_001, 1_000)
    assert bodies() == [str(n).encode() for n in range(2_001)]
    assert document["message_ids"] == [message.id for message in messages()[:1_000]]


def test_one_body_is_sent_with_group_and_delay(penstock: Call) -> None:
    assert penstock("send", "q", "--body", '{"a": 1}', "--group", "g", "--delay", "3600").exit_code == 0
    broker = SqliteBroker(".penstock/queue.db", holder="test")
    assert broker.stats("q").delayed == 1
    broker.close()
    assert [message.group for message in messages()] == ["g"]


@pytest.mark.parametrize(
    ("delay", "seconds"),
    [("2m", 120.0), ("5 min", 300.0), ("1h30m", 5_400.0), ("0.5", 0.5), ("60", 60.0), ("0", 0.0), ("0 min", 0.0)],
)
def test_a_delay_is_parsed_as_a_duration(
    penstock: Call, monkeypatch: pytest.MonkeyPatch, delay: str, seconds: float
) -> None:
    delays: list[float] = []

    def record_delays(broker: SqliteBroker, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        delays.extend(message.delay_seconds for message in messages)
        return ["1"]

    monkeypatch.setattr(SqliteBroker, "send", record_delays)
    assert penstock("send", "q", "--body", "1", "--delay", delay).exit_code == 0
    assert delays == [seconds]


def test_a_deduplication_id_needs_a_single_message(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        result = penstock("send", "q", "--body", "1", "--deduplication-id", "d")
        assert result.exit_code == 0
        assert (
            result.out == "1 message sent to q, unless one with this deduplication id was sent within five minutes.\n"
        )
    assert bodies() == [b"1"]
    set_stdin(monkeypatch, b"1\n2\n")
    result = penstock("send", "q", "--deduplication-id", "e")
    assert (result.exit_code, bodies()) == (USAGE, [b"1"])
    assert "send one at a time" in result.err


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{bad", "not JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": 1, "a": 2}', 'the key "a" appears twice'),
        (b'"\xff"', "not UTF-8"),
    ],
)
def test_a_bad_line_is_named_and_nothing_of_its_chunk_is_sent(
    penstock: Call, here: Path, line: bytes, words: str
) -> None:
    good = b"".join(b"%d\n" % n for n in range(CHUNK_MAX))
    (here / "lines").write_bytes(good + b"\n1\n" + line + b"\n2\n")
    result = penstock("send", "q", "--file", "lines")
    assert (result.exit_code, result.out) == (USAGE, "")
    assert f"penstock: Line 1,003 cannot be sent: {words}" in result.err.replace("the body is ", "")
    assert "1,000 messages sent, the rest was not." in result.err
    assert len(bodies()) == CHUNK_MAX


def test_a_line_over_the_size_limit_is_named(penstock: Call, here: Path) -> None:
    (here / "lines").write_bytes(b'"' + b"x" * 1_100_000 + b'"\n')
    result = penstock("send", "q", "--file", "lines")
    assert result.exit_code == USAGE
    assert "Line 1 cannot be sent: its body has 1,100,002 bytes; at most 1,048,576 are allowed." in result.err


def test_raw_lines_are_sent_unchecked(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    set_stdin(monkeypatch, b"hello\n\xff{\n")
    assert penstock("send", "q", "--raw").exit_code == 0
    assert bodies() == [b"hello", b"\xff{"]


def test_bodies_are_checked_against_the_model_of_the_apps_queue(
    penstock: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_stdin(monkeypatch, b'{"id": 1}\n{"id": "x"}\n')
    result = penstock("send", "orders", "--app", "sendshop:app")
    assert result.exit_code == USAGE
    assert "Line 2 cannot be sent: A body for the queue orders does not fit Order: id: " in result.err
    assert "Nothing was sent." in result.err
    assert penstock("send", "orders", "--app", "sendshop:app", "--body", '{"id": 1}').exit_code == 0
    (message,) = messages("orders")
    assert (message.body, message.attributes["penstock-type"]) == (b'{"id":1}', "Order")
    assert penstock("send", "orders", "--app", "sendshop:app", "--body", "x", "--raw").exit_code == USAGE


def test_empty_input_is_reported(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    set_stdin(monkeypatch, b"\n\n")
    result = penstock("send", "q", "--json")
    assert result.document == {"queue": "q", "sent": 0, "unknown": 0, "message_ids": []}
    assert result.err == "There was nothing to send: the input is empty.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--file", "nope"), "The file nope cannot be read: No such file or directory"),
        (("--file", "."), "cannot be read: Is a directory"),
        (("--file", "x", "--body", "1"), "not both"),
        (("--body", "1", "--delay", "soon"), "--delay 'soon' is not a duration: write seconds, or a text such as 90s"),
        (("--body", "1", "--delay=-5"), "is not a duration"),
        (("--body", "1", "--delay", "inf"), "is not a duration"),
        (("--body", "1", "--delay", "0 moments"), "--delay '0 moments' is not a duration"),
        (("--body", "1", "--group", ""), "--group is empty"),
        (("--body", "1", "--deduplication-id", ""), "--deduplication-id is empty"),
        (("--app", "nope:app"), "There is no module nope"),
        (
            ("--app", "sendshop:app"),
            "sendshop:app has no handler for the queue q. Its queues: orders. Leave out --app to send without a check",
        ),
    ],
)
def test_invalid_arguments_are_usage_errors(penstock: Call, arguments: tuple[str, ...], words: str) -> None:
    result = penstock("send", "q", *arguments)
    assert (result.exit_code, result.out) == (USAGE, "")
    assert words in result.err


def test_a_misspelt_queue_of_an_app_is_reported_with_the_queue_that_was_meant(penstock: Call) -> None:
    result = penstock("send", "oders", "--app", "sendshop:app", "--body", "1")
    assert result.exit_code == USAGE
    assert result.err == "penstock: sendshop:app has no handler for the queue oders. Did you mean orders?\n"


def test_a_queue_in_memory_cannot_be_sent_to(penstock: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "memory://")
    result = penstock("send", "q", "--body", "1")
    assert result.exit_code == CONFIGURATION
    assert "exists only inside its process" in result.err


class Pipe(io.BytesIO):
    """A stream that returns its data piece by piece, as a pipe does."""

    def __init__(self, *pieces: bytes) -> None:
        super().__init__()
        self._pieces = list(pieces)

    def read1(self, size: int | None = -1, /) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


def test_lines_from_a_slow_pipe_are_sent_at_once() -> None:
    chunks = chunks_of(Pipe(b"1\n2\n3", b"4\n", b"", b"never read"))
    assert list(chunks) == [[(1, b"1"), (2, b"2")], [(3, b"34")]]


def test_the_length_of_a_line_is_bounded() -> None:
    with pytest.raises(UsageError, match="Line 2 is longer than"):
        list(chunks_of(Pipe(b"1\n", *[b"x" * 1_000_000] * (LINE_BYTES_MAX // 1_000_000 + 2))))


def test_ctrl_c_during_a_send_reports_possibly_sent_messages(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "lines").write_text("1\n" * (CHUNK_MAX + 1))
    sent = SqliteBroker.send

    def send_once(broker: SqliteBroker, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        if len(messages) < CHUNK_MAX:
            raise KeyboardInterrupt
        return sent(broker, queue, messages)

    monkeypatch.setattr(SqliteBroker, "send", send_once)
    result = penstock("send", "q", "--file", "lines")
    assert result.exit_code == 130
    assert result.err == "penstock: interrupted; 1,000 messages sent, perhaps the next 1, and no more.\n"
    assert penstock("send", "q", "--body", "1").err == "penstock: interrupted; perhaps 1 message sent, and no more.\n"


def fail_small_sends(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the broker accept whole chunks, and raise the error for smaller ones."""
    sent = SqliteBroker.send

    def send_once(broker: SqliteBroker, queue: str, messages: Sequence[Outgoing]) -> Sequence[str]:
        if len(messages) < CHUNK_MAX:
            raise error
        return sent(broker, queue, messages)

    monkeypatch.setattr(SqliteBroker, "send", send_once)


@pytest.mark.parametrize(
    ("sent", "left", "words"),
    [
        (
            CHUNK_MAX,
            2,
            "1,000 messages sent; it is unknown whether the next 2 messages were sent, and the rest was not.",
        ),
        (0, 2, "Nothing was confirmed: it is unknown whether the next 2 messages were sent, and the rest was not."),
        (0, 1, "Nothing was confirmed: it is unknown whether the next message was sent"),
    ],
)
def test_an_interrupted_send_reports_how_many_messages_are_unknown(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch, sent: int, left: int, words: str
) -> None:
    (here / "lines").write_text("1\n" * (sent + left))
    fail_small_sends(monkeypatch, UnknownOutcome("the broker is away."))
    result = penstock("send", "q", "--file", "lines", "--json")
    assert result.exit_code == TEMPORARY
    assert result.err.startswith(words)
    assert "again may send" in result.err
    document = json.loads(result.out)
    assert (document["sent"], document["unknown"], len(document["message_ids"])) == (sent, left, sent)


def test_with_a_deduplication_id_sending_again_is_reported_as_safe(
    penstock: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_small_sends(monkeypatch, UnknownOutcome("the broker is away."))
    result = penstock("send", "q", "--body", "1", "--deduplication-id", "d")
    assert result.exit_code == TEMPORARY
    assert "it is safe to send it again" in result.err


def test_a_refused_send_reports_no_unknown_messages(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "lines").write_text("1\n" * (CHUNK_MAX + 1))
    fail_small_sends(monkeypatch, TemporaryError("the broker is full."))
    result = penstock("send", "q", "--file", "lines", "--json")
    assert result.exit_code == TEMPORARY
    assert "1,000 messages sent, the rest was not." in result.err
    document = json.loads(result.out)
    assert (document["sent"], document["unknown"]) == (CHUNK_MAX, 0)


def test_ctrl_c_between_two_lines_reports_the_exact_number_sent(
    penstock: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    class InterruptedPipe(Pipe):
        def read1(self, size: int | None = -1, /) -> bytes:
            return super().read1(size) or interrupt()

    def interrupt() -> bytes:
        raise KeyboardInterrupt

    for pieces, words in (((b"1\n", b"2\n3"), "2 messages sent, and no more"), ((), "nothing was sent")):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(InterruptedPipe(*pieces)))
        result = penstock("send", "q")
        assert (result.exit_code, result.err) == (130, f"penstock: interrupted; {words}.\n")
    assert bodies() == [b"1", b"2"]


def test_an_app_that_cannot_be_loaded_is_a_warning_if_configured_and_an_error_if_named(
    penstock: Call, here: Path
) -> None:
    (here / "penstock.toml").write_text('app = "sendshop:app"\n')
    (here / "sendshop.py").write_text("import no_such_module\n")
    result = penstock("send", "orders", "--body", "{}")
    assert (result.exit_code, result.out) == (0, "1 message sent to orders.\n")
    assert result.err.startswith(
        "Warning: the app sendshop:app cannot be loaded, so bodies are not checked. The module"
    )
    assert "no_such_module" in result.err
    assert bodies("orders") == [b"{}"]
    result = penstock("send", "orders", "--body", "{}", "--app", "sendshop:app")
    assert result.exit_code == USAGE
    assert bodies("orders") == [b"{}"]


@pytest.mark.parametrize("typing", [True, False])
def test_no_progress_bar_is_drawn_over_typed_input(
    penstock: Call, monkeypatch: pytest.MonkeyPatch, typing: bool
) -> None:
    set_stdin(monkeypatch, b"1\n2\n")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: typing)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    result = penstock("send", "q")
    assert result.exit_code == 0
    assert ("\x1b[" in result.err) is not typing
    if typing:
        assert result.err == "Reading lines from the terminal; Ctrl-D ends them.\n"


def test_the_printed_ids_are_those_of_the_messages(penstock: Call) -> None:
    result = penstock("send", "q", "--body", "1", "--json")
    assert json.loads(result.out)["message_ids"] == [message.id for message in messages()]
