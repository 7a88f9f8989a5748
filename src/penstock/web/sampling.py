"""One thread that reads the status for all viewers, and wakes their event streams."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from penstock.errors import PenstockError
from penstock.messaging.clock import Clock
from penstock.messaging.failure import failure_of
from penstock.messaging.threads import WorkThread
from penstock.operations.status.watch import StatusFrame

VIEWED_SECONDS = 30.0  # after the last request for a frame, readings become rare
IDLE_FACTOR = 5.0  # between readings that no person waits for, as a multiple of the usual time
REST_FACTOR = 3.0  # the least rest after a reading, as a multiple of its duration: many queues are read less often
IDLE_REST_FACTOR = 100.0  # the same while no person looks
IDLE_REST_SECONDS_MAX = 120.0  # so that the lines of charts, which are recorded from readings, stay unbroken
FRAME_SECONDS_MAX = 10.0  # the longest wait of a page for a reading
CLOSE_SECONDS = 1.0  # for a reading in progress, at a stop; a hanging service must not delay it
THREAD = "penstock-web-sampler"


class Sampler:
    """The newest reading of the status. Thread-safe.

    However many people look, the broker and the ledger are read by one thread, every ``every_seconds``. If no person
    looks, it reads less often. ``on_frame`` gets each reading in that thread.
    """

    def __init__(
        self,
        read: Callable[[], StatusFrame],
        *,
        every_seconds: float,
        clock: Clock,
        on_frame: Sequence[Callable[[StatusFrame], None]] = (),
    ) -> None:
        self._read = read
        self._every_seconds = every_seconds
        self._clock = clock
        self._on_frame = on_frame
        self._changed = threading.Condition()
        self._frame: StatusFrame | None = None  # guarded by the condition, as are the next ones
        self._last_status: StatusFrame | None = None  # the newest frame with a status
        self._requested = 1  # the last reading asked for
        self._completed = 0  # the last one that began after its request
        self._viewed_at = -VIEWED_SECONDS  # monotonic
        self._was_viewed = False
        self._streams: set[_Viewer] = set()
        self._closed = False
        self._wanted = threading.Event()  # set: read now
        self._thread: WorkThread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = WorkThread(self._run, name=THREAD)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread, and end every stream."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            streams = list(self._streams)
        for stream in streams:
            stream.wake()
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)

    @property
    def streams(self) -> int:
        """The number of open event streams."""
        with self._changed:
            return len(self._streams)

    def frame(self) -> StatusFrame:
        """Return the newest reading.

        Wait for the first one, for a new one after a time without viewers, and for the one that `refresh` asked for.
        """
        with self._changed:
            if self._note_view():
                self._request()
            requested = self._requested
            self._changed.wait_for(lambda: self._completed >= requested or self._closed, FRAME_SECONDS_MAX)
            return self._frame or StatusFrame(
                at=self._clock.now(), status=None, error="the first reading takes longer than usual"
            )

    def last_status(self) -> StatusFrame | None:
        """Return the newest reading with a status: an older one while a service is unavailable."""
        with self._changed:
            return self._last_status

    def wait_for_viewer(self, seconds: float) -> bool:
        """Wait until a page was requested, at most this long; return True if one was."""
        with self._changed:
            return self._changed.wait_for(lambda: self._was_viewed, seconds)

    def refresh(self) -> None:
        """Read again at once: something was changed through a page, and the next one has to show it."""
        with self._changed:
            self._request()

    @asynccontextmanager
    async def changes(self) -> AsyncIterator[AsyncIterator[float]]:
        """Yield an iterator over the times of new readings (epoch seconds), until the sampler is closed."""
        stream = _Viewer(asyncio.get_running_loop())
        with self._changed:
            self._streams.add(stream)
        try:
            yield self._times(stream)
        finally:
            with self._changed:
                self._streams.discard(stream)

    async def _times(self, stream: "_Viewer") -> AsyncIterator[float]:
        last: float | None = None
        while True:
            with self._changed:
                self._note_view()
                frame, closed = self._frame, self._closed
            if closed:
                return
            if frame is not None and frame.at != last:
                last = frame.at
                yield last
            await stream.wait()

    def _request(self) -> None:
        """Ask for a new reading. The caller holds the condition."""
        self._requested += 1
        self._wanted.set()

    def _note_view(self) -> bool:
        """Note that a person looks; return True if the reading may be old. The caller holds the condition."""
        now = self._clock.monotonic()
        outdated = now - self._viewed_at >= VIEWED_SECONDS and not self._streams
        self._viewed_at = now
        if not self._was_viewed:
            self._was_viewed = True
            self._changed.notify_all()
        return outdated

    def _run(self) -> None:
        while True:
            with self._changed:
                self._wanted.clear()
                requested = self._requested
            began_at = self._clock.monotonic()
            frame = self._read_safely()
            took_seconds = self._clock.monotonic() - began_at
            for listener in self._on_frame:
                listener(frame)
            with self._changed:
                if self._closed:
                    return
                self._frame, self._completed = frame, requested
                if frame.status is not None:
                    self._last_status = frame
                self._changed.notify_all()
                streams = list(self._streams)
                viewed = streams or self._clock.monotonic() - self._viewed_at < VIEWED_SECONDS
            for stream in streams:
                stream.wake()
            self._clock.wait(self._wanted, self._rest_seconds(took_seconds, viewed=bool(viewed)))

    def _rest_seconds(self, took_seconds: float, *, viewed: bool) -> float:
        if viewed:
            return max(self._every_seconds, REST_FACTOR * took_seconds)
        rest_seconds = min(IDLE_REST_FACTOR * took_seconds, IDLE_REST_SECONDS_MAX)
        return max(self._every_seconds * IDLE_FACTOR, REST_FACTOR * took_seconds, rest_seconds)

    def _read_safely(self) -> StatusFrame:
        try:
            return self._read()
        except PenstockError as error:
            return StatusFrame(at=self._clock.now(), status=None, error=str(error))
        except Exception as error:  # a bug, which must not end the thread
            return StatusFrame(at=self._clock.now(), status=None, error=failure_of(error).summary)


class _Viewer:
    """The wake-up signal of one event stream, set from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._event.set)
        except RuntimeError:  # the loop was closed
            return

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()
