"""The progress of an ingest on a terminal, from generated events."""

import dataclasses
import io
import re
import sys
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from penstock.app.pipelines.running import RunReport
from penstock.cli.ingest import print_report
from penstock.cli.progress import FAILURES_SHOWN, LINE_EVERY_SECONDS, IngestProgress, event_lines, merged
from penstock.cli.run import print_run_report
from penstock.events import (
    BatchCommitted,
    BatchProgressed,
    Bus,
    DeliveryAcked,
    DeliverySettled,
    Event,
    ExecutionFailed,
    HeartbeatFailed,
    JobFailed,
    ObjectFailed,
    ObjectFinished,
    ObjectStarted,
    ReceiveFailed,
    SourceScanned,
    WatchStarted,
    WorkerDraining,
    WorkerStopped,
)
from penstock.events.batches import MERGE_EFFECTS
from penstock.operations.ingest.ingest import IngestReport

REPORT = IngestReport(
    queue=None,
    objects_found=3,
    objects_processed=2,
    objects_skipped=1,
    objects_dead=0,
    objects_gone=0,
    objects_superseded=0,
    objects_unfinished=0,
    objects_new_versions=0,
    files_ignored={},
    rows_written=1_234,
    lines_quarantined=0,
    batches=1,
    seconds=1.25,
    table="/lake/clicks",
    table_version=4,
    quarantine_table=None,
    schema="id BIGINT",
    stopped=False,
    problems=(),
)

RUN = RunReport(
    pipeline="clicks",
    objects_found=None,
    objects_skipped=None,
    objects_processed=1,
    objects_dead=0,
    objects_gone=0,
    objects_superseded=0,
    messages_left=0,
    rows_written=1,
    lines_quarantined=0,
    batches=1,
    seconds=1.0,
    table="/lake/clicks",
    table_version=1,
    quarantine_table=None,
    stopped=False,
    problems=(),
)


def failed(number: int, *, outcome: str = "dead", reason: str = "it is bad") -> ObjectFailed:
    return ObjectFailed(pipeline="p", object_uri=f"file:///in/{number}", attempt_id="a", outcome=outcome, reason=reason)


def committed(objects: int, rows: int, lines_quarantined: int = 0) -> BatchCommitted:
    return BatchCommitted(
        pipeline="p",
        attempt_id="a",
        seq=1,
        objects=objects,
        rows=rows,
        lines_quarantined=lines_quarantined,
        bytes=rows * 10,
        seconds=0.1,
    )


def printed_lines(
    capsys: pytest.CaptureFixture[str], *events: Event, monotonic: Callable[[], float] = time.monotonic
) -> list[str]:
    with IngestProgress(monotonic=monotonic) as listener:
        for event in events:
            listener(event)
    captured = capsys.readouterr()
    assert captured.out == "", "progress goes to stderr"
    return captured.err.splitlines()


def test_each_batch_prints_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed_lines(capsys, SourceScanned(source="/in", found=1, unfinished=1), committed(1, 2_000, 3)) == [
        "1 object found in /in, 1 to do",
        "batch 1 committed: 1 object, 2,000 rows, 3 lines quarantined",
    ]


