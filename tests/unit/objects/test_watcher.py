"""The watcher: what is at rest is handed on, what is being written waits, what is lost is found by the next walk."""

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

SETTLE = 2.0
LONG_AGO = 1_600_000_000

Step = Callable[[], Collection[Path]]  # does something to the folder, and names what the system says was touched


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "in"
    made.mkdir()
    return made


class Stage:
    """A folder, a clock, and a script of what happens: a step each half second."""

    def __init__(self, folder: Path, *, excluded: Collection[Path] = ()) -> None:
        self.folder = folder
        self.clock = FakeClock(auto_advance=True)
        self.ended = threading.Event()
        self.told: list[str] = []
        self._steps: list[Step] = []
        self.watcher = Watcher(
            folder,
            store=LocalStore(folder),
            excluded=excluded,
            clock=self.clock,
            warn=self.told.append,
            settle_seconds=SETTLE,
            changes=self._changes,
        )

    def then(self, step: Step) -> "Stage":
        self._steps.append(step)
        return self

    def rest(self, seconds: float = SETTLE) -> "Stage":
        for _ in range(int(seconds / 0.5)):
            self.then(lambda: ())
        return self

    def stable(self) -> list[tuple[float, str]]:
        """When each came to rest, and which, until the script is at its end."""
        found: list[tuple[float, str]] = []
        for rested in self.watcher.stable(self.ended):
            found += [(self.clock.monotonic(), os.path.relpath(ref.key, self.folder)) for ref in rested]
        return found

    def _changes(self, watched: bytes, ended: threading.Event) -> Iterator[Collection[bytes]]:
        assert (watched, ended) == (os.fsencode(self.folder), self.ended)
        yield ()  # the system watches from here on
        while self._steps:
            self.clock.advance(0.5)
            yield [os.fsencode(path) for path in self._steps.pop(0)()]
        self.ended.set()


def written(path: Path, content: bytes = b"x\n", *, modified: float | None = None) -> Step:
    def step() -> Collection[Path]:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)
        if modified is not None:
            os.utime(path, (modified, modified))
        return [path]

    return step


def test_a_new_file_is_handed_on_once_it_was_at_rest(folder: Path) -> None:
    assert Stage(folder).then(written(folder / "a")).rest(4).stable() == [(0.5 + SETTLE, "a")]


def test_a_file_that_is_still_written_waits_until_it_is_not(folder: Path) -> None:
    stage = Stage(folder)
    for _ in range(8):
        stage.then(written(folder / "a"))
    assert stage.rest(4).stable() == [(4.0 + SETTLE, "a")]


def test_writing_that_nobody_notified_of_counts_too(folder: Path) -> None:
    def unnoticed() -> Collection[Path]:
        written(folder / "a")()
        return ()

    stage = Stage(folder).then(written(folder / "a")).rest(1).then(unnoticed).rest(6)
    assert stage.stable() == [(0.5 + 2 * SETTLE, "a")], "it was found changed at the end of its rest, and rests again"


def test_what_is_deleted_before_it_was_at_rest_is_forgotten(folder: Path) -> None:
    def deleted() -> Collection[Path]:
        (folder / "a").unlink()
        return [folder / "a"]

    assert Stage(folder).then(written(folder / "a")).rest(1).then(deleted).rest(4).stable() == []


def test_a_file_renamed_into_its_place_is_taken_and_its_temporary_name_is_not(folder: Path) -> None:
    def renamed() -> Collection[Path]:
        (folder / ".a.tmp").rename(folder / "a")
        return [folder / ".a.tmp", folder / "a"]

    stage = Stage(folder).then(written(folder / ".a.tmp")).rest(4).then(renamed).rest(4)
    assert [name for _, name in stage.stable()] == ["a"]


def test_a_folder_moved_in_brings_all_its_files(folder: Path) -> None:
    def moved() -> Collection[Path]:
        (folder.parent / "new").rename(folder / "new")
        return [folder / "new"]

    written(folder.parent / "new" / "deep" / "a")()
    written(folder.parent / "new" / "b")()
    assert sorted(name for _, name in Stage(folder).then(moved).rest(4).stable()) == ["new/b", "new/deep/a"]


