"""Watch a folder and yield its objects, each once it is stable.

Notifications of the operating system name the paths that changed. A file is yielded when its size and modification time
have not changed for a quiet period, also if it was renamed into place. Notifications get lost (a full buffer, a network
folder, a name that cannot be decoded), so the whole folder is also walked at the start and every few minutes. The
caller gets some objects more than once, and misses none.

The scanner alone decides which names are objects.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from penstock.errors import TemporaryError, UsageError
from penstock.messaging.clock import Clock
from penstock.objects.local_store import LocalStore, modified_at
from penstock.objects.reference import ObjectRef
from penstock.objects.scanner import Scanner, ScanReport
from penstock.objects.selection import Selection

SETTLE_SECONDS = 2.0
RESCAN_SECONDS = 300.0
RETRY_SECONDS = 10.0  # before notifications are tried again after a failure
VANISHED_SECONDS = 1.0  # between two checks for a folder that has disappeared
TICK_SECONDS = 0.5
PENDING_MAX = 100_000  # files waiting to become stable; the next walk finds any further ones
_ALL = Selection(in_s3=False)
_GROUPED_MS = 400  # notifications in quick succession are combined, for up to this long

Changes = Callable[[bytes, threading.Event], Iterable[Collection[bytes]]]  # (folder, ended) -> changed names


@dataclass(frozen=True, slots=True)
class _FileSighting:
    """A file's version when it was last seen to change, and the monotonic time of that."""

    version: str | None
    since: float


class Watcher:
    """A watch on one folder. One thread calls `stable`."""

    def __init__(
        self,
        folder: Path,
        *,
        store: LocalStore,
        excluded: Collection[Path],
        selection: Selection = _ALL,
        clock: Clock,
        warn: Callable[[str], None],
        settle_seconds: float = SETTLE_SECONDS,
        rescan_seconds: float = RESCAN_SECONDS,
        changes: "Changes | None" = None,
    ) -> None:
        """Create a watcher.

        Args:
            excluded: Folders to skip.
            selection: The files of the source.
            warn: Called with a sentence for people if the folder disappears or notifications fail.
            changes: Replaces the notifications of the operating system.
        """
        self._folder = folder
        self._store = store
        self._excluded = tuple(excluded)
        self._selection = selection
        self._clock = clock
        self._warn = warn
        self._settle_seconds = settle_seconds
        self._rescan_seconds = rescan_seconds
        self._changes = changes or folder_changes
        self._pending: dict[bytes, _FileSighting] = {}
        self._rescan_at = clock.monotonic()
        self._reported = ""  # the last sentence, to report it only once
        self.scans = 0  # completed walks; any thread may read it
        self.report: ScanReport | None = None  # of the last completed walk; replaced whole

    def stable(self, ended: threading.Event) -> Iterator[Sequence[ObjectRef]]:
        """Yield stable objects until ``ended`` is set; sometimes an empty sequence, and some objects more than once."""
        while not ended.is_set():
            if self._identity() is None:
                self._warn_once(f"The folder {self._folder} has disappeared; waiting for it to return.")
                self._clock.wait(ended, VANISHED_SECONDS)
                continue
            seconds = 0.0
            try:
                yield from self._watch(ended)
            except TemporaryError as error:  # the folder disappeared during a walk
                text = str(error)
                self._warn_once(text if text.endswith((".", "?")) else f"{text}.")
                seconds = VANISHED_SECONDS
            except (OSError, RuntimeError) as error:  # the library raises RuntimeError
                if self._identity() is not None:
                    self._warn_once(
                        f"Notifications for {self._folder} fail ({error}); it is walked every {RETRY_SECONDS:g} s."
                    )
                    seconds = RETRY_SECONDS
            if seconds:
                self._clock.wait(ended, seconds)

    def _watch(self, ended: threading.Event) -> Iterator[Sequence[ObjectRef]]:
        """Watch as long as it is the same folder. Changes made while it was not watched are found by a walk."""
        identity = self._identity()
        self._rescan_at = self._clock.monotonic()
        for touched in self._changes(os.fsencode(self._folder), ended):
            if identity is None or self._identity() != identity:
                return
            self._touch(touched)
            if self._clock.monotonic() >= self._rescan_at:
                yield from self._walk()
            yield self._take_stable()

    def _touch(self, names: Collection[bytes]) -> None:
        if not names:
            return
        scanner = self._scanner()
        if scanner is None:
            return
        now = self._clock.monotonic()
        for name in names:
            for ref in scanner.at(name):
                self._add_pending(ref, now)

    def _add_pending(self, ref: ObjectRef, now: float) -> None:
        if len(self._pending) < PENDING_MAX or ref.key_bytes in self._pending:
            self._pending[ref.key_bytes] = _FileSighting(version=ref.etag, since=now)
        else:
            self._rescan_at = min(self._rescan_at, now + self._settle_seconds)

    def _take_stable(self) -> Sequence[ObjectRef]:
        """Return the files that are stable after the quiet period. Drop deleted files; changed ones wait again."""
        now = self._clock.monotonic()
        due = [name for name, sighting in self._pending.items() if now - sighting.since >= self._settle_seconds]
        scanner = self._scanner() if due else None
        if scanner is None:
            return ()
        stable: list[ObjectRef] = []
        for name in due:
            sighting = self._pending.pop(name)
            for ref in scanner.at(name):
                if ref.key_bytes == name and ref.etag == sighting.version:
                    stable.append(ref)
                else:
                    self._add_pending(ref, now)
        return stable

    def _walk(self) -> Iterator[Sequence[ObjectRef]]:
        """Walk the folder and yield its stable files. The others wait."""
        scanner = self._scanner()
        if scanner is None:
            return
        for chunk in scanner.chunks():
            now, young = self._clock.monotonic(), self._clock.now() - self._settle_seconds
            stable = [ref for ref in chunk if modified_at(ref) <= young]
            for ref in chunk:
                if modified_at(ref) > young and ref.key_bytes not in self._pending:
                    self._add_pending(ref, now)
            yield stable
        self._rescan_at = self._clock.monotonic() + self._rescan_seconds
        self.report = scanner.report()
        self.scans += 1
        self._reported = ""  # the folder can be listed, so report the next problem even if it is the same

    def _scanner(self) -> Scanner | None:
        """Return a scanner, or None if the folder has just disappeared."""
        try:
            return Scanner(self._folder, store=self._store, excluded=self._excluded, selection=self._selection)
        except UsageError as error:
            self._warn_once(str(error))
            return None

    def _identity(self) -> tuple[int, int] | None:
        """Return the folder's identity: another folder of the same name would not be watched."""
        try:
            status = self._folder.stat()
        except OSError:
            return None
        return (status.st_dev, status.st_ino) if self._folder.is_dir() else None

    def _warn_once(self, sentence: str) -> None:
        if sentence != self._reported:
            self._reported = sentence
            self._warn(sentence)


def folder_changes(folder: bytes, ended: threading.Event) -> Iterator[Collection[bytes]]:
    """Yield the changed paths below a folder, as reported by the operating system about every half second; mostly none.

    With ``WATCHFILES_FORCE_POLLING=1`` in the environment, listings are compared instead, for network folders.
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