def test_messages_in_the_queue_are_reported_with_the_scan(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed_lines(capsys, SourceScanned(source="/in", found=3, unfinished=0, messages=1)) == [
        "3 objects found in /in, 0 to do, 1 message in the queue"
    ]


def test_a_failure_names_its_object_once(capsys: pytest.CaptureFixture[str]) -> None:
    own = failed(1, outcome="retry", reason="file:///in/1 is a truncated gzip")
    assert printed_lines(capsys, own, failed(2)) == [
        "to be retried: file:///in/1 is a truncated gzip",
        "dead: file:///in/2: it is bad",
    ]


def test_the_number_of_printed_failures_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    lines = printed_lines(capsys, *(failed(number) for number in range(FAILURES_SHOWN + 100)))
    assert len(lines) == FAILURES_SHOWN + 1
    assert "objects list" in lines[-1]


def test_hostile_text_is_printed_escaped_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed_lines(capsys, failed(1, reason="\x1b[2J[red]two\nlines"))
    assert line.endswith("\\x1b[2J[red]two\\nlines")


def test_a_batch_that_replaces_rows_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    replacing = dataclasses.replace(committed(2, 3), replaced_objects=1, replaced_rows=2)
    assert printed_lines(capsys, replacing) == ["batch 1 committed: 2 objects, 3 rows, 2 earlier rows replaced"]


def test_progress_within_a_batch_is_reported_at_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    now = iter([100.0, 101.0, 100.0 + LINE_EVERY_SECONDS])
    steps = [BatchProgressed(pipeline="p", attempt_id="a", tasks_done=done, tasks=9) for done in (1, 2, 3)]
    lines = printed_lines(capsys, *steps, monotonic=lambda: next(now))
    assert [line.rpartition(": ")[2] for line in lines] == ["1 of 9 tasks", "3 of 9 tasks"]


@pytest.mark.parametrize(
    ("found", "done", "line"),
    [
        (1, 0, "0 of 1 object, 0 rows; this batch: 1 of 9 tasks"),
        (1, 1, "1 object, 1 row; this batch: 1 of 9 tasks"),
        (5, 1, "1 of 5 objects, 1 row; this batch: 1 of 9 tasks"),
        (0, 2, "2 objects, 2 rows; this batch: 1 of 9 tasks"),
    ],
)
def test_progress_within_a_batch_counts_in_the_right_number(
    capsys: pytest.CaptureFixture[str], found: int, done: int, line: str
) -> None:
    events: list[Event] = [SourceScanned(source="/in", found=found, unfinished=found)]
    events += [committed(done, done)] if done else []
    lines = printed_lines(capsys, *events, BatchProgressed(pipeline="p", attempt_id="a", tasks_done=1, tasks=9))
    assert lines[-1] == line


@pytest.mark.parametrize(("number", "shown"), [(1, "1/1 object, 1 row"), (2, "2/2 objects, 2 rows")])
def test_the_progress_bar_counts_in_the_right_number(monkeypatch: pytest.MonkeyPatch, number: int, shown: str) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with IngestProgress() as listener:
        listener(committed(number, number))
    assert shown in re.sub(r"\x1b\[\d+m", "", terminal.getvalue())


def test_a_stop_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = printed_lines(capsys, WorkerDraining(reason="signal", in_flight=2))
    assert line == "stopping: 2 messages in flight will be finished or released"


def test_events_of_each_object_that_are_not_shown_are_not_made() -> None:
    bus = Bus(IngestProgress())
    assert not any(bus.wants(kind) for kind in (ObjectStarted, ObjectFinished, DeliveryAcked, DeliverySettled))
    assert all(bus.wants(kind) for kind in (ObjectFailed, BatchCommitted, WorkerStopped))


@pytest.mark.parametrize(("outcome", "forced"), [("drained", False), ("interrupted", False), ("forced", True)])
def test_the_listener_records_a_forced_end(outcome: str, forced: bool) -> None:
    listener = IngestProgress()
    listener(WorkerStopped(outcome=outcome, released=()))
    assert listener.forced is forced


def test_a_closed_terminal_does_not_end_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    class ClosedTerminal:
        encoding = "utf-8"

        def write(self, text: str) -> int:
            raise BrokenPipeError

        def flush(self) -> None:
            raise BrokenPipeError

        def isatty(self) -> bool:
            return False

    monkeypatch.setattr(sys, "stderr", ClosedTerminal())
    with IngestProgress() as listener:
        listener(committed(1, 2))
        listener(WorkerStopped(outcome="forced", released=()))
    assert listener.forced


def test_a_terminal_shows_a_progress_bar_below_the_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    with IngestProgress() as listener:
        listener(SourceScanned(source="/in", found=40, unfinished=40))
        listener(failed(1, reason="\x1b[2J[red]bad"))
        listener(committed(39, 2_000))
    shown = re.sub(r"\x1b\[\d+m", "", terminal.getvalue())
    assert "batch 1 committed: 39 objects, 2,000 rows" in shown
    assert "dead: file:///in/1: \\x1b[2J[red]bad" in shown
    assert "40/40 objects, 2,000 rows" in shown
    assert shown.endswith("\x1b[?25h\r\x1b[1A\x1b[2K"), "the cursor is restored and the bar removed"


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({}, "2 objects processed, 1 skipped (already in the table), 1,234 rows written in 1 batch, 1.2 s."),
        ({"objects_processed": 0, "objects_skipped": 3}, "Nothing new: all 3 objects are in the table already. 0 rows"),
        (
            {"objects_found": 1, "objects_processed": 0, "objects_skipped": 1},
            "Nothing new: the only object is in the table already. 0 rows added.",
        ),
        ({"objects_found": 0, "objects_skipped": 0, "table_version": None}, "Nothing to do: the source holds no"),
        ({}, "Table: /lake/clicks (version 4)"),
        ({"table_version": None}, "(no version yet)"),
        (
            {"objects_found": 1, "objects_processed": 0, "objects_replayed": 1, "rows_written": 4},
            "0 objects processed, 1 skipped (already in the table), 4 rows written in 1 batch, 1.2 s.",
        ),
        ({"objects_replayed": 2}, "Replayed: the bad lines of 2 objects."),
        ({"lines_quarantined": 1, "quarantine_table": "/q"}, "Quarantined: 1 bad line, in /q"),
        (
            {"unknown_fields": {"x": 5}, "unknown_objects": 1},
            "1 unknown field in 1 object: x (5 rows); `penstock objects show OBJECT` has those of one object.",
        ),
        (
            {"unknown_fields": {f"f{n}": 9 - n for n in range(7)}, "unknown_objects": 12},
            "7 unknown fields in 12 objects: f0 (9 rows), f1 (8 rows), f2 (7 rows), f3 (6 rows), f4 (5 rows) and",
        ),
        (
            {"wrong_type_fields": {"amount": 400, "id": 1}, "wrong_type_objects": 1},
            "Values of another type than their column in 1 object, kept in _rescued: amount (400 rows), id (1 row); `",
        ),
        ({"objects_dead": 2}, "Dead: 2 objects; `penstock objects list --only dead` shows why."),
        ({"objects_gone": 1}, "Gone: 1 object, deleted before it was read."),
        ({"objects_gone": 2}, "Gone: 2 objects, deleted before they were read."),
        ({"objects_superseded": 1}, "Superseded: 1 object, changed before it was read; run the command again for it."),
        ({"objects_superseded": 2}, "2 objects, changed before they were read; run the command again for them."),
        ({"objects_unfinished": 2}, "Stopped with 2 objects left; run the same command again"),
        (
            {"objects_changed": 2},
            "2 files had changed: all their lines were added, and the rows of their earlier versions stay.",
        ),
        (
            {"objects_changed": 1},
            "1 file had changed: all its lines were added, and the rows of its earlier version stay.",
        ),
        ({"replaced_objects": 1, "replaced_rows": 2}, "1 file changed: its 2 earlier rows were replaced."),
        ({"replaced_objects": 1, "replaced_rows": 1}, "1 file changed: its 1 earlier row was replaced."),
        ({"replaced_objects": 2, "replaced_rows": 1_200}, "2 files changed: their 1,200 earlier rows were replaced."),
        ({"replaced_objects": 1}, "1 file changed: its earlier version had no rows."),
        (
            {"objects_reread": 1, "replaced_objects": 1, "replaced_rows": 2},
            "\n1 object read again: its 2 earlier rows were replaced.\n",
        ),
        (
            {"objects_reread": 2, "replaced_objects": 3, "replaced_rows": 7},
            "\n2 objects read again, and 1 file changed: their 7 earlier rows were replaced.\n",
        ),
        (
            {"objects_reread": 2, "replaced_objects": 2, "replaced_rows": 1},
            "\n2 objects read again: their 1 earlier row was replaced.\n",
        ),
        ({"objects_reread": 2}, "\n2 objects read again: the table had none of their rows.\n"),
        ({"grown_objects": 1, "appended_rows": 2}, "1 file grew: 2 rows were appended."),
        ({"grown_objects": 2, "appended_rows": 1}, "2 files grew: 1 row was appended."),
        ({"replaced_objects": 2}, "2 files changed: their earlier versions had no rows."),
        (
            {"objects_skipped": 3, "replaced_objects": 1, "replaced_rows": 2},
            "An interrupted run is finished: all 3 objects are in the table.",
        ),
        ({"files_ignored": {"hidden": 3}}, "Left out: 3 hidden."),
        (
            {"files_ignored": {"excluded": 9, "hidden": 1}, "folders_excluded": ("s3://b/t",)},
            "Left out: the files below 1 table (s3://b/t), 1 hidden.",
        ),
        (
            {"files_ignored": {"excluded": 5}, "folders_excluded": ("/a", "/b", "/c", "/d", "/e")},
            "Left out: the files below 5 tables (/a, /b, /c, and 2 more).",
        ),
        ({"problems": ("\x1b[2J: no",)}, "Could not be checked: \\x1b[2J: no"),
    ],
)
def test_the_report_shows_results_and_the_commands_for_details(
    capsys: pytest.CaptureFixture[str], changes: dict[str, object], part: str
) -> None:
    print_report(dataclasses.replace(REPORT, **changes))  # type: ignore[arg-type]  # each value is of its field's type
    assert part in capsys.readouterr().out


