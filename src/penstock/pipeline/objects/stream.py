"""The object that a function receives: its identity, and its content in exactly the version of the notification.

Content is read whole and verified before its first byte is handed out: work that a function has done on half an object
cannot be undone. Content is kept in memory up to a limit, above it in an unnamed temporary file (`spooled`). Errors in
reading are both raised and remembered, so that a function that catches every exception cannot make an unreadable object
count as processed. Lines that cannot be decoded are counted, and the first of them are kept with their offsets
(`Quarantine`).
"""

import codecs
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, NamedTuple

from penstock.errors import ObjectError, ObjectUnreadable, TemporaryError, UserError
from penstock.events import QuarantineReason
from penstock.ledger.records import OriginalMessage
from penstock.objects.reference import ObjectFacts, ObjectRef
from penstock.objects.store import ObjectReader, ObjectStore
from penstock.pipeline.objects.declaration import ObjectHandlerDeclaration
from penstock.pipeline.spark.source.inflate import codec_of, inflate

LINES_KEPT_MAX = 1_000
LINES_REPORTED_MAX = 10
RAW_BYTES_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinedLine:
    """A line that `lines` left out. ``offset`` is its first byte in the (inflated) object."""

    number: int
    offset: int
    reason: str
    raw: bytes  # the first 200 bytes


class Quarantine:
    """The quarantined lines of one object. Written by the thread that reads the object."""

    def __init__(self) -> None:
        self._keep: list[QuarantinedLine] = []
        self._reasons: Counter[str] = Counter()

    @property
    def count(self) -> int:
        """The number of all quarantined lines."""
        return self._reasons.total()

    @property
    def reasons(self) -> Mapping[str, int]:
        """The number of lines by category."""
        return dict(self._reasons)

    @property
    def kept(self) -> Sequence[QuarantinedLine]:
        """The first 1,000 lines."""
        return tuple(self._keep)

    @property
    def sample(self) -> Sequence[tuple[int, str]]:
        """Offset and reason of the first 10 lines, for logs."""
        return [(line.offset, line.reason) for line in self._keep[:LINES_REPORTED_MAX]]

    def add(self, number: int, offset: int, reason: str, raw: bytes, *, word: str) -> None:
        """Add a line. ``word`` is its category, one of a small set."""
        self._reasons[word] += 1
        if len(self._keep) < LINES_KEPT_MAX:
            self._keep.append(QuarantinedLine(number=number, offset=offset, reason=reason, raw=raw[:RAW_BYTES_MAX]))


def invalid(encoding: str) -> QuarantineReason:
    """Return the category of a line that is invalid in this encoding."""
    utf8 = codecs.lookup(encoding).name == "utf-8"
    return QuarantineReason.INVALID_UTF8 if utf8 else QuarantineReason.INVALID_ENCODING


def spooled(chunks: Iterable[bytes], *, memory_bytes_max: int, scratch: Path | None) -> IO[bytes]:
    """Return a binary file with all the chunks, positioned at the start. Closing it frees the space.

    Raises `TemporaryError` if the machine cannot hold them (e.g. a full disk), and the errors of ``chunks``.
    """
    file = SpooledTemporaryFile(max_size=memory_bytes_max, dir=None if scratch is None else str(scratch))  # noqa: SIM115 - the caller closes it
    try:
        for chunk in chunks:
            try:
                file.write(chunk)
            except OSError as fault:
                raise TemporaryError(f"content cannot be kept in a temporary file: {fault}") from fault
        file.seek(0)
    except BaseException:
        file.close()
        raise
    return file


CHUNK_BYTES = 1 << 20
READ_BYTES_MAX = 64 << 20
_BOM = b"\xef\xbb\xbf"
_ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")  # of an archive, and of an empty one


class ObjectLine(NamedTuple):
    """One line of an object."""

    number: int  # 1-based, counting quarantined lines
    offset: int  # of its first byte in the (inflated) object
    text: str  # without the line ending


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentFault:
    """An error in reading the content. ``lasting``: the content itself is bad, so that a retry cannot help."""

    error: ObjectError | TemporaryError | UserError
    lasting: bool


