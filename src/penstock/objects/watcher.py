"""The watcher: a folder -> its objects, each handed on once it has come to rest.

Notifications of the operating system say which names were touched. A file counts when size and modification time have
not changed for a while; one that is renamed into its place is treated alike. Notifications get lost (a full buffer, a
network's folder, a name that is no text), so the whole folder is walked at the start and every few minutes as well:
whoever listens gets some objects again, and none never.

Which names are objects is the scanner's decision alone.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import TemporaryError, UsageError
from penstock.messaging.clock import Clock
from penstock.objects.local_store import LocalStore
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import Scanner, ScanReport

SETTLE_SECONDS = 2.0
RESCAN_SECONDS = 300.0
RETRY_SECONDS = 10.0  # until a folder whose notifications failed is watched again
VANISHED_SECONDS = 1.0  # between two looks for a folder that is gone
TICK_SECONDS = 0.5
PENDING_MAX = 100_000  # files seen and not at rest; beyond that the next walk finds them
_GROUPED_MS = 400  # notifications that come closer together than a moment are handed on as one, for so long

Changes = Callable[[bytes, threading.Event], Iterable[Collection[bytes]]]  # folder, ended -> names touched, by and by


@dataclass(frozen=True, slots=True)
class _FileSighting:
    """How a file looked when it was last seen to change (monotonic)."""

    version: str | None
    since: float


class Watcher:
    """Watches one folder. `settled` is for one thread."""

    def __init__(
        self,
        folder: Path,
        *,
        store: LocalStore,
        excluded: Collection[Path],
        clock: Clock,
        tell: Callable[[str], None],
        settle_seconds: float = SETTLE_SECONDS,
        rescan_seconds: float = RESCAN_SECONDS,
        changes: "Changes | None" = None,
    ) -> None:
        """``excluded`` folders are passed over. ``tell`` hears in a sentence what a person should know: that the folder
        is gone, or that notifications fail. ``changes`` stands in for the operating system."""
        self._folder = folder
        self._store = store
        self._excluded = tuple(excluded)
        self._clock = clock
        self._tell = tell
        self._settle_seconds = settle_seconds
        self._rescan_seconds = rescan_seconds
        self._changes = changes or folder_changes
        self._pending: dict[bytes, _FileSighting] = {}
        self._rescan_at = clock.monotonic()
        self._told = ""  # what was told last, so that it is told once
        self.scans = 0  # whole walks so far; any thread may look
        self.report: ScanReport | None = None  # of the last whole walk; replaced as a whole

    def settled(self, ended: threading.Event) -> Iterator[Sequence[ObjectRef]]:
        """Objects that have come to rest, until ``ended``; from time to time none, and some of them again."""
        while not ended.is_set():
            if self._identity() is None:
                self._say(f"The folder {self._folder} is gone; waiting for it to come back.")
                self._clock.wait(ended, VANISHED_SECONDS)
                continue
            seconds = 0.0
            try:
                yield from self._watched(ended)
            except TemporaryError as error:  # the folder went away during a walk
                self._say(f"{str(error).rstrip('.')}.")
                seconds = VANISHED_SECONDS
            except (OSError, RuntimeError) as error:  # the library's own are RuntimeErrors
                if self._identity() is not None:
                    self._say(
                        f"Notifications for {self._folder} fail ({error}); it is walked every {RETRY_SECONDS:g} s."
                    )
                    seconds = RETRY_SECONDS
            if seconds:
                self._clock.wait(ended, seconds)

    def _watched(self, ended: threading.Event) -> Iterator[Sequence[ObjectRef]]:
        """As long as it is the same folder. What happened while nobody watched is found by a walk."""
        identity = self._identity()
        self._rescan_at = self._clock.monotonic()
        for touched in self._changes(os.fsencode(self._folder), ended):
            if identity is None or self._identity() != identity:
                return
            self._touch(touched)
            if self._clock.monotonic() >= self._rescan_at:
                yield from self._walked()
            yield self._at_rest()

    def _touch(self, names: Collection[bytes]) -> None:
        if not names:
            return
        looker = self._scanner()
        if looker is None:
            return
        now = self._clock.monotonic()
        for name in names:
            for ref in looker.at(name):
                self._await_rest(ref, now)

    def _await_rest(self, ref: ObjectRef, now: float) -> None:
        if len(self._pending) < PENDING_MAX or ref.key_bytes in self._pending:
            self._pending[ref.key_bytes] = _FileSighting(version=ref.etag, since=now)
        else:
            self._rescan_at = min(self._rescan_at, now + self._settle_seconds)

    def _at_rest(self) -> Sequence[ObjectRef]:
        """What did not change for long enough. What is gone is forgotten, what changed waits again."""
        now = self._clock.monotonic()
        due = [name for name, sight in self._pending.items() if now - sight.since >= self._settle_seconds]
        looker = self._scanner() if due else None
        if looker is None:
            return ()
        rested: list[ObjectRef] = []
        for name in due:
            sight = self._pending.pop(name)
            for ref in looker.at(name):
                if ref.key_bytes == name and ref.etag == sight.version:
                    rested.append(ref)
                else:
                    self._await_rest(ref, now)
        return rested

    def _walked(self) -> Iterator[Sequence[ObjectRef]]:
        """Everything in the folder that is at rest; the others wait for it."""
        scanner = self._scanner()
        if scanner is None:
            return
        for chunk in scanner.chunks():
            now, young = self._clock.monotonic(), self._clock.now() - self._settle_seconds
            rested = [ref for ref in chunk if _modified_at(ref) <= young]
            for ref in chunk:
                if _modified_at(ref) > young and ref.key_bytes not in self._pending:
                    self._await_rest(ref, now)
            yield rested
        self._rescan_at = self._clock.monotonic() + self._rescan_seconds
        self.report = scanner.report()
        self.scans += 1
        self._told = ""  # it can be listed, so whatever is wrong next is news

    def _scanner(self) -> Scanner | None:
        """None where the folder went away just now."""
        try:
            return Scanner(self._folder, store=self._store, excluded=self._excluded)
        except UsageError as error:
            self._say(str(error))
            return None

    def _identity(self) -> tuple[int, int] | None:
        """Which folder it is: one of the same name may have taken its place, and is not watched then."""
        try:
            status = self._folder.stat()
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if self._folder.is_dir() else None

    def _say(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._tell(sentence)


def folder_changes(folder: bytes, ended: threading.Event) -> Iterator[Collection[bytes]]:
    """What the operating system says was touched below a folder, about every half second, mostly nothing.

    ``WATCHFILES_FORCE_POLLING=1`` in the environment compares listings instead, for folders of a network.
    """
    from watchfiles import watch

    found = watch(
        os.fsdecode(folder),
        watch_filter=None,
        debounce=_GROUPED_MS,
        rust_timeout=int(TICK_SECONDS * 1_000),
        yield_on_timeout=True,
        stop_event=ended,
        raise_interrupt=False,
        ignore_permission_denied=True,
    )
    for changes in found:
        yield {os.fsencode(path) for _, path in changes}


def _modified_at(ref: ObjectRef) -> float:
    """Epoch seconds, out of a local file's version."""
    return int((ref.etag or "0").partition("-")[0], 16) / 1e9
