"""`penstock send`: put messages into a queue, a line each.

Lines of a file or a pipe, in chunks, each with its number.

What `penstock send` knows of its sending, and how it says what it cannot know.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO

import typer

from penstock.cli.exits import INTERRUPTED
from penstock.cli.options import duration
from penstock.cli.output import Json, counted, print_json, printable, talk
from penstock.cli.progress import ProgressPace
from penstock.errors import InvalidMessage, PenstockError, UnknownOutcome, UsageError

if TYPE_CHECKING:
    from penstock.app.app import App
    from penstock.messaging.message import Outgoing


READ_BYTES = 1024 * 1024
LINE_BYTES_MAX = 16 * 1024 * 1024  # far beyond what any queue takes
CHUNK_MAX = 1_000

Line = tuple[int, bytes]  # its number, from 1, and what it holds


def chunks_of(stream: BinaryIO) -> Iterator[Sequence[Line]]:
    """The lines that are not blank, as they come: what a slow pipe has brought is not kept waiting for more."""
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
    """The one line there is, read to the end before it is sent."""
    lines: list[Line] = []
    for chunk in chunks:
        lines += chunk
        if len(lines) > 1:
            raise UsageError("With --deduplication-id all but the first message would be dropped; send one at a time.")
    if lines:
        yield lines


IDS_SHOWN_MAX = 1_000


@dataclass(slots=True, kw_only=True)
class SendTally:
    """What is known of the sending so far."""

    deduplicated: bool
    ids: list[str] = field(default_factory=list)  # the first ones
    count: int = 0  # sent for sure
    unknown: int = 0  # given to the broker, which has not answered

    def answered(self, ids: Sequence[str]) -> None:
        """The broker took them."""
        self.count, self.unknown = self.count + len(ids), 0
        self.ids += ids[: IDS_SHOWN_MAX - len(self.ids)]

    def document(self, queue: str) -> dict[str, Any]:
        """For --json, however the sending ended."""
        return {"queue": queue, "sent": self.count, "unknown": self.unknown, "message_ids": self.ids}

    @property
    def interrupted(self) -> str:
        """How it stands after Ctrl-C."""
        parts = [f"{counted(self.count, 'message')} sent"] if self.count else []
        if self.unknown:
            perhaps = f"perhaps the next {self.unknown:,}"
            parts.append(perhaps if self.count else f"perhaps {counted(self.unknown, 'message')} sent")
        return ", ".join([*parts, "and no more"]) if parts else "nothing was sent"

    @property
    def failed(self) -> str:
        """How it stands after an error, and whether it is safe to send again."""
        sure = f"{counted(self.count, 'message')} sent" if self.count else ""
        if not self.unknown:
            return f"{sure}, the rest was not." if sure else "Nothing was sent."
        one = self.unknown == 1
        which = "the next message was" if one else f"the next {self.unknown:,} messages were"
        doubt = f"nobody knows whether {which} sent, and the rest was not."
        again = "it" if one else "them"
        safe = (
            "Within five minutes it is safe to send it again: its deduplication id drops a second one."
            if self.deduplicated
            else f"Sending {again} again may send {again} twice; with a deduplication id that would be safe."
        )
        return f"{sure}; {doubt} {safe}" if sure else f"Nothing is sent for sure: {doubt} {safe}"


STDIN = "-"

Sent = Callable[[int, int], None]  # told of messages and bytes


def send(
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue's name.")],
    file: Annotated[
        str | None,
        typer.Option("--file", metavar="FILE", help="Read the lines from here; default, and -: standard input."),
    ] = None,
    body: Annotated[str | None, typer.Option("--body", metavar="JSON", help="One message, given here.")] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Lines are text of any kind; default: JSON.")] = False,
    group: Annotated[
        str | None, typer.Option("--group", metavar="GROUP", help="The tenant that the messages belong to.")
    ] = None,
    delay: Annotated[
        str | None, typer.Option("--delay", metavar="TIME", help="Invisible for so long: seconds, or such as 2m.")
    ] = None,
    deduplication_id: Annotated[
        str | None,
        typer.Option(
            "--deduplication-id", metavar="ID", help="A second message of this id is dropped; for one message."
        ),
    ] = None,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="module:attribute; bodies have to fit its queue's model.")
    ] = None,
    json_: Json = False,
) -> None:
    """Send messages: a JSON value a line, from standard input or a file.

    Lines are sent in chunks, and a chunk only when all its lines are in order; blank lines are left out. What was sent
    before a bad line stays sent, and how much that was is said; so is of how many nobody knows, where the broker did
    not answer.
    """
    if body is not None and file is not None:
        raise UsageError("Give --body or --file, not both.")
    for option, given in (("--group", group), ("--deduplication-id", deduplication_id)):
        if given == "":
            raise UsageError(f"{option} is empty: name one, or leave the option out.")
    delay_seconds = 0.0 if delay is None else duration("--delay", delay, zero=True)
    one = deduplication_id is not None
    typed = body is None and file in (None, STDIN) and sys.stdin.isatty()
    with _sender(app, queue) as sender, _progress(_size(file) if body is None else None, bar=not typed) as told:
        deduplicated = one and _drops_duplicates(sender, queue)
        tally = SendTally(deduplicated=deduplicated)
        maker = _Maker(
            sender, queue, raw=raw, group=group, delay_seconds=delay_seconds, deduplication_id=deduplication_id
        )
        chunks = iter([[(1, body.encode())]]) if body is not None else _chunks_of(file)
        try:
            _send_all(maker, only_one(chunks) if one else chunks, told, tally)
        except PenstockError:
            if json_:
                print_json(tally.document(queue))
            raise
    if not tally.count:
        talk("There was nothing to send: the input is empty.")
    if one and not deduplicated:
        talk(printable(f"{queue} takes no notice of deduplication ids: on SQS only FIFO queues do."))
    if json_:
        print_json(tally.document(queue))
    elif tally.count:
        unless = ", unless one of this deduplication id was sent within five minutes" if deduplicated else ""
        print(printable(f"{counted(tally.count, 'message')} sent to {queue}{unless}."))


def _drops_duplicates(sender: "App", queue: str) -> bool:
    """On SQS it is the kind of queue that decides, which its name tells."""
    from penstock.messaging.broker import is_fifo

    return sender.broker.capabilities.deduplicates or is_fifo(queue)


class _Interrupted(PenstockError):
    """Ctrl-C: sending again from the start would send what was sent twice."""

    exit_code = INTERRUPTED


class _Maker:
    """From lines to messages, and on to the broker."""

    def __init__(
        self,
        app: "App",
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
        self._typed = contract is not None and contract.model is not None
        self._bytes_max = app.broker.capabilities.body_bytes_max
        if raw and self._typed:
            raise UsageError(
                f"The queue {queue} has a model in this app, which raw text does not fit; leave out --raw."
            )

    def messages(self, lines: Sequence[Line]) -> "list[Outgoing]":
        """All of them, or `UsageError` for the first that is none."""
        return [self._message(number, line) for number, line in lines]

    def send(self, messages: "Sequence[Outgoing]") -> Sequence[str]:
        return self._app.broker.send(self._queue, messages)

    def _message(self, number: int, line: bytes) -> "Outgoing":
        try:
            value = None if self._raw else _json(line)
            outgoing = self._app.outgoing(
                self._queue,
                value if self._typed else line,  # what is in order goes as it was written
                group=self._group,
                delay=self._delay_seconds,
                deduplication_id=self._deduplication_id,
            )
            if len(outgoing.body) > self._bytes_max:
                raise UsageError(f"its body has {len(outgoing.body):,} bytes, and {self._bytes_max:,} is the most.")
            return outgoing
        except PenstockError as error:
            raise UsageError(f"Line {number:,} cannot be sent: {error}") from error


def _json(line: bytes) -> object:
    from penstock.messaging import schema

    try:
        return schema.load(schema.decode(line))
    except InvalidMessage as error:
        raise UsageError(f"{error}; text that need not be JSON is sent with --raw.") from error


def _send_all(maker: _Maker, chunks: Iterator[Sequence[Line]], told: Sent, tally: SendTally) -> None:
    """Send chunk by chunk, and keep the tally."""
    try:
        for lines in chunks:
            messages = maker.messages(lines)
            tally.unknown = len(messages)
            sent = maker.send(messages)
            tally.answered(sent)
            told(len(sent), sum(len(line) + 1 for _, line in lines))
    except KeyboardInterrupt:
        raise _Interrupted(f"interrupted; {tally.interrupted}.") from None
    except PenstockError as error:
        if not isinstance(error, UnknownOutcome):
            tally.unknown = 0
        talk(tally.failed)
        raise


@contextmanager
def _sender(app_name: str | None, queue: str) -> "Iterator[App]":
    from penstock.app.app import App
    from penstock.app.loading import load_app
    from penstock.app.queues import check_shared

    app = App.from_config() if app_name is None else load_app(app_name)
    known = [service.queue_name for service in app.services]
    if app_name is not None and queue not in known:
        raise UsageError(
            f"{app_name} has nothing for the queue {queue}, so bodies cannot be checked; its queues: "
            f"{', '.join(known) or 'none'}. Leave out --app to send them as they are."
        )
    check_shared(app.settings)
    with app:
        yield app


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
    """A bar on a terminal, unless somebody types there; else a line now and then."""
    if not (bar and sys.stderr.isatty()):
        yield _SendProgress()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.fields[sent]:,} sent"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("send", total=bytes_total, sent=0)
        sent = 0

        def told(messages: int, size_bytes: int) -> None:
            nonlocal sent
            sent += messages
            with suppress(OSError):  # the terminal has gone
                progress.update(task, advance=size_bytes, sent=sent)

        yield told


class _SendProgress:
    """How many were sent, said every few seconds."""

    def __init__(self) -> None:
        self._sent = 0
        self._pace = ProgressPace()

    def __call__(self, messages: int, _size_bytes: int) -> None:
        self._sent += messages
        if self._pace.is_due():
            talk(f"{counted(self._sent, 'message')} sent so far")
