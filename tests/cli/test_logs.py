"""`penstock admin logs diagnose`: with the logs of real workers, and with files of every kind."""

import gzip
import io
import json
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Call
from tests.cli.process import Process, Start

from penstock import events
from penstock.events import Event
from penstock.messaging.clock import SystemClock
from penstock.messaging.settlement import DeadLetter
from penstock.monitoring.diagnoses.lines import FORMER_EVENTS
from penstock.monitoring.logs.listener import configure_logs
from penstock.monitoring.logs.plans import LogSettings
from penstock.objects.reference import LOCAL_BUCKET, uri_of
from penstock.testing import FakeClock

CHECK_FOUND_PROBLEMS = 3
UNFIT = 2

SHOP = """
import time
from pathlib import Path
from penstock import App

app = App.from_config()

@app.object_handler("landed", source="landing", name="parse", on_stop="release")
def parse(incoming, context):
    Path(f"began-{time.time_ns()}").touch()
    while not Path("go").exists():
        context.checkpoint()
        time.sleep(0.02)  # between two looks at a file that the test makes
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture
def start(here: Path) -> Iterator[Start]:
    processes: list[Process] = []

    def started(*arguments: object) -> Process:
        processes.append(Process(here, *arguments))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()


# Real workers


@pytest.fixture
def shop(here: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], str]:
    """Create an app and one object; calling the result enqueues a notification and returns the object's address."""
    # so that a killed worker is found dead by its process, not by its lease
    monkeypatch.setenv("PENSTOCK_WORKER_LEASE", "600")
    name = f"shop_{here.name}"
    (here / f"{name}.py").write_text(SHOP)
    (here / "landing").mkdir()
    (here / "landing" / "a.jsonl").write_text("{}\n")

    def enqueue() -> str:
        __import__(name)
        assert sys.modules[name].app.announce("landed", "landing") == 1
        sys.modules[name].app.close()
        return (here / "landing" / "a.jsonl").resolve().as_uri()

    return enqueue


def run_worker(start: Start, here: Path, log: str, *, until: str, then: signal.Signals) -> None:
    """Run a worker, signal it once its log has that event, and save its log."""
    worker = start("worker", f"shop_{here.name}:app")
    worker.expect(until)
    worker.signal(then)
    worker.exit_code()
    (here / log).write_text("".join(worker.log_lines))


def test_leftovers_of_a_kill_are_reported_until_they_are_finished(
    penstock: Call, start: Start, here: Path, shop: Callable[[], str]
) -> None:
    uri = shop()
    run_worker(start, here, "first.log", until="object.started", then=signal.SIGKILL)
    result = penstock("admin", "logs", "diagnose", "first.log")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert "Died with their worker: 1 object " in result.out
    assert uri in result.out

    (here / "go").touch()
    run_worker(start, here, "second.log", until="object.finished", then=signal.SIGTERM)
    found = penstock("admin", "logs", "diagnose", "second.log", "first.log", "--json").document
    assert found["died"]["count"] == found["wrongly_processed"]["count"] == 0
    (finished,) = found["finished"]["first"]
    assert finished["name"] == uri
    (taken,) = [one for one in found["taken_over"]["first"] if one["kind"] == "object"]
    died = json.loads(next(line for line in (here / "first.log").read_text().splitlines() if "object.started" in line))
    assert (taken["name"], taken["from_worker"], taken["from_attempt"]) == (uri, died["worker"], died["attempt_id"])
    assert taken["later"]["attempt_id"] == finished["attempt_id"]
    (message,) = [one for one in found["taken_over"]["first"] if one["kind"] == "message"]
    assert (message["attempt"], message["from_worker"], message["from_attempt"]) == (2, died["worker"], 1)

    result = penstock("admin", "logs", "diagnose", "first.log", "second.log", "--object", "landing/a.jsonl")
    assert result.exit_code == 0
    starts = [line for line in result.out.splitlines() if "object.started" in line]
    assert len(starts) == 2
    assert finished["attempt_id"] in starts[1]
    assert finished["attempt_id"] not in starts[0]


