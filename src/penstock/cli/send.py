"""`penstock send`: send messages to a queue, one per line.

Lines come from a file or a pipe, in chunks, with their numbers. A tally records what was sent for sure, and what may
have been sent because the broker did not answer.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from penstock.app.app import App
from penstock.app.loading import load_app
from penstock.app.queues import check_shared
from penstock.cli.apps import configured_app
from penstock.cli.exits import INTERRUPTED
from penstock.cli.options import duration
from penstock.cli.output import Json, print_json, printable, talk
from penstock.cli.progress import ProgressPace
from penstock.errors import InvalidMessage, PenstockError, UnknownOutcome, UsageError
from penstock.messaging import schema
from penstock.messaging.broker import is_fifo
from penstock.messaging.wording import counted

if TYPE_CHECKING:
    from penstock.messaging.message import Outgoing


READ_BYTES = 1024 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024  # far more than any queue accepts
CHUNK_MAX = 1_000

Line = tuple[int, bytes]  # its number, from 1, and its content


def send(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The name of the queue.")],
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="Read lines from this file; default and -: standard input."),
    ] = None,
    body: Annotated[str | None, typer.Option("--body", metavar="JSON", help="One message, instead of lines.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Lines are arbitrary text; default: JSON.")] = False,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="The group (tenant) of the messages.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Deliver no earlier than after this time, such as 2m.")
    ] = None,
    deduplication_id: Annotated[
        str | None,
        typer.Option("--deduplication-id", metavar="ID", help="Drop a second message with this id; for one message."),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option(
            "--app",
            metavar="APP",
            help="module:attribute; bodies must fit the model of the queue in this app.",
        ),
    ] = None,
    json_: Json = False,
) -> None:
    """Send messages to a queue.

    A message is one line of JSON, from standard input or a file. Lines are sent in chunks, each only if all its lines
    are valid; blank lines are skipped. Messages that were sent before an invalid line stay sent, and an error reports
    how many were. If the broker does not answer, it also reports how many may have been sent.
    """
    if body is not None and file is not None:
        raise UsageError("Give --body or --file, not both.")
    for option, given in (("--group", group), ("--deduplication-id", deduplication_id)):
        if given == "":
            raise UsageError(f"{option} is empty: name one, or leave the option out.")
    delay_seconds = 0.0 if delay is None else duration("--delay", delay, zero=True)
    one = deduplication_id is not None
    typed = body is None and file in (None, STDIN) and sys.stdin.isatty()
    with _sender(app, queue) as sender, _progress(_size(file) if body is None else None, bar=not typed) as on_sent:
        deduplicated = one and _drops_duplicates(sender, queue)
        counts = SendCounts(deduplicated=deduplicated)
        maker = _MessageBuilder(
            sender, queue, raw=raw, group=group, delay_seconds=delay_seconds, deduplication_id=deduplication_id
        )
        chunks = iter([[(1, body.encode())]]) if body is not None else _chunks_of(file)
        try:
            _send_all(maker, only_one(chunks) if one else chunks, on_sent, counts)
        except PenstockError:
            if json_:
                print_json(counts.document(queue))
            raise
    if not counts.count:
        talk("There was nothing to send: the input is empty.")
    if one and not deduplicated:
        talk(printable(f"{queue} ignores deduplication ids: on SQS only FIFO queues use them."))
    if json_:
        print_json(counts.document(queue))
    elif counts.count:
        unless = ", unless one with this deduplication id was sent within five minutes" if deduplicated else ""
        print(printable(f"{counted(counts.count, 'message')} sent to {queue}{unless}."))


def chunks_of(stream: BinaryIO) -> Iterator[Sequence[Line]]:
    """Yield chunks of the lines that are not blank, as they arrive: a slow pipe delays no line."""
    number = 0
    rest = b""
    while True:
        read: bytes = stream.read1(READ_BYTES)  # type: ignore[attr-defined]  # every buffered stream has it
        *whole, rest = (rest + read).split(b"\n")
        if not read:
            whole, rest = [rest], b""
        if len(rest) > LINE_BYTES_MAX:
            raise UsageError(f"Line {number + len(whole) + 1:,} is longer than {LINE_BYTES_MAX:,} bytes.")
        lines = [(n, line.removesuffix(b"\r")) for n, line in enumerate(whole, start=number + 1) if line.strip()]
        number += len(whole)
        for first in range(0, len(lines), CHUNK_MAX):
            yield lines[first : first + CHUNK_MAX]
        if not read:
            return


def only_one(chunks: Iterator[Sequence[Line]]) -> Iterator[Sequence[Line]]:
    """Yield the single line, after the input has ended. Raises `UsageError` for a second one."""
    lines: list[Line] = []
    for chunk in chunks:
        lines += chunk
        if len(lines) > 1:
            raise UsageError("With --deduplication-id all but the first message would be dropped; send one at a time.")
    if lines:
        yield lines


IDS_SHOWN_MAX = 1_000


@dataclass(slots=True, kw_only=True)
class SendCounts:
    """Counts of messages that were sent, and that may have been sent."""

    deduplicated: bool
    ids: list[str] = field(default_factory=list)  # of the first messages
    count: int = 0  # certainly sent
    unknown: int = 0  # passed to the broker, which has not answered

    def add_sent(self, ids: Sequence[str]) -> None:
        """Count messages that the broker accepted."""
        self.count, self.unknown = self.count + len(ids), 0
        self.ids += ids[: IDS_SHOWN_MAX - len(self.ids)]

    def document(self, queue: str) -> dict[str, Any]:
        """Return the document for --json, whether the command succeeded or failed."""
        return {"queue": queue, "sent": self.count, "unknown": self.unknown, "message_ids": self.ids}

    @property
    def interrupted(self) -> str:
        """The state after Ctrl-C, as a text."""
        parts = [f"{counted(self.count, 'message')} sent"] if self.count else []
        if self.unknown:
            perhaps = f"perhaps the next {self.unknown:,}"
            parts.append(perhaps if self.count else f"perhaps {counted(self.unknown, 'message')} sent")
        return ", ".join([*parts, "and no more"]) if parts else "nothing was sent"

    @property
    def failed(self) -> str:
        """The state after an error, as a text, and whether it is safe to send again."""
        sent = f"{counted(self.count, 'message')} sent" if self.count else ""
        if not self.unknown:
            return f"{sent}, the rest was not." if sent else "Nothing was sent."
        one = self.unknown == 1
        which = "the next message was" if one else f"the next {self.unknown:,} messages were"
        unconfirmed = f"it is unknown whether {which} sent, and the rest was not."
        again = "it" if one else "them"
        safe = (
            "Within five minutes it is safe to send it again: its deduplication id drops a second one."
            if self.deduplicated
            else f"Sending {again} again may send {again} twice; with a deduplication id that would be safe."
        )
        return f"{sent}; {unconfirmed} {safe}" if sent else f"Nothing was confirmed: {unconfirmed} {safe}"


STDIN = "-"

Sent = Callable[[int, int], None]  # messages, bytes


def _drops_duplicates(sender: App, queue: str) -> bool:
    """Return True if the queue honours deduplication ids. On SQS only FIFO queues do, and the name shows which those
    are.
    """
    return sender.broker.capabilities.deduplicates or is_fifo(queue)


class _Interrupted(PenstockError):
    """Ctrl-C during a send. Starting again would send messages twice."""

    exit_code = INTERRUPTED


class _MessageBuilder:
    """Build messages from lines, and send them. Used by one thread."""

    def __init__(
        self,
        app: App,
        queue: str,
        *,
        raw: bool,
        group: str | None,
        delay_seconds: float,
        deduplication_id: str | None,
    ) -> None:
        self._app = app
        self._queue = queue
        self._raw = raw
        self._group = group
        self._delay_seconds = delay_seconds
        self._deduplication_id = deduplication_id
        contract = next((one.queue for one in app.declarations if one.queue.name == queue), None)
        self._contract = contract or schema.Queue[Any](
            queue
        )  # by its name alone, the app would warn of a new queue too
        self._typed = contract is not None and contract.model is not None
        self._bytes_max = app.broker.capabilities.body_bytes_max
        if raw and self._typed:
            raise UsageError(
                f"The queue {queue} has a model in this app, which raw text does not fit; leave out --raw."
            )

    def messages(self, lines: Sequence[Line]) -> "list[Outgoing]":
        """Return the messages of all lines. Raises `UsageError` for the first invalid one."""
        return [self._message(number, line) for number, line in lines]

    def send(self, messages: "Sequence[Outgoing]") -> Sequence[str]:
        return self._app.broker.send(self._queue, messages)

    def _message(self, number: int, line: bytes) -> "Outgoing":
        try:
            value = None if self._raw else _json(line)
            outgoing = self._app.outgoing(
                self._contract,
                value if self._typed else line,  # a valid line is sent as it is
                group=self._group,
                delay=self._delay_seconds,
                deduplication_id=self._deduplication_id,
            )
            if len(outgoing.body) > self._bytes_max:
                raise UsageError(f"its body has {len(outgoing.body):,} bytes; at most {self._bytes_max:,} are allowed.")
            return outgoing
        except PenstockError as error:
            raise UsageError(f"Line {number:,} cannot be sent: {error}") from error


def _json(line: bytes) -> object:
    try:
        return schema.load(schema.decode(line))
    except InvalidMessage as error:
        raise UsageError(f"{error}; text that need not be JSON is sent with --raw.") from error


def _send_all(maker: _MessageBuilder, chunks: Iterator[Sequence[Line]], on_sent: Sent, counts: SendCounts) -> None:
    """Send chunk by chunk, and count."""
    try:
        for lines in chunks:
            messages = maker.messages(lines)
            counts.unknown = len(messages)
            sent = maker.send(messages)
            counts.add_sent(sent)
            on_sent(len(sent), sum(len(line) + 1 for _, line in lines))
    except KeyboardInterrupt:
        raise _Interrupted(f"interrupted; {counts.interrupted}.") from None
    except PenstockError as error:
        if not isinstance(error, UnknownOutcome):
            counts.unknown = 0
        talk(counts.failed)
        raise


@contextmanager
def _sender(app_name: str | None, queue: str) -> Iterator[App]:
    """Open the app that sends: the named one, else the configured one, else one of the settings alone.

    Raises `UsageError` if the named app cannot be loaded or does not serve the queue.
    """
    known = load_app(app_name) if app_name is not None else _configured()
    app = App.from_config() if known is None else known
    served = [service.queue_name for service in app.services]
    if app_name is not None and queue not in served:
        close = get_close_matches(queue, served, n=1)
        advice = (
            f"Did you mean {close[0]}?"
            if close
            else f"Its queues: {', '.join(served) or 'none'}. Leave out --app to send without a check of the bodies."
        )
        raise UsageError(f"{app_name} has no handler for the queue {queue}. {advice}")
    check_shared(app.settings)
    with app:
        if queue not in served:
            _warn_if_new(app, queue, served=None if known is None else served)
        yield app


def _configured() -> App | None:
    """Return the configured app, None if there is none or it cannot be loaded: sending needs no app.

    Raises `ConfigurationError` for invalid settings.
    """
    name = configured_app()
    if name is None:
        return None
    try:
        return load_app(name)
    except UsageError as error:
        talk(printable(f"Warning: the app {name} cannot be loaded, so bodies are not checked. {error}"))
        return None


def _warn_if_new(app: App, queue: str, *, served: Sequence[str] | None) -> None:
    """Warn of a queue that sending creates. ``served`` None: no app is known, and only a likely typo is reported."""
    if not app.broker.capabilities.creates_queues:
        return
    existing = app.broker.queue_names()
    if queue in existing:
        return
    close = get_close_matches(queue, sorted({*existing, *(served or ())}), n=1)
    if served is None and not close:
        return
    unserved = "" if served is None else ", and the app serves no queue of that name"
    meant = f" Did you mean {close[0]}?" if close else ""
    talk(printable(f"Warning: the queue {queue} is new{unserved}.{meant}"))


def _chunks_of(file: str | None) -> Iterator[Sequence[Line]]:
    if file is not None and file != STDIN:
        try:
            stream = Path(file).open("rb")  # noqa: SIM115 - closed below, however the sending ends
        except OSError as error:
            raise UsageError(f"The file {file} cannot be read: {error.strerror}.") from error
        with stream:
            yield from chunks_of(stream)
        return
    if sys.stdin.isatty():
        talk("Reading lines from the terminal; Ctrl-D ends them.")
    yield from chunks_of(sys.stdin.buffer)


def _size(file: str | None) -> int | None:
    try:
        return None if file is None or file == STDIN else Path(file).stat().st_size
    except OSError:
        return None


@contextmanager
def _progress(bytes_total: int | None, *, bar: bool) -> Iterator[Sent]:
    """Show progress: a bar on a terminal unless lines are typed there, else a line at intervals."""
    if not (bar and sys.stderr.isatty()):
        yield _SendProgress()
        return
    columns = (TextColumn("{task.fields[sent]:,} sent"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("send", total=bytes_total, sent=0)
        sent = 0

        def on_sent(messages: int, size_bytes: int) -> None:
            nonlocal sent
            sent += messages
            with suppress(OSError):  # the terminal is gone
                progress.update(task, advance=size_bytes, sent=sent)

        yield on_sent


class _SendProgress:
    """Print the count so far every few seconds."""

    def __init__(self) -> None:
        self._sent = 0
        self._pace = ProgressPace()

    def __call__(self, messages: int, _size_bytes: int) -> None:
        self._sent += messages
        if self._pace.begin_if_due():
            talk(f"{counted(self._sent, 'message')} sent so far")
