"""The history of charts: slots, rings, two writers, broken files, and kills."""

import os
import signal
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.app.history import file as history_files
from penstock.app.history import ring
from penstock.app.history.chart import chart_of
from penstock.app.history.file import ASIDE_MAX, HISTORY_FILE, identity_of, reading, set_aside, transaction
from penstock.app.history.history import HistoryReader, HistoryWriter
from penstock.app.history.points import HistorySample, PipelinePoint, QueuePoint, SeriesKind
from penstock.app.history.ring import HistoryRange
from penstock.events import Event, HistoryRecovered, HistorySetAside, HistoryUnwritable

START = 1_700_000_400.0  # at the beginning of a slot of each ring
HOSTILE = ("a'; DROP TABLE series; --", "\ud800", "q\x00\n\x1b[31m", "キュー", "", "x" * 5_000)


class Files:
    """The history in a data directory, with the events of its writers."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / HISTORY_FILE
        self.folder = str(folder)
        self.events: list[Event] = []
        self.reader = HistoryReader(self.folder, measured_every_seconds=20)

    def writer(self) -> HistoryWriter:
        return HistoryWriter(self.folder, emit=self.events.append)

    def values(
        self, field: str, range_: HistoryRange = HistoryRange.HOUR, *, queue: str = "q", at: float = START
    ) -> dict[float, float | None]:
        chart = self.reader.chart(SeriesKind.QUEUE, queue, range_, at=at)
        assert chart.error is None
        return dict(zip(chart.times, chart.values.get(field, ()), strict=False))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def sample(at: float, **given: float | None) -> HistorySample:
    return HistorySample(at=at, queues={"q": QueuePoint(**given)})


def test_a_slot_is_ten_seconds_and_keeps_its_first_value(files: Files) -> None:
    writer = files.writer()
    for seconds, visible in ((0, 1), (9, 2), (10, 3), (31, 4)):
        writer.write(sample(START + seconds, visible=visible))
    assert files.values("visible", at=START + 60) == {START: 1, START + 10: 3, START + 30: 4}


def test_of_two_writers_of_a_slot_the_first_wins_and_the_second_adds_unknown_values(files: Files) -> None:
    files.writer().write(sample(START, visible=1))
    files.writer().write(
        HistorySample(
            at=START + 3,
            queues={"q": QueuePoint(visible=7, settled_per_second=2.5), "other": QueuePoint(visible=8)},
            pipelines={"q": PipelinePoint(processed=9)},
        )
    )
    at = START + 5
    assert files.values("visible", at=at) == {START: 1}
    assert files.values("settled_per_second", at=at) == {START: 2.5}
    assert files.values("visible", queue="other", at=at) == {START: 8}
    pipeline = files.reader.chart(SeriesKind.PIPELINE, "q", HistoryRange.HOUR, at=at)
    assert (pipeline.values["processed"], pipeline.values["failed"]) == ([9], [None])


def test_coarse_slots_keep_the_highest_count_and_the_mean_rate(files: Files) -> None:
    writer = files.writer()
    for number in range(61):
        peak = 500 if number == 3 else 5
        writer.write(sample(START + 10 * number, visible=peak, settled_per_second=number % 2))
    with reading(files.path) as connection:
        assert connection is not None
        row = ring._ids(connection)[SeriesKind.QUEUE, b"q"]
        for coarse, slots in ((ring.RINGS[1], 10), (ring.RINGS[2], 1)):
            assert len(ring._rows(connection, coarse, row // 64, since=0, until=START + 900)) == slots
    day = files.values("visible", HistoryRange.DAY, at=START + 610)
    assert day == {START: 500, **{START + 60 * minute: 5 for minute in range(1, 11)}}
    assert files.values("visible", HistoryRange.WEEKS, at=START + 610) == {START: 500, START + 600: 5}
    rates = files.values("settled_per_second", HistoryRange.DAY, at=START + 610)
    assert rates[START] == pytest.approx(0.5)


def test_the_latest_values_are_in_every_range_before_they_are_rolled_up(files: Files) -> None:
    files.writer().write(sample(START + 20, visible=4))
    for range_ in HistoryRange:
        assert list(files.values("visible", range_, at=START + 25).values()) == [4]


def test_slots_are_forgotten_after_their_time(files: Files) -> None:
    writer = files.writer()
    writer.write(sample(START, visible=1))
    writer.write(sample(START + 3_650, visible=2))
    assert list(files.values("visible", at=START + 3_650).values()) == [2]
    assert list(files.values("visible", HistoryRange.DAY, at=START + 3_650).values()) == [1, None, 2]
    writer.write(sample(START + 15 * 86_400, visible=3))
    writer.write(sample(START + 30 * 86_400, visible=4))
    with transaction(files.path) as connection:
        (rows,) = connection.execute("SELECT COUNT(*) FROM points").fetchone()
    assert rows == 1


def test_a_queue_that_is_not_seen_any_more_is_forgotten(files: Files) -> None:
    writer = files.writer()
    writer.write(sample(START, visible=1))
    for day in range(1, 20):
        writer.write(HistorySample(at=START + day * 86_400, queues={"other": QueuePoint(visible=2)}))
    with transaction(files.path) as connection:
        assert [name for (name,) in connection.execute("SELECT name FROM series")] == [b"other"]


def test_slots_of_a_clock_that_ran_ahead_are_deleted(files: Files) -> None:
    files.writer().write(sample(START + 86_400 * 365, visible=9))
    files.writer().write(sample(START, visible=1))
    assert files.values("visible", at=START + 86_400 * 365) == {}
    assert files.values("visible", at=START) == {START: 1}


def test_a_pause_is_a_gap_of_the_chart(files: Files) -> None:
    writer = files.writer()
    for seconds in (0, 20, 40, 300, 320):
        writer.write(sample(START + seconds, visible=1))
    assert list(files.values("visible", at=START + 400).values()) == [1, 1, 1, None, 1, 1]


def test_a_chart_has_a_summary_in_numbers() -> None:
    chart = chart_of(
        [(0.0, (3.0, None)), (10.0, (1.0, None)), (20.0, (2.0, None))], ["a", "b"], slot_seconds=10, gap_seconds=30
    )
    summary = chart.summary("a")
    assert summary is not None
    assert (summary.latest, summary.lowest, summary.highest) == (2.0, 1.0, 3.0)
    assert chart.summary("b") is None


def test_many_queues_with_any_names_each_keep_their_own_values(files: Files) -> None:
    names = [*HOSTILE, *(f"queue-{number}" for number in range(300))]
    queues = {name: QueuePoint(visible=number, delayed=None) for number, name in enumerate(names)}
    files.writer().write(HistorySample(at=START, queues=queues))
    for number, name in enumerate(names):
        assert files.values("visible", queue=name) == {START: number}
    lines = files.reader.sparklines(SeriesKind.QUEUE, "visible", at=START + 120)
    assert lines[names[7]] == []  # minutes are not complete yet
    files.writer().write(HistorySample(at=START + 60, queues=queues))
    lines = files.reader.sparklines(SeriesKind.QUEUE, "visible", at=START + 120)
    assert {name: values for name, ((_, values),) in lines.items()} == {name: n for n, name in enumerate(names)}


def test_whole_numbers_stay_exact_and_huge_ones_nearly(files: Files) -> None:
    files.writer().write(sample(START, visible=65_535, delayed=3e9, in_flight=1e300))
    chart = files.reader.chart(SeriesKind.QUEUE, "q", HistoryRange.HOUR, at=START)
    assert chart.values["visible"] == [65_535]
    assert chart.values["delayed"][0] == pytest.approx(3e9, rel=1e-4)
    assert chart.values["in_flight"][0] == pytest.approx(1e38, rel=1e-2)


def test_no_more_series_are_recorded_than_the_limit(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ring, "SERIES_MAX", 3)
    files.writer().write(HistorySample(at=START, queues={f"q{n}": QueuePoint(visible=n) for n in range(9)}))
    assert files.values("visible", queue="q2") == {START: 2}
    assert files.values("visible", queue="q3") == {}


def test_nothing_is_created_without_a_data_directory(tmp_path: Path) -> None:
    files = Files(tmp_path / "missing")
    files.writer().write(sample(START, visible=1))
    assert list(tmp_path.iterdir()) == []
    assert files.values("visible") == {}
    assert files.events == []


def test_only_the_owner_can_read_the_file(files: Files) -> None:
    before = os.umask(0)
    try:
        files.writer().write(sample(START, visible=1))
    finally:
        os.umask(before)
    for path in files.path.parent.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def _garbage(path: Path) -> None:
    path.write_bytes(b"not a database" * 1_000)


def _foreign(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE customers (name TEXT)")
    connection.close()


def _without_tables(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA application_id = {history_files._APPLICATION_ID}")
        connection.execute("PRAGMA user_version = 1")
    connection.close()


def _truncated(path: Path) -> None:
    Files(path.parent).writer().write(
        HistorySample(at=START, queues={f"q{n}": QueuePoint(visible=n) for n in range(2_000)})
    )
    with path.open("r+b") as opened:
        opened.truncate(9_000)


def _unreadable_row(path: Path) -> None:
    Files(path.parent).writer().write(sample(START, visible=1))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE points SET packed = x'00'")
    connection.close()


BROKEN = {
    "garbage": _garbage,
    "foreign": _foreign,
    "without tables": _without_tables,
    "truncated": _truncated,
    "unreadable row": _unreadable_row,
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_or_foreign_file_is_set_aside_with_one_event(files: Files, how: str) -> None:
    BROKEN[how](files.path)
    before = files.path.read_bytes()
    writer = files.writer()
    writer.write(sample(START + 1, visible=2))
    (event,) = files.events
    assert isinstance(event, HistorySetAside)
    assert Path(event.aside).read_bytes() == before
    assert files.values("visible", at=START + 5) == {START: 2}
    writer.write(sample(START + 11, visible=3))
    assert len(files.events) == 1


def test_a_reader_of_a_broken_file_says_so(files: Files) -> None:
    _garbage(files.path)
    chart = files.reader.chart(SeriesKind.QUEUE, "q", HistoryRange.HOUR, at=START)
    assert chart.error is not None
    assert "damaged" in chart.error
    assert files.reader.sparklines(SeriesKind.QUEUE, "visible", at=START) == {}


def test_a_file_that_another_writer_has_replaced_is_not_set_aside(files: Files) -> None:
    """Two writers find the same broken file; the slower one must not rename the new file of the other."""
    _garbage(files.path)
    broken = identity_of(files.path)
    files.writer().write(sample(START, visible=1))
    assert set_aside(files.path, broken) is None
    assert files.values("visible") == {START: 1}
    files.path.unlink()
    assert set_aside(files.path, broken) is None


def test_the_journal_of_a_file_that_another_writer_creates_meanwhile_stays(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    _garbage(files.path)
    rename = Path.rename

    def rename_and_write(path: Path, target: Path) -> Path:
        renamed = rename(path, target)
        if path == files.path:
            files.writer().write(sample(START, visible=1))
        return renamed

    monkeypatch.setattr(Path, "rename", rename_and_write)
    assert set_aside(files.path, identity_of(files.path)) is not None
    assert files.path.with_name(f"{HISTORY_FILE}-journal").exists()
    assert files.values("visible") == {START: 1}


def test_files_set_aside_have_a_bound(files: Files) -> None:
    writer = files.writer()
    for number in range(ASIDE_MAX + 2):
        _garbage(files.path)
        writer.write(sample(START + 10 * number, visible=1))
    aside = [path for path in files.path.parent.glob("*.aside-*") if not path.name.endswith("-journal")]
    assert len(aside) == ASIDE_MAX
    assert isinstance(files.events[-1], HistoryUnwritable)
    assert len(files.events) == ASIDE_MAX + 1


def test_the_file_of_a_newer_version_is_left_alone(files: Files) -> None:
    files.writer().write(sample(START, visible=1))
    with sqlite3.connect(files.path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    before = files.path.read_bytes()
    files.writer().write(sample(START + 10, visible=2))
    (event,) = files.events
    assert isinstance(event, HistoryUnwritable)
    assert "newer Penstock" in event.error
    assert files.path.read_bytes() == before


def test_a_file_that_cannot_be_written_is_one_event_until_it_can(files: Files) -> None:
    files.path.mkdir()
    writer = files.writer()
    for number in range(3):
        writer.write(sample(START + 10 * number, visible=1))
    files.path.rmdir()
    writer.write(sample(START + 40, visible=1))
    writer.write(sample(START + 50, visible=1))
    assert [type(event) for event in files.events] == [HistoryUnwritable, HistoryRecovered]


def test_a_folder_that_cannot_be_searched_is_an_event(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "is_dir", refuse)
    monkeypatch.setattr(Path, "is_file", refuse)
    files.writer().write(sample(START, visible=1))
    (event,) = files.events
    assert isinstance(event, HistoryUnwritable)
    assert "Permission denied" in event.error
    error = files.reader.chart(SeriesKind.QUEUE, "q", HistoryRange.HOUR, at=START).error
    assert error is not None
    assert "Permission denied" in error


def test_a_link_to_another_file_is_not_followed(files: Files, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    files.path.symlink_to(target)
    files.writer().write(sample(START, visible=1))
    assert not target.exists()
    assert isinstance(files.events[0], HistoryUnwritable)


KILLED = """
import os, signal, sys
from penstock.app.history import ring
from penstock.app.history.history import HistoryWriter
from penstock.app.history.points import HistorySample, QueuePoint

