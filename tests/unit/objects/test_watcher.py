"""The watcher: stable files are returned, changing files wait, the next walk finds files without a notification."""

import os
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path

import pytest

from penstock.messaging.clock import SystemClock
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import Scanner
from penstock.objects.watcher import RESCAN_SECONDS, Watcher, folder_changes
from penstock.testing import FakeClock

QUIET_SECONDS = 2.0
LONG_AGO = 1_600_000_000

Step = Callable[[], Collection[Path]]  # changes the folder and returns the paths of its notifications


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path.resolve() / "in"
    folder.mkdir()
    return folder


class Scenario:
    """A watched folder, a clock, and a list of steps, one each half second."""

    def __init__(self, folder: Path, *, excluded: Collection[Path] = ()) -> None:
        self.folder = folder
        self.clock = FakeClock(auto_advance=True)
        self.ended = threading.Event()
        self.warnings: list[str] = []
        self._steps: list[Step] = []
        self.watcher = Watcher(
            folder,
            store=LocalStore(folder),
            excluded=excluded,
            clock=self.clock,
            warn=self.warnings.append,
            settle_seconds=QUIET_SECONDS,
            changes=self._changes,
        )

    def then(self, step: Step) -> "Scenario":
        self._steps.append(step)
        return self

    def wait(self, seconds: float = QUIET_SECONDS) -> "Scenario":
        for _ in range(int(seconds / 0.5)):
            self.then(lambda: ())
        return self

    def stable(self) -> list[tuple[float, str]]:
        """Run all steps and return the time and name of each stable file."""
        found: list[tuple[float, str]] = []
        for stable in self.watcher.stable(self.ended):
            found += [(self.clock.monotonic(), os.path.relpath(ref.key, self.folder)) for ref in stable]
        return found

    def _changes(self, watched: bytes, ended: threading.Event) -> Iterator[Collection[bytes]]:
        assert (watched, ended) == (os.fsencode(self.folder), self.ended)
        yield ()  # the system watches from here on
        while self._steps:
            self.clock.advance(0.5)
            yield [os.fsencode(path) for path in self._steps.pop(0)()]
        self.ended.set()


def write(path: Path, content: bytes = b"x\n", *, modified: float | None = None) -> Step:
    def step() -> Collection[Path]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)
        if modified is not None:
            os.utime(path, (modified, modified))
        return [path]

    return step


def test_a_new_file_is_returned_after_the_quiet_period(folder: Path) -> None:
    assert Scenario(folder).then(write(folder / "a")).wait(4).stable() == [(0.5 + QUIET_SECONDS, "a")]


def test_a_file_being_written_waits_until_the_writes_end(folder: Path) -> None:
    scenario = Scenario(folder)
    for _ in range(8):
        scenario.then(write(folder / "a"))
    assert scenario.wait(4).stable() == [(4.0 + QUIET_SECONDS, "a")]


def test_a_write_without_a_notification_restarts_the_quiet_period(folder: Path) -> None:
    def unnoticed() -> Collection[Path]:
        write(folder / "a")()
        return ()

    scenario = Scenario(folder).then(write(folder / "a")).wait(1).then(unnoticed).wait(6)
    assert scenario.stable() == [(0.5 + 2 * QUIET_SECONDS, "a")], (
        "it had changed at the end of its quiet period, which starts again"
    )


def test_a_file_deleted_within_its_quiet_period_is_forgotten(folder: Path) -> None:
    def deleted() -> Collection[Path]:
        (folder / "a").unlink()
        return [folder / "a"]

    assert Scenario(folder).then(write(folder / "a")).wait(1).then(deleted).wait(4).stable() == []


def test_a_renamed_file_is_returned_under_its_final_name_only(folder: Path) -> None:
    def renamed() -> Collection[Path]:
        (folder / ".a.tmp").rename(folder / "a")
        return [folder / ".a.tmp", folder / "a"]

    scenario = Scenario(folder).then(write(folder / ".a.tmp")).wait(4).then(renamed).wait(4)
    assert [name for _, name in scenario.stable()] == ["a"]


def test_all_files_of_a_folder_moved_in_are_returned(folder: Path) -> None:
    def moved() -> Collection[Path]:
        (folder.parent / "new").rename(folder / "new")
        return [folder / "new"]

    write(folder.parent / "new" / "deep" / "a")()
    write(folder.parent / "new" / "b")()
    assert sorted(name for _, name in Scenario(folder).then(moved).wait(4).stable()) == ["new/b", "new/deep/a"]