@pytest.mark.parametrize("name", [".hidden", ".dir/a", "table/a", "out/a", "table"])
def test_what_the_scanner_passes_over_is_passed_over(folder: Path, name: str) -> None:
    (folder / "table" / "_delta_log").mkdir(parents=True)
    touched = folder / name if name != "table" else folder / "table" / "b"
    stage = Stage(folder, excluded=[folder / "out"]).then(written(touched)).rest(4)
    assert stage.stable() == []


def test_a_folder_reached_through_a_link_is_passed_over(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    (folder / "link").symlink_to(folder.parent / "elsewhere")
    assert Stage(folder).then(written(folder / "link" / "a")).rest(4).stable() == []


def test_what_was_there_before_is_handed_on_at_once_unless_it_is_fresh(folder: Path) -> None:
    written(folder / "old", modified=LONG_AGO)()
    written(folder / "fresh")()
    assert Stage(folder).rest(4).stable() == [(0.0, "old"), (SETTLE, "fresh")]


def test_a_file_dated_before_1970_is_found_by_the_walk(folder: Path) -> None:
    written(folder / "old", modified=-86_400)()
    assert Stage(folder).stable() == [(0.0, "old")]


def test_a_lost_notification_loses_nothing(folder: Path) -> None:
    def unnoticed() -> Collection[Path]:
        written(folder / "a", modified=LONG_AGO)()
        return ()

    stage = Stage(folder).then(unnoticed).rest(RESCAN_SECONDS + 1)
    assert stage.stable() == [(RESCAN_SECONDS, "a")]
    assert stage.watcher.scans == 2


def test_a_folder_that_vanishes_is_told_of_once_and_waited_for(folder: Path) -> None:
    stage = Stage(folder)

    def vanished() -> Collection[Path]:
        folder.rmdir()
        return [folder]

    def back() -> Collection[Path]:
        return ()

    def tell(sentence: str) -> None:
        stage.told.append(sentence)
        folder.mkdir()
        written(folder / "a", modified=LONG_AGO)()

    stage.watcher._warn = tell
    assert [name for _, name in stage.then(vanished).then(back).rest(2).stable()] == ["a"]
    assert stage.told == [f"The folder {folder} has disappeared; waiting for it to return."]


def test_a_folder_that_vanishes_during_a_walk_is_waited_for(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage, whole, away = Stage(folder), Scanner.chunks, folder.parent / "away"
    written(folder / "a", modified=LONG_AGO)()

    def vanishing(scanner: Scanner) -> Iterator[Sequence[ObjectRef]]:
        if not stage.told:
            folder.rename(away)
        return whole(scanner)

    def tell(sentence: str) -> None:
        stage.told.append(sentence)
        away.rename(folder)

    monkeypatch.setattr(Scanner, "chunks", vanishing)
    stage.watcher._warn = tell
    assert [name for _, name in stage.rest(2).stable()] == ["a"]
    assert stage.told == [f"{folder} existed before and does not exist now; is its file system mounted?."]


def test_notifications_that_fail_are_told_of_and_walked_instead(folder: Path) -> None:
    stage = Stage(folder)

    def failing() -> Collection[Path]:
        written(folder / "a", modified=LONG_AGO)()
        raise OSError("no watch left")

    assert [name for _, name in stage.then(failing).rest(2).stable()] == ["a"]
    assert stage.told == [f"Notifications for {folder} fail (no watch left); it is walked every 10 s."]


def test_the_real_notifications_of_the_system(folder: Path) -> None:
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
    for rested in watcher.stable(ended):
        found += [os.path.relpath(ref.key, folder) for ref in rested]
        if watcher.scans == 1 and not (folder / "a").exists():
            written(folder / "a")()  # from here on only notifications can tell: the next walk is minutes away
        if found:
            ended.set()
    deadline.cancel()
    assert found == ["a"]