start, kill_at = float(sys.argv[2]), int(sys.argv[3])
writes = 0
put = ring._put

def killing_put(connection, key, row):
    global writes
    writes += 1
    put(connection, key, row)
    if writes == kill_at:
        connection.execute("PRAGMA cache_spill = 1")
        os.kill(os.getpid(), signal.SIGKILL)

ring._put = killing_put
writer = HistoryWriter(sys.argv[1], emit=print)
for number in range(100):
    queues = {f"q{one}": QueuePoint(visible=number) for one in range(200)}
    writer.write(HistorySample(at=start + 10 * number, queues=queues))
"""


@pytest.mark.parametrize("kill_at", [1, 2, 5, 30])
def test_after_a_kill_between_two_rows_a_slot_is_there_as_a_whole_or_not(files: Files, kill_at: int) -> None:
    command = [sys.executable, "-c", KILLED, files.folder, str(START), str(kill_at)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    files.writer().write(
        HistorySample(at=START + 2_000, queues={f"q{one}": QueuePoint(visible=1_000) for one in range(200)})
    )
    assert files.events == []
    counts = {tuple(files.values("visible", queue=f"q{one}", at=START + 2_000).values()) for one in range(200)}
    (written,) = counts  # all queues have the same slots
    assert written[-1] == 1_000
    with transaction(files.path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


WRITING = """
import sys
from penstock.app.history.history import HistoryWriter
from penstock.app.history.points import HistorySample, QueuePoint

folder, start, mine = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
writer = HistoryWriter(folder, emit=lambda event: sys.exit(str(event)))
for number in range(60):
    queues = {f"q{one}": QueuePoint(visible=mine, delayed=mine) for one in range(100)}
    writer.write(HistorySample(at=start + 10 * number, queues=queues))
"""


def test_two_processes_write_the_same_slots(files: Files) -> None:
    commands = [[sys.executable, "-c", WRITING, files.folder, str(START), str(mine)] for mine in (1, 2)]
    processes = [subprocess.Popen(command) for command in commands]
    assert [process.wait(60) for process in processes] == [0, 0]
    for one in (0, 99):
        at = START + 600
        visible = files.values("visible", queue=f"q{one}", at=at)
        assert len(visible) == 60
        assert set(visible.values()) <= {1, 2}
        assert visible == files.values("delayed", queue=f"q{one}", at=at)  # no slot has values of both
