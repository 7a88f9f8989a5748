"""On ECS, protect the task from scale-in and deployments while it processes long-running messages.

While a message is in flight for longer than a drain would wait for it, the worker asks the ECS agent for protection,
once a minute; a failure is reported once. Shorter work asks for none, since a stop waits for it: otherwise a task that
is always busy could never be replaced. Nothing removes the protection, because the processes of a task share it and
none knows if another one still needs it. It expires a few minutes after the last request, also if a process is killed.

The requests run in one thread beside the worker. It cannot delay the work: the listener only notes times, and the
thread's calls are bounded.
"""

import http.client
import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from penstock.config import Settings
from penstock.events import (
    Event,
    LeaseLost,
    Listener,
    MessagesReceived,
    SelectiveListener,
    SettlementFailed,
    SettlementsApplied,
    TaskProtected,
    TaskProtectionFailed,
)
from penstock.messaging.clock import Clock
from penstock.worker.shutdown import StopSignal

EXPIRES_IN_MINUTES = 3  # AWS accepts 1 to 2,880
RENEW_SECONDS = 60.0  # so one failed call leaves two more before the protection expires
CHECK_SECONDS = 5.0
CALL_SECONDS = 5.0  # the agent's own call to ECS may take 4
RESPONSE_BYTES_MAX = 64 * 1024

Ask = Callable[[int], None]  # for that many minutes; raises OSError with a reason for people


def protections(
    settings: Settings, *, long_seconds: float, stop: StopSignal, clock: Clock
) -> Sequence["TaskProtection"]:
    """Return the protection if the settings ask for it. ``long_seconds``: how long a stop waits for running work."""
    if not settings.worker_ecs_task_protection:
        return ()
    return (TaskProtection(ask_agent(settings.ecs_agent_uri), long_seconds=long_seconds, stop=stop, clock=clock),)


class TaskProtection(SelectiveListener):
    """A listener for the worker's bus, and the thread that requests protection.

    ``long_seconds``: how long a stop waits for running work.
    """

    def __init__(self, ask: Ask, *, long_seconds: float, stop: StopSignal, clock: Clock) -> None:
        self._ask = ask
        self._long_seconds = long_seconds
        self._stop = stop
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}  # monotonic, by queue and message id; under the lock
        self._protected_until: float | None = None  # monotonic, as is the next; written by the requesting thread
        self._next_call_at = 0.0
        self._failing = False
        self._ended = threading.Event()

    def wants(self, kind: type[Event]) -> bool:
        return kind in (MessagesReceived, SettlementsApplied, LeaseLost, SettlementFailed)

    def __call__(self, event: Event) -> None:
        match event:
            case MessagesReceived():
                now = self._clock.monotonic()
                with self._lock:
                    self._since.update(((event.queue, name), now) for name in event.message_ids)
            case SettlementsApplied():
                self._forget(event.queue, event.message_ids)
            case LeaseLost() | SettlementFailed(lost=True):
                self._forget(event.queue, [event.message_id])
            case _:
                pass

    @contextmanager
    def beside(self, emit: Listener) -> Iterator[None]:
        """Run the thread inside the block; a call in progress at the end is left behind."""
        thread = threading.Thread(target=self._run, args=(emit,), name="penstock-task-protection", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()

    def check(self, emit: Listener) -> None:
        """Request protection if it is due; emit an event for a change."""
        now = self._clock.monotonic()
        if self._protected_until is not None and now >= self._protected_until:
            self._protected_until = None
        if not self._wanted(now) or now < self._next_call_at:
            return
        self._next_call_at = now + RENEW_SECONDS
        try:
            self._ask(EXPIRES_IN_MINUTES)
        except Exception as error:  # any error: the work goes on
            if not self._failing:
                self._failing = True
                emit(TaskProtectionFailed(error=f"{type(error).__name__}: {error}"))
            return
        self._failing = False
        if self._protected_until is None:
            emit(TaskProtected(expires_in_seconds=EXPIRES_IN_MINUTES * 60.0))
        self._protected_until = now + EXPIRES_IN_MINUTES * 60.0

    def _forget(self, queue: str, message_ids: Sequence[str]) -> None:
        with self._lock:
            for message_id in message_ids:
                self._since.pop((queue, message_id), None)

    def _run(self, emit: Listener) -> None:
        # A stopping task can no longer be protected.
        while not self._stop.requested and not self._clock.wait(self._ended, CHECK_SECONDS):
            self.check(emit)

    def _wanted(self, now: float) -> bool:
        with self._lock:
            return not self._stop.requested and any(now - since >= self._long_seconds for since in self._since.values())


def ask_agent(agent_uri: str | None) -> Ask:
    """Return a function that calls the ECS agent's endpoint for the containers of a task, ``ECS_AGENT_URI``."""
    opener = build_opener(ProxyHandler({}))  # the agent is on this host: never use a proxy

    def ask(minutes: int) -> None:
        if not agent_uri:
            raise OSError("ECS_AGENT_URI is not set, so this is not an ECS task")
        body = json.dumps({"ProtectionEnabled": True, "ExpiresInMinutes": minutes}).encode()
        request = Request(
            f"{agent_uri.rstrip('/')}/task-protection/v1/state",
            data=body,
            method="PUT",
            headers={"Content-Type": "application/json"},
        )
        try:
            with opener.open(request, timeout=CALL_SECONDS) as response:
                content = response.read(RESPONSE_BYTES_MAX)
        except HTTPError as error:
            with error:
                content = error.read(RESPONSE_BYTES_MAX)
            raise OSError(refusal(content) or f"the agent returned the status {error.code}") from error
        except http.client.HTTPException as error:
            raise OSError(f"the agent returned no valid HTTP response: {error!r}") from error
        reason = refusal(content)
        if reason is not None:
            raise OSError(reason)

    return ask


def refusal(response: bytes) -> str | None:
    """Return why the agent refuses protection, from its response; None if it protects the task."""
    try:
        document = json.loads(response)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        return "the agent's response is not a JSON object"
    failure, error, protection = (document.get(part) for part in ("failure", "error", "protection"))
    if isinstance(failure, dict):
        return f"{failure.get('Reason')}: {failure.get('Detail') or 'no detail'}"
    if isinstance(error, dict):
        return f"{error.get('Code')}: {error.get('Message')}"
    if isinstance(protection, dict) and protection.get("ProtectionEnabled") is True:
        return None
    return "the agent's response does not confirm the protection"