class IncomingObject(ObjectFacts):
    """One version of one object, passed to a handler's function and closed when it returns. Not thread-safe."""

    def __init__(
        self,
        ref: ObjectRef,
        *,
        store: ObjectStore,
        reader: ObjectReader,
        original_message: OriginalMessage,
        declaration: ObjectHandlerDeclaration,
        check: Callable[[], None],
        scratch: Path | None,
    ) -> None:
        """``reader`` is the opened object. This instance closes it."""
        self._ref = ref
        self._store = store
        self._reader: ObjectReader | None = reader  # until it is used
        self._original_message = original_message
        self._declaration = declaration
        self._check = check
        self._scratch = scratch
        self._files: list[IO[bytes]] = []
        self._quarantine = Quarantine()
        self.fault: ContentFault | None = None  # the first one

    # Identity

    @property
    def object_id(self) -> bytes:
        """The identity of this version of the object: 16 bytes."""
        return self._ref.object_id

    @property
    def message_id(self) -> str:
        """The id of the message that named the object."""
        return self._original_message.message_id

    @property
    def enqueued_at(self) -> float:
        """When that message was sent: epoch seconds."""
        return self._original_message.enqueued_at

    # Content

    def open(self) -> IO[bytes]:
        """Return the stored bytes as a seekable binary file, not inflated. Each call reads the object again.

        Raises:
            ObjectError: The object is missing, changed or unreadable. Let it propagate: the handler classifies it.
            TemporaryError: The store or the local disk failed. Let it propagate too.
        """
        return self._keep(self._stored())

    def read(self, bytes_max: int = READ_BYTES_MAX) -> bytes:
        """Return all stored bytes, not inflated. Raise `ObjectUnreadable` if the object exceeds ``bytes_max``, which is
        too large for memory."""
        if self.size_bytes > bytes_max:
            raise self._lasting(f"{self.uri} has {self.size_bytes:,} bytes; at most {bytes_max:,} are read at once")
        return b"".join(self._stored())

    def lines(self) -> Iterator[ObjectLine]:
        """Yield the object's lines, ended by LF or CRLF. Content is inflated if the name ends in ``.gz``, ``.bz2`` or
        ``.zst``.

        Lines that are invalid in the handler's encoding are left out and kept in `quarantined`; they do not fail the
        object. Each line is a checkpoint.
        """
        self._quarantine = Quarantine()
        file = self._keep(self._inflated())
        bytes_max = self._declaration.line_bytes_max
        number = offset = 0
        while raw := file.readline(bytes_max + 1):
            if len(raw) > bytes_max:
                raise self._lasting(f"{self.uri} has a line of more than {bytes_max:,} bytes at offset {offset}")
            self._check()
            number += 1
            text = self._text(raw, number, offset)
            if text is not None:
                yield ObjectLine(number, offset, text)
            offset += len(raw)

    @property
    def quarantined(self) -> Sequence[QuarantinedLine]:
        """The lines that `lines` has left out so far, up to 1,000."""
        return self._quarantine.kept

    @property
    def lines_quarantined(self) -> int:
        """The number of lines that `lines` has left out so far."""
        return self._quarantine.count

    @property
    def quarantine_reasons(self) -> Mapping[str, int]:
        """The number of those lines by category."""
        return self._quarantine.reasons

    @property
    def quarantine_sample(self) -> Sequence[tuple[int, str]]:
        """Offset and reason of the first 10 of them."""
        return self._quarantine.sample

    def checkpoint(self) -> None:
        """Raise if the work must end, as `ObjectContext.checkpoint` does."""
        self._check()

    def close(self) -> None:
        """Free memory, files and the connection. A second call does nothing."""
        while self._files:
            self._files.pop().close()
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    # -- helpers -------------------------------------------------------------------------------------------------

    def _keep(self, chunks: Iterator[bytes]) -> IO[bytes]:
        try:
            file = spooled(chunks, memory_bytes_max=self._declaration.memory_bytes_max, scratch=self._scratch)
        except TemporaryError as fault:
            self._remember(fault, lasting=False)
            raise
        self._files.append(file)
        return file

    def _stored(self) -> Iterator[bytes]:
        """Yield the bytes in pieces. After the last one, the whole content is verified."""
        try:
            with self._take_reader() as reader:
                yield from self._whole(reader)
                reader.verify()
        except (ObjectError, TemporaryError) as fault:
            self._remember(fault, lasting=False)
            raise

    def _whole(self, reader: ObjectReader) -> Iterator[bytes]:
        total = 0
        while data := reader.read(CHUNK_BYTES):
            self._check()
            total += len(data)
            if total > self.size_bytes:
                break
            yield data
        if total != self.size_bytes:
            raise ObjectUnreadable(f"{self.uri} was announced with {self.size_bytes:,} bytes and has another size")

    def _inflated(self) -> Iterator[bytes]:
        codec = codec_of(self._ref)
        if codec is None:
            yield from self._no_archive(self._stored())
            return
        with self.open() as compressed:  # verified as stored, so any error from here on is in the content
            pieces = inflate(
                compressed.read,
                codec,
                piece_bytes=CHUNK_BYTES,
                total_bytes_max=self._declaration.inflated_bytes_max,
                uri=self.uri,
            )
            try:
                for piece in pieces:
                    self._check()
                    yield piece
            except (ObjectUnreadable, UserError) as error:  # UserError: the codec is not installed
                self._remember(error, lasting=True)
                raise

    def _no_archive(self, chunks: Iterator[bytes]) -> Iterator[bytes]:
        for number, chunk in enumerate(chunks):
            if number == 0 and chunk.startswith(_ZIP_MAGICS):
                raise self._lasting(f"{self.uri} is a zip archive and has no lines; open it and bound what you inflate")
            yield chunk

    def _take_reader(self) -> ObjectReader:
        reader, self._reader = self._reader, None
        return reader if reader is not None else self._store.open(self._ref)

    def _text(self, raw: bytes, number: int, offset: int) -> str | None:
        line = raw.removesuffix(b"\n")
        if len(line) < len(raw):
            line = line.removesuffix(b"\r")
        if offset == 0:
            line = line.removeprefix(_BOM)
        try:
            return line.decode(self._declaration.encoding)
        except UnicodeDecodeError as error:
            reason = f"invalid {self._declaration.encoding.upper()} at byte {error.start} of the line: {error.reason}"
            self._quarantine.add(number, offset, reason, line, word=invalid(self._declaration.encoding))
            return None

    def _lasting(self, reason: str) -> ObjectUnreadable:
        error = ObjectUnreadable(reason)
        self._remember(error, lasting=True)
        return error

    def _remember(self, error: ObjectError | TemporaryError | UserError, *, lasting: bool) -> None:
        self.fault = self.fault or ContentFault(error=error, lasting=lasting)
