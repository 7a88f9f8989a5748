"""The context of a dashboard: its scope, and everything that its pages share."""

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from starlette.requests import Request

from penstock.app.scope import Scope
from penstock.config import Settings
from penstock.messaging.clock import Clock
from penstock.operations.inspection import ScopeView, view
from penstock.web.actions import ActionRunner
from penstock.web.charts import ChartSource, Sparklines
from penstock.web.dead_letter_watch import CountingTurn, DeadLetterWatch
from penstock.web.queue_details import QueueDetailReader
from penstock.web.received import ReceivedMessages
from penstock.web.sampling import Sampler

IDLE_VIEWS_MAX = 4
VIEW_SECONDS_MAX = 60.0  # then a view is opened anew: a ledger or a queue may have been created since


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardContext:
    """The values that the pages of one dashboard share. ``title`` names the app or the table.

    ``plans`` runs what actions begin with: counting the messages that they would change, which changes nothing.
    """

    title: str
    scope: Scope
    clock: Clock
    sampler: Sampler
    views: "ViewPool"
    charts: ChartSource
    sparklines: Sparklines
    queue_details: QueueDetailReader
    received: ReceivedMessages = field(default_factory=ReceivedMessages)
    actions: ActionRunner
    plans: ActionRunner
    dead_letters: DeadLetterWatch
    counting: CountingTurn

    @property
    def settings(self) -> Settings:
        """The settings of the scope."""
        return self.scope.settings

    @contextmanager
    def view(self) -> Iterator[ScopeView]:
        """Yield a read-only view of the scope, for this thread."""
        with self.views.borrowed() as seen:
            yield seen

    def close(self) -> None:
        """Stop the threads and close the connections. Actions end after their current chunk."""
        self.plans.stop(seconds=0.0)
        self.actions.stop()
        self.dead_letters.close()
        self.sampler.close()
        self.views.close()


def context_of(request: Request) -> DashboardContext:
    """Return the context of the dashboard that serves this request."""
    context: DashboardContext = request.app.state.context
    return context


class _PooledView(NamedTuple):
    seen: ScopeView
    closing: ExitStack
    opened_at: float  # monotonic


class ViewPool:
    """Views of a scope that are used again, so that not every request opens connections. Thread-safe.

    A view belongs to one thread at a time. One whose block raised is closed.
    """

    def __init__(self, scope: Scope, *, clock: Clock) -> None:
        self._scope = scope
        self._clock = clock
        self._lock = threading.Lock()
        self._idle: deque[_PooledView] = deque()  # guarded by the lock, as is the next
        self._closed = False

    @contextmanager
    def borrowed(self) -> Iterator[ScopeView]:
        """Yield a view that no other thread uses meanwhile."""
        pooled = self._take()
        try:
            yield pooled.seen
        except BaseException:
            pooled.closing.close()
            raise
        self._put_back(pooled)

    def close(self) -> None:
        """Close the idle views, and each other one when its block ends."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, deque()
        for pooled in idle:
            pooled.closing.close()

    def _take(self) -> _PooledView:
        while True:
            with self._lock:
                pooled = self._idle.pop() if self._idle else None
            if pooled is None:
                closing = ExitStack()
                return _PooledView(closing.enter_context(view(self._scope)), closing, self._clock.monotonic())
            if self._clock.monotonic() - pooled.opened_at < VIEW_SECONDS_MAX:
                return pooled
            pooled.closing.close()

    def _put_back(self, pooled: _PooledView) -> None:
        with self._lock:
            if not self._closed and len(self._idle) < IDLE_VIEWS_MAX:
                self._idle.append(pooled)
                return
        pooled.closing.close()