@pytest.mark.parametrize("name", [".hidden", ".dir/a", "table/a", "out/a", "table"])
def test_files_that_the_scanner_skips_are_skipped(folder: Path, name: str) -> None:
    (folder / "table" / "_delta_log").mkdir(parents=True)
    touched = folder / name if name != "table" else folder / "table" / "b"
    scenario = Scenario(folder, excluded=[folder / "out"]).then(write(touched)).wait(4)
    assert scenario.stable() == []


def test_a_folder_behind_a_link_is_skipped(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    (folder / "link").symlink_to(folder.parent / "elsewhere")
    assert Scenario(folder).then(write(folder / "link" / "a")).wait(4).stable() == []


def test_existing_files_are_returned_at_once_unless_recently_modified(folder: Path) -> None:
    write(folder / "old", modified=LONG_AGO)()
    write(folder / "fresh")()
    assert Scenario(folder).wait(4).stable() == [(0.0, "old"), (QUIET_SECONDS, "fresh")]


def test_a_file_dated_before_1970_is_found_by_the_walk(folder: Path) -> None:
    write(folder / "old", modified=-86_400)()
    assert Scenario(folder).stable() == [(0.0, "old")]


def test_a_file_without_a_notification_is_found_by_the_next_walk(folder: Path) -> None:
    def unnoticed() -> Collection[Path]:
        write(folder / "a", modified=LONG_AGO)()
        return ()

    scenario = Scenario(folder).then(unnoticed).wait(RESCAN_SECONDS + 1)
    assert scenario.stable() == [(RESCAN_SECONDS, "a")]
    assert scenario.watcher.scans == 2


def test_a_folder_that_vanishes_is_reported_once_and_awaited(folder: Path) -> None:
    scenario = Scenario(folder)

    def vanished() -> Collection[Path]:
        folder.rmdir()
        return [folder]

    def back() -> Collection[Path]:
        return ()

    def warn(sentence: str) -> None:
        scenario.warnings.append(sentence)
        folder.mkdir()
        write(folder / "a", modified=LONG_AGO)()

    scenario.watcher._warn = warn
    assert [name for _, name in scenario.then(vanished).then(back).wait(2).stable()] == ["a"]
    assert scenario.warnings == [f"The folder {folder} has disappeared; waiting for it to return."]


def test_a_folder_that_vanishes_during_a_walk_is_awaited(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario, chunks, unmounted = Scenario(folder), Scanner.chunks, folder.parent / "unmounted"
    write(folder / "a", modified=LONG_AGO)()

    def vanishing(scanner: Scanner) -> Iterator[Sequence[ObjectRef]]:
        if not scenario.warnings:
            folder.rename(unmounted)
        return chunks(scanner)

    def warn(sentence: str) -> None:
        scenario.warnings.append(sentence)
        unmounted.rename(folder)

    monkeypatch.setattr(Scanner, "chunks", vanishing)
    scenario.watcher._warn = warn
    assert [name for _, name in scenario.wait(2).stable()] == ["a"]
    assert scenario.warnings == [f"{folder} existed before and does not exist now; is its file system mounted?"]


def test_failing_notifications_are_reported_and_replaced_by_walks(folder: Path) -> None:
    scenario = Scenario(folder)

    def failing() -> Collection[Path]:
        write(folder / "a", modified=LONG_AGO)()
        raise OSError("no watch left")

    assert [name for _, name in scenario.then(failing).wait(2).stable()] == ["a"]
    assert scenario.warnings == [f"Notifications for {folder} fail (no watch left); it is walked every 10 s."]


def test_notifications_of_the_operating_system_find_a_new_file(folder: Path) -> None:
    ended = threading.Event()
    found: list[str] = []
    watcher = Watcher(
        folder,
        store=LocalStore(folder),
        excluded=(),
        clock=SystemClock(),
        warn=found.append,
        settle_seconds=0.2,
        changes=folder_changes,
    )
    deadline = threading.Timer(30.0, ended.set)
    deadline.start()
    for stable in watcher.stable(ended):
        found += [os.path.relpath(ref.key, folder) for ref in stable]
        if watcher.scans == 1 and not (folder / "a").exists():
            write(folder / "a")()  # only a notification can find it: the next walk is minutes away
        if found:
            ended.set()
    deadline.cancel()
    assert found == ["a"]
