"""Connections of the dashboard's server: few enough, and none that keeps a place without a request.

A client needs no user to connect. Without bounds it could use up the process's file descriptors, which a worker with
`--web` needs for its own work.
"""

from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX = 500  # event streams among them
REQUEST_SECONDS = 10.0  # for the head of a request, from the connection or the response before it


class DashboardConnection(H11Protocol):
    """One HTTP connection. Used by the event loop's thread, as all of uvicorn is."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._waits_since = 0.0  # for a request, by the loop's clock
        self._is_ended = False
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Begin. The connection that has waited longest for a request makes room if there are too many."""
        super().connection_made(transport)
        self._waits_since = self.loop.time()
        self._timer = self.loop.call_later(REQUEST_SECONDS, self._end_if_late)
        open_ = [one for one in self.connections if isinstance(one, DashboardConnection) and not one._is_ended]
        if len(open_) > CONNECTIONS_MAX:
            waiting = [one for one in open_ if one is not self and one._waits]
            min(waiting, key=lambda one: one._waits_since, default=self)._end()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._timer is not None:
            self._timer.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._waits_since = self.loop.time()

    @property
    def _waits(self) -> bool:
        """True if no request is being answered."""
        return getattr(self.cycle, "response_complete", True)  # there is no cycle before the first request

    def _end_if_late(self) -> None:
        left = REQUEST_SECONDS
        if self._waits:
            left = self._waits_since + REQUEST_SECONDS - self.loop.time()
        if left <= 0:
            self._end()
        else:
            self._timer = self.loop.call_later(left, self._end_if_late)

    def _end(self) -> None:
        self._is_ended = True
        self.transport.abort()