WARNING = "Warning: 1,200 bad lines in 2 objects, over 5% of their lines; `penstock quarantine list --warnings` shows"


def test_a_warning_is_the_last_line_of_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(dataclasses.replace(REPORT, warned_objects=2, warned_lines=1_200, problems=("no",)))
    assert capsys.readouterr().out.splitlines()[-1].startswith(WARNING)
    print_run_report(dataclasses.replace(RUN, warned_objects=2, warned_lines=1_200, messages_left=1))
    assert capsys.readouterr().out.splitlines()[-1].startswith(WARNING)


@pytest.mark.parametrize(
    ("superseded", "line"),
    [
        (1, "Superseded: 1 object, changed before it was read."),
        (2, "Superseded: 2 objects, changed before they were read."),
    ],
)
def test_the_report_of_a_run_counts_superseded_objects(
    capsys: pytest.CaptureFixture[str], superseded: int, line: str
) -> None:
    print_run_report(dataclasses.replace(RUN, objects_superseded=superseded))
    assert line in capsys.readouterr().out.splitlines()


def test_the_report_of_a_run_counts_replaced_rows(capsys: pytest.CaptureFixture[str]) -> None:
    print_run_report(dataclasses.replace(RUN, replaced_objects=1, replaced_rows=2))
    assert "1 file changed: its 2 earlier rows were replaced." in capsys.readouterr().out.splitlines()
    print_run_report(RUN)
    assert "changed" not in capsys.readouterr().out


