"""Export dead letters to a file and import them again: to keep messages before deleting them, or to use other tools."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, groupby, islice
from pathlib import Path
from typing import BinaryIO

from penstock.app.kill import killing_probe
from penstock.dead_letters.jsonl import LINE_BYTES_MAX, ExportedMessage, line_of, read_line
from penstock.dead_letters.operator import CHUNK, ProgressCallback, Stopped, matching
from penstock.dead_letters.reader import PAGE, DeadLetterReader, dead_letters_in
from penstock.errors import PenstockError, UsageError
from penstock.ledger import Ledger
from penstock.messaging.broker import chunk_of, listed_name, send_each
from penstock.messaging.clock import SystemClock
from penstock.messaging.steps import Probe, Step
from penstock.operations.dead_letters.selection import (
    DeadLetterSelection,
    QueueResult,
    audited,
    dead_letter_queue_for,
    is_worth_reading,
    selected_queues,
)
from penstock.operations.inspection import ScopeView
from penstock.storage.address import check_address, is_s3, s3_address
from penstock.storage.aws import Aws
from penstock.storage.files import Files
from penstock.storage.roots import files_at

STDOUT = "-"
TARGETS_CACHE_MAX = 1_000  # cache size: a file may name any number of queues


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFile:
    """One file, on a disk or in S3."""

    files: Files
    name: str

    @property
    def address(self) -> str:
        """The file's address, for people."""
        return f"{self.files.uri}/{self.name}" if not self.files.is_local else str(Path(str(self.files)) / self.name)


@dataclass(slots=True, kw_only=True)
class ExportReport:
    """The result of an export.

    Without messages there is no file. If ``interrupted``, there is none either and all messages stay in their queues,
    unless some were ``removed`` already: then the file exists.
    """

    dead_letters: int = 0
    removed: int = 0
    ids_met: set[str] = field(default_factory=set)  # requested ids that were found
    interrupted: bool = False


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """The result of an import."""

    dead_letters: int = 0
    before: int = 0  # put back by an earlier import
    replayed: int = 0  # skipped, because they were replayed before, during or after the export
    by_queue: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False


def export_file_at(address: str, aws: Aws) -> ExportFile:
    """Return the file at an address. Raises `UsageError` for an invalid one."""
    check_address("file", address)
    if is_s3(address):
        found = s3_address(address)
        folder, _, name = found.prefix.rpartition("/")
        if not name or address.endswith("/"):
            raise UsageError(f"{address} names no file: write s3://BUCKET/PREFIX/letters.jsonl.")
        return ExportFile(files=files_at(f"s3://{found.bucket}/{folder}".rstrip("/"), aws), name=name)
    path = Path(os.path.abspath(address))  # noqa: PTH100 - does not resolve links
    if path.is_dir():
        raise UsageError(f"{address} is a folder: name a file in it.")
    return ExportFile(files=files_at(str(path.parent), aws), name=path.name)


def export_to_stream(
    seen: ScopeView,
    selection: DeadLetterSelection,
    stream: BinaryIO,
    *,
    ledger: Ledger,
    stopped: Stopped,
    on_progress: ProgressCallback,
) -> ExportReport:
    """Write the selected messages, one per line."""
    with ExitStack() as opened:
        exported = ExportReport()
        of_queues = _OpenedQueues(seen, selection, ledger, opened, stopped, details={"file": STDOUT})
        _write(seen, selection, stream, exported, of_queues, on_progress)
        exported.interrupted = stopped()
        return exported


def export_to_file(
    seen: ScopeView,
    selection: DeadLetterSelection,
    file: ExportFile,
    *,
    ledger: Ledger,
    remove: bool,
    stopped: Stopped,
    on_progress: ProgressCallback,
) -> ExportReport:
    """Write the selected messages to a file, completely or not at all.

    With ``remove``, then delete them from their queues. Raises `UsageError` if the file exists.
    """
    if file.files.stat(file.name) is not None:
        raise UsageError(f"The file {file.address} exists already, and may be the only copy: name another one.")
    exported = ExportReport()
    probe = killing_probe(seen.scope.settings.kill_at)
    with ExitStack() as opened:
        details = {"file": file.address, **({"remove": True} if remove else {})}
        of_queues = _OpenedQueues(seen, selection, ledger, opened, stopped, details=details)
        try:
            with file.files.open_output(file.name) as stream:
                _write(seen, selection, stream, exported, of_queues, on_progress)
                if stopped() or not exported.dead_letters:
                    raise _NoFile
                probe(Step.DEAD_LETTERS_WRITTEN)
        except _NoFile:
            return ExportReport(interrupted=stopped())
        if remove:
            exported.removed = _remove(file, of_queues, stopped, probe)
            exported.interrupted = stopped()
    return exported


def import_file(
    seen: ScopeView,
    file: ExportFile,
    *,
    queue: str | None,
    ledger: Ledger,
    stopped: Stopped,
    on_progress: ProgressCallback,
) -> ImportReport:
    """Put messages back into the DLQs they were exported from, or all into the DLQ of ``queue``.

    Repeats add no duplicates. Raises `UsageError` for a line that is not from an export, or for a queue that does not
    exist; earlier messages are put back by then.
    """
    imported = ImportReport()
    targets = _ImportTargets(seen)
    details = {"file": file.address}
    results: dict[str, QueueResult] = {}
    with ExitStack() as opened:
        for chunk in _chunks(_read_messages(file), CHUNK):
            if stopped():
                imported.interrupted = True
                break
            for into, group in groupby(chunk, key=lambda message: targets.of(queue or message.queue)):
                if into not in results:
                    entered = audited(ledger, "import", queue=into, details=details, stopped=stopped)
                    results[into] = opened.enter_context(entered)
                messages = list(group)
                left = _not_replayed(ledger, messages)
                put = _put(seen, ledger, into, left)
                results[into].messages += put
                imported.dead_letters += put
                imported.before += len(left) - put
                imported.replayed += len(messages) - len(left)
                imported.by_queue[into] = imported.by_queue.get(into, 0) + put
            on_progress(len(chunk))
    return imported