def test_interrupted_work_is_listed_with_the_attempt_that_finished_it(
    penstock: Call, start: Start, here: Path, shop: Callable[[], str]
) -> None:
    uri = shop()
    run_worker(start, here, "first.log", until="object.started", then=signal.SIGTERM)
    found = penstock("admin", "logs", "diagnose", "first.log", "--json").document
    (before,) = [one for one in found["interrupted"]["first"] if one["kind"] == "object"]
    assert before["name"] == uri
    assert "later" not in before

    (here / "go").touch()
    run_worker(start, here, "second.log", until="object.finished", then=signal.SIGTERM)
    found = penstock("admin", "logs", "diagnose", "second.log", "first.log", "--json").document
    (after,) = [one for one in found["interrupted"]["first"] if one["kind"] == "object"]
    assert after["attempt_id"] == before["attempt_id"]
    assert after["later"]["attempt_id"] == found["finished"]["first"][0]["attempt_id"]
    assert found["died"]["count"] == 0


def test_the_log_of_an_ingest_can_be_diagnosed(
    penstock: Call, here: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_LOG_FORMAT", "json")
    (here / "landing").mkdir()
    ingest = start("ingest", "landing", "table")
    assert ingest.exit_code() == 0
    events_logged = [json.loads(line)["event"] for line in ingest.log_lines if line.startswith("{")]
    assert "source.scanned" in events_logged
    assert not any("objects found in" in line for line in ingest.log_lines), "progress is not shown beside the log"
    (here / "ingest.log").write_text("".join(ingest.log_lines))
    assert penstock("admin", "logs", "diagnose", "ingest.log").exit_code == 0


# Generated logs


class Log:
    """Writes lines as a worker does, a second apart."""

    def __init__(self, began_at: float = 1_764_000_000.0) -> None:
        self._stream = io.StringIO()
        self._clock = FakeClock(began_at)
        self._log = configure_logs(
            LogSettings(worker="w1", format="json", level="debug"), self._stream, clock=self._clock
        )

    def write(self, *written: Event) -> "Log":
        for event in written:
            self._log(event)
            self._clock.advance(1)
        return self

    @property
    def text(self) -> str:
        return self._stream.getvalue()


def started(uri: str, attempt_id: str = "a") -> Event:
    return events.ObjectStarted(pipeline="p", object_uri=uri, attempt_id=attempt_id, attempt=1)


def finished(uri: str, attempt_id: str = "a") -> Event:
    return events.ObjectFinished(pipeline="p", object_uri=uri, attempt_id=attempt_id, rows=1, lines_quarantined=0)


def skipped(uri: str) -> Event:
    return events.ObjectSkipped(pipeline="p", object_uri=uri, reason="already_processed")


def test_a_log_without_problems_exits_with_0(penstock: Call, here: Path) -> None:
    (here / "w.log").write_text(Log().write(started("o"), finished("o"), skipped("o")).text)
    result = penstock("admin", "logs", "diagnose", "w.log")
    assert result.exit_code == 0
    assert result.out.splitlines()[:4] == [
        "Skipped as processed, but never finished: none.",
        "Died with their worker: none.",
        "Failed: none.",
        "Taken over from another worker: none.",
    ]
    assert "Outages: none." in result.out
    assert "Finished: 1 object" in result.out
    assert "3 lines of 1 file read, 3 of Penstock" in result.err


@pytest.mark.parametrize(("ahead_seconds", "wrong"), [(-60, 0), (0, 0), (4, 0), (6, 1), (3_600, 1)])
def test_small_clock_differences_between_hosts_are_tolerated(
    penstock: Call, here: Path, ahead_seconds: int, wrong: int
) -> None:
    (here / "one.log").write_text(Log(1_764_000_000.0 + ahead_seconds).write(finished("o")).text)
    (here / "other.log").write_text(Log().write(skipped("o")).text)
    result = penstock("admin", "logs", "diagnose", "one.log", "other.log")
    assert f"Skipped as processed, but never finished: {wrong or 'none'}" in result.out
    assert result.exit_code == (CHECK_FOUND_PROBLEMS if wrong else 0)


def test_each_section_has_a_hint(penstock: Call, here: Path) -> None:
    failed = events.ObjectFailed(pipeline="p", object_uri="bad", attempt_id="x", outcome="dead", reason="no JSON")
    interrupted = events.MessageInterrupted(queue="q", handler="h", message_id="m", attempt=1, duration_seconds=1.0)
    log = Log().write(skipped("odd"), started("lost"), started("bad", "x"), failed, interrupted, finished("fine"))
    (here / "w.log").write_text(log.text)
    result = penstock("admin", "logs", "diagnose", "w.log")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    for words in (
        "Skipped as processed, but never finished: 1",
        "Died with their worker: 1",
        "Failed: 1",
        "1 message ",
        "Finished: 1",
    ):
        assert words in result.out
    assert result.out.count("  -> ") == 5
    assert "no JSON" in result.out


def test_an_outage_is_reported_with_its_length(penstock: Call, here: Path) -> None:
    opened = events.BreakerOpened(queue="q", handler="h", fingerprint="f", failures=10, error="ConnectionRefused: 5432")
    closed = events.BreakerClosed(queue="q", handler="h", open_seconds=1.0, probes=1)
    (here / "w.log").write_text(Log().write(opened, closed, events.LedgerUnavailable(error="gone away")).text)
    result = penstock("admin", "logs", "diagnose", "w.log")
    assert "Outages: 2 " in result.out
    assert "(1 s), queue q paused, 1 worker, ConnectionRefused: 5432" in result.out
    assert "no end in these logs, ledger unavailable, 1 worker, gone away" in result.out
    found = penstock("admin", "logs", "diagnose", "w.log", "--json").document["outages"]
    assert found["count"] == 2
    assert found["first"][0]["seconds"] == 1.0


def test_logs_of_earlier_versions_are_read_by_their_former_names(penstock: Call, here: Path) -> None:
    interrupted = events.MessageInterrupted(queue="q", handler="h", message_id="m", attempt=1, duration_seconds=1.0)
    log = Log().write(
        events.LedgerUnavailable(error="gone away"), events.LedgerAvailable(outage_seconds=1.0), interrupted
    )
    text = log.text
    for former, name in FORMER_EVENTS.items():
        text = text.replace(f'"{name}"', f'"{former}"')
    assert "ledger.away" in text
    assert "message.given_back" in text
    found: list[dict[str, Any]] = []
    for name, content in (("former.log", text), ("today.log", log.text)):
        (here / name).write_text(content)
        found.append(penstock("admin", "logs", "diagnose", name, "--json").document)
    assert found[0] == found[1]
    assert (found[0]["outages"]["count"], found[0]["interrupted"]["count"]) == (1, 1)


def test_a_limited_section_shows_the_first_and_counts_all(penstock: Call, here: Path) -> None:
    (here / "w.log").write_text(Log().write(*(started(f"o{number}", f"a{number}") for number in range(25))).text)
    result = penstock("admin", "logs", "diagnose", "w.log", "--limit", "3")
    assert "Died with their worker: 25 objects" in result.out
    assert "... and 22 more" in result.out
    result = penstock("admin", "logs", "diagnose", "w.log", "--json")
    found = json.loads(result.out)
    assert (result.exit_code, found["died"]["count"], len(found["died"]["first"])) == (3, 25, 20)
    assert "no end" in found["remarks"][0]


def test_names_from_a_log_are_printed_escaped(penstock: Call, here: Path) -> None:
    evil = "s3://b/\x1b]0;owned\x07\n2026 all is well\u202e"
    failed = events.ObjectFailed(pipeline="p\x1b[2J", object_uri=evil, attempt_id="x", outcome="dead", reason="\x9b31m")
    (here / "w.log").write_text(Log().write(started(evil), failed, skipped(evil)).text)
    for arguments in ((), ("--object", evil)):
        result = penstock("admin", "logs", "diagnose", "w.log", *arguments)
        assert result.exit_code == CHECK_FOUND_PROBLEMS
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(result.out + result.err)
        assert r"\x1b]0;owned\x07\n2026 all is well\u202e" in result.out


def test_since_and_until_select_a_time_window(penstock: Call, here: Path) -> None:
    (here / "w.log").write_text(Log().write(started("early", "1"), started("mid", "2"), started("late", "3")).text)
    window = ("--since", "2025-11-24T16:00:01Z", "--until", "2025-11-24T18:00:02+02:00")
    result = penstock("admin", "logs", "diagnose", "w.log", *window, "--json")
    found = json.loads(result.out)
    assert [one["name"] for one in found["died"]["first"]] == ["mid"]
    assert found["read"]["outside"] == 2


def test_since_accepts_a_duration(penstock: Call, here: Path) -> None:
    old, new = Log(), Log(SystemClock().now() - 60)
    (here / "w.log").write_text(old.write(started("old")).text + new.write(started("new")).text)
    result = penstock("admin", "logs", "diagnose", "w.log", "--since", "1h", "--json")
    assert [one["name"] for one in json.loads(result.out)["died"]["first"]] == ["new"]


def test_compressed_files_and_standard_input_are_read(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Log().write(started("o")).text.encode(), Log(1_764_000_100.0).write(finished("o")).text.encode()
    # the file name's ending does not matter
    (here / "w.log.1").write_bytes(gzip.compress(first[:50]) + gzip.compress(first[50:]))
    for packed in (second, gzip.compress(second)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(packed)))
        result = penstock("admin", "logs", "diagnose", "w.log.1", "-")
        assert result.exit_code == 0, result.out
        assert "Finished: 1 object" in result.out


def test_lines_of_other_programs_are_ignored(penstock: Call, here: Path) -> None:
    (here / "w.log").write_bytes(
        b"hello\n\xff\xfe\n\n" + b"x" * 5_000_000 + b"\n" + Log().write(started("o"), finished("o")).text.encode()[:-1]
    )
    result = penstock("admin", "logs", "diagnose", "w.log")
    assert result.exit_code == 0
    assert "5 lines of 1 file read, 2 of Penstock" in result.err
    assert "3 lines of other programs ignored" in result.err


@pytest.mark.parametrize("content", [b"", b"nothing\nof ours\n"], ids=["empty", "others"])
def test_a_file_without_a_line_of_penstock_is_refused(penstock: Call, here: Path, content: bytes) -> None:
    (here / "w.log").write_bytes(content)
    for arguments in ((), ("--json",), ("--object", "s3://b/o")):
        result = penstock("admin", "logs", "diagnose", "w.log", *arguments)
        assert (result.exit_code, result.out, result.err.count("\n")) == (UNFIT, "", 1)
        assert "nothing to diagnose" in result.err
        assert "PENSTOCK_LOG_FORMAT=json" in result.err


def test_a_time_window_without_lines_is_no_error(penstock: Call, here: Path) -> None:
    (here / "w.log").write_text(Log().write(started("o")).text)
    result = penstock("admin", "logs", "diagnose", "w.log", "--until", "2000-01-01")
    assert result.exit_code == 0
    assert "No line of Penstock is within --since and --until" in result.out


def test_metric_lines_in_a_log_are_recognized(penstock: Call, here: Path) -> None:
    metrics = '{"queue":"q","_aws":{"Timestamp":1,"CloudWatchMetrics":[]},"penstock_messages_received_total":1}\n'
    (here / "w.log").write_text(Log().write(started("o"), finished("o")).text + metrics)
    result = penstock("admin", "logs", "diagnose", "w.log")
    assert result.exit_code == 0
    assert "3 lines of 1 file read, 2 of Penstock" in result.err
    assert "1 line of metrics" in result.err
    assert "other programs" not in result.err


ABOUT: dict[str, Any] = {"queue": "orders", "handler": "take", "attempt": 1}
WORKED: dict[str, Any] = {**ABOUT, "enqueued_at": 1_764_000_000.0, "duration_seconds": 1.0}


def test_messages_that_died_or_failed_finally_are_named(penstock: Call, here: Path) -> None:
    error: dict[str, Any] = {"error_type": "ValueError", "error": "no such order", "traceback": None, "exception": None}
    log = Log().write(
        *(events.MessageStarted(**ABOUT, message_id=name, enqueued_at=1.0) for name in ("lost", "bad", "fine", "slow")),
        events.MessageFailed(**WORKED, message_id="bad", **error, final=True, delay_seconds=None),
        events.MessageFailed(**WORKED, message_id="slow", **error, final=False, delay_seconds=5.0),
        events.MessageFinished(**WORKED, message_id="fine"),
        events.DeliverySettled(
            queue="orders", message_id="bad", attempt=1, settlement=DeadLetter(reason="failed 5 times")
        ),
    )
    (here / "w.log").write_text(log.text)
    result = penstock("admin", "logs", "diagnose", "w.log")
    assert result.exit_code == CHECK_FOUND_PROBLEMS
    assert "Died with their worker: 1 message " in result.out
    assert "Failed: 1 message " in result.out
    found = json.loads(penstock("admin", "logs", "diagnose", "w.log", "--json").out)
    assert [(one["name"], one["place"]) for one in found["died"]["first"]] == [("lost", "orders")]
    assert [(one["name"], one["reason"]) for one in found["failed"]["first"]] == [("bad", "ValueError: no such order")]


def test_missing_ends_of_sampled_logs_cause_a_warning(penstock: Call, here: Path) -> None:
    names = [f"m{number}" for number in range(30)]
    processes = [events.MessageStarted(**ABOUT, message_id=name, enqueued_at=1.0) for name in names]
    (here / "w.log").write_text(Log().write(*processes).text)
    result = penstock("admin", "logs", "diagnose", "w.log")
    assert "far more starts of messages than ends" in result.err


def test_an_object_is_found_by_a_path_that_is_not_utf_8(penstock: Call, here: Path) -> None:
    path = str(here / "landing" / "caf\udce9.jsonl")  # Latin-1
    (here / "w.log").write_text(Log().write(started(uri_of(LOCAL_BUCKET, path)), started("file:///other", "b")).text)
    result = penstock("admin", "logs", "diagnose", "w.log", "--object", path, "--json")
    assert [line["event"] for line in json.loads(result.out)["story"]] == ["object.started"]


def test_an_object_without_log_lines_is_reported(penstock: Call, here: Path) -> None:
    (here / "w.log").write_text(Log().write(started("o")).text)
    result = penstock("admin", "logs", "diagnose", "w.log", "--object", "s3://b/other")
    assert (result.exit_code, result.out) == (CHECK_FOUND_PROBLEMS, "")
    assert "These logs have no line about s3://b/other" in result.err


def test_the_story_of_an_object_includes_the_batches_of_its_attempts(penstock: Call, here: Path) -> None:
    committed: dict[str, Any] = {"seq": 7, "objects": 2, "rows": 9, "lines_quarantined": 0, "bytes": 1, "seconds": 0.1}
    log = Log().write(
        started("s3://b/o"),
        started("other", "b"),
        events.BatchCommitted(pipeline="p", attempt_id="a", **committed),
        events.BatchCommitted(pipeline="p", attempt_id="b", **committed),
        finished("s3://b/o"),
    )
    (here / "w.log").write_text(log.text)
    found = penstock("admin", "logs", "diagnose", "w.log", "--object", "s3://b/o", "--json").document
    assert [line["event"] for line in found["story"]] == ["object.started", "batch.committed", "object.finished"]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        pytest.param("nowhere.log", None, "There is no file nowhere.log", id="none"),
        pytest.param(".", None, "is a folder", id="folder"),
        pytest.param("cut.gz", gzip.compress(b"x" * 10_000)[:-20], "ends in the middle", id="cut"),
        pytest.param("torn.gz", b"\x1f\x8b" + b"\0" * 100, "is damaged", id="torn"),
    ],
)
def test_an_unreadable_file_is_a_usage_error_in_one_line(
    penstock: Call, here: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (here / name).write_bytes(content)
    result = penstock("admin", "logs", "diagnose", name)
    assert result.exit_code == UNFIT
    assert result.err.count("\n") == 1
    assert words in result.err


@pytest.mark.parametrize("text", ["yesterday", "2026-13-01", "-1h", ""])
def test_an_invalid_time_is_a_usage_error(penstock: Call, here: Path, text: str) -> None:
    (here / "w.log").write_text("")
    result = penstock("admin", "logs", "diagnose", "w.log", f"--since={text}")
    assert result.exit_code == UNFIT
    assert "is not a time" in result.err