def test_hints_name_a_table_outside_the_current_folder(capsys: pytest.CaptureFixture[str]) -> None:
    print_report(dataclasses.replace(REPORT, objects_dead=2), options=" --table /lake/clicks")
    assert "`penstock objects list --table /lake/clicks --only dead` shows why." in capsys.readouterr().out


@pytest.mark.parametrize(
    "event",
    [
        ExecutionFailed(handler="h", message_ids=("m",), error="OSError: away"),
        JobFailed(job="h", error="OSError: away"),
        ReceiveFailed(queue="q", error="OSError: away"),
        HeartbeatFailed(queue="q", error="OSError: away"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_repeated_retries_are_reported(event: Event) -> None:
    [line] = event_lines(event)
    assert "retried: OSError: away" in line


def test_the_start_of_watching_is_reported() -> None:
    assert event_lines(WatchStarted(source="s3://landing/in")) == ["watching s3://landing/in; Ctrl-C ends it"]


@pytest.mark.parametrize(
    ("rows", "sentences"),
    [
        ({}, []),
        (dict.fromkeys(MERGE_EFFECTS, 0), []),
        (
            {**dict.fromkeys(MERGE_EFFECTS, 0), "left_out": 1},
            ["Merged by key: 0 rows inserted, 0 updated, 0 deleted, 1 older one left out."],
        ),
    ],
)
def test_a_merge_without_rows_is_not_mentioned(rows: dict[str, int], sentences: list[str]) -> None:
    assert merged(replace(REPORT, merged_rows=rows)) == sentences