class _NoFile(Exception):
    """A stop was requested, or there is nothing to write."""


class _OpenedQueues:
    """The readers and audit entries of the exported queues, until the stack is closed."""

    def __init__(
        self,
        seen: ScopeView,
        selection: DeadLetterSelection,
        ledger: Ledger,
        stack: ExitStack,
        stopped: Stopped,
        *,
        details: Mapping[str, object],
    ) -> None:
        self._seen = seen
        self._details = {**selection.details, **details}
        self._ledger = ledger
        self._stack = stack
        self.stopped = stopped
        self.dead_letters: dict[str, DeadLetterReader] = {}
        self.results: dict[str, QueueResult] = {}

    def begin(self, queue: str) -> DeadLetterReader:
        self.dead_letters[queue] = self._stack.enter_context(dead_letters_in(self._seen.broker, queue))
        entered = audited(self._ledger, "export", queue=queue, details=self._details, stopped=self.stopped)
        self.results[queue] = self._stack.enter_context(entered)
        return self.dead_letters[queue]


def _write(
    seen: ScopeView,
    selection: DeadLetterSelection,
    stream: BinaryIO,
    exported: ExportReport,
    opened: _OpenedQueues,
    on_progress: ProgressCallback,
) -> None:
    clock = SystemClock()
    for queue in selected_queues(seen, selection):
        if opened.stopped() or exported.dead_letters == selection.limit or not is_worth_reading(seen.broker, queue):
            continue
        pages = matching(opened.begin(queue), selection.wanted, clock=clock, stopped=opened.stopped)
        left = None if selection.limit is None else selection.limit - exported.dead_letters
        for dead_letter in islice(chain.from_iterable(pages), left):
            stream.write(line_of(dead_letter))
            exported.dead_letters += 1
            exported.ids_met |= selection.wanted.ids_met(dead_letter)
            opened.results[queue].messages += 1
            on_progress(1)


def _remove(file: ExportFile, opened: _OpenedQueues, stopped: Stopped, probe: Probe) -> int:
    """Remove the messages in the file, which is read again so that no list of ids is kept in memory."""
    if file.files.is_local:
        file.files.make_durable([file.name])
    probe(Step.DEAD_LETTERS_KEPT)
    removed = 0
    for chunk in _chunks(_read_messages(file), PAGE):
        if stopped():
            break
        for queue, group in groupby(chunk, key=lambda one: one.queue):
            removed += opened.dead_letters[queue].remove([message.message.id for message in group])
            probe(Step.DEAD_LETTERS_REMOVED)
    return removed


def _not_replayed(ledger: Ledger, messages: Sequence[ExportedMessage]) -> Sequence[ExportedMessage]:
    """Leave out messages that were replayed, which would be duplicated.

    An export locks nothing, so a message may be replayed while its file is written.
    """
    ids = [message.replay_id for message in messages]
    known = ledger.replays.find(ids)
    return [message for message, id in zip(messages, ids, strict=True) if id not in known or not known[id].sent]


def _put(seen: ScopeView, ledger: Ledger, into: str, messages: Sequence[ExportedMessage]) -> int:
    """Send the messages that are not there yet and return their number. Recorded before and after, as a replay is."""
    intents = {message.intent(into).replay_id: message for message in messages}
    known = ledger.replays.open([intent.intent(into) for intent in intents.values()])
    due = [(id, one) for id, one in intents.items() if not known[id].sent]
    size = chunk_of(seen.broker, CHUNK)
    for start in range(0, len(due), size):
        some = due[start : start + size]
        outcomes = send_each(seen.broker, into, [one.outgoing(one.intent(into)) for _, one in some])
        taken = [id for (id, _), result in zip(some, outcomes, strict=True) if isinstance(result, str)]
        if taken:
            ledger.replays.mark_sent(taken)
        for result in outcomes:
            if isinstance(result, PenstockError):
                raise result
    return len(due)


class _ImportTargets:
    """The queues that imported messages go to: only DLQs, never a queue with a consumer."""

    def __init__(self, seen: ScopeView) -> None:
        self._seen = seen
        self._known = set(seen.broker.queue_names())
        self.of = lru_cache(maxsize=TARGETS_CACHE_MAX)(self._of)

    def _of(self, queue: str) -> str:
        """Return the DLQ. Raises `UsageError` if it does not exist, unless it was named and is created on use."""
        target = dead_letter_queue_for(self._seen, queue)
        there = {listed_name(queue), listed_name(target)} & self._known
        if not (there or (target == queue and self._seen.broker.capabilities.creates_queues)):
            raise UsageError(f"There is no queue {target} for the dead letters: name one with --queue.")
        return target


def _read_messages(file: ExportFile) -> Iterator[ExportedMessage]:
    try:
        with file.files.open_input(file.name) as stream:
            number = 0
            while line := stream.readline(LINE_BYTES_MAX + 1):
                number += 1
                if len(line) > LINE_BYTES_MAX:
                    raise UsageError(f"Line {number:,} of {file.address} is longer than {LINE_BYTES_MAX:,} bytes.")
                if line.strip():
                    yield read_line(line, number=number, file=file.address)
    except FileNotFoundError:
        raise UsageError(f"There is no file {file.address}.") from None


def _chunks(messages: Iterator[ExportedMessage], size: int) -> Iterator[Sequence[ExportedMessage]]:
    while chunk := list(islice(messages, size)):
        yield chunk
