"""On ECS: keep the task from being scaled in, or replaced by a deploy, while it works on something long.

Duties: know which messages are in flight here and for how long; while one of them has been for longer than a drain
would wait for it, ask the agent of ECS for protection, again and again; tell once when that fails. Shorter work needs
none, since a stop lets it come to its end, and a task that always has something short to do would else never be
replaced. Protection is never taken off: it runs out a few minutes after it was asked for last. Several processes of one
task share it, so that none of them can say that it is over; and what is killed leaves none behind.

One thread beside the worker. Nothing here reaches the work: the listener notes numbers, and the thread's calls are
bounded.
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
    ChoosyListener,
    DeliverySettled,
    Event,
    LeaseLost,
    Listener,
    MessagesReceived,
    SettleFailed,
    TaskProtected,
    TaskProtectionFailed,
)
from penstock.messaging.clock import Clock
from penstock.worker.shutdown import StopSignal

EXPIRES_IN_MINUTES = 3  # AWS takes 1 to 2,880
RENEW_SECONDS = 60.0  # so one call that fails leaves two more before the protection runs out
LOOK_SECONDS = 5.0
CALL_SECONDS = 5.0  # the agent gives its own call to ECS four of them
ANSWER_BYTES_MAX = 64 * 1024

Ask = Callable[[int], None]  # for so many minutes; raises OSError with a reason for people


def protections(
    settings: Settings, *, long_seconds: float, stop: StopSignal, clock: Clock
) -> Sequence["TaskProtection"]:
    """One, or none: as the settings say. ``long_seconds`` is what a stop lets come to its end."""
    if not settings.ecs_task_protection:
        return ()
    return (TaskProtection(ask_agent(settings.ecs_agent_uri), long_seconds=long_seconds, stop=stop, clock=clock),)


class TaskProtection(ChoosyListener):
    """A listener for the worker's bus, and the thread that asks. ``long_seconds``: what a stop lets come to its end."""

    def __init__(self, ask: Ask, *, long_seconds: float, stop: StopSignal, clock: Clock) -> None:
        self._ask = ask
        self._long_seconds = long_seconds
        self._stop = stop
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[tuple[str, str], float] = {}  # under the lock: queue and message id, monotonic
        self._protected_until: float | None = None  # this and the next two: monotonic, written by the thread that asks
        self._next_call_at = 0.0
        self._failing = False
        self._ended = threading.Event()

    def hears(self, kind: type[Event]) -> bool:
        return kind in (MessagesReceived, DeliverySettled, LeaseLost, SettleFailed)

    def __call__(self, event: Event) -> None:
        match event:
            case MessagesReceived():
                now = self._clock.monotonic()
                with self._lock:
                    self._since.update(((event.queue, name), now) for name in event.message_ids)
            case DeliverySettled() | LeaseLost() | SettleFailed(lost=True):
                with self._lock:
                    self._since.pop((event.queue, event.message_id), None)
            case _:
                pass

    @contextmanager
    def beside(self, tell: Listener) -> Iterator[None]:
        """Until the block ends; a call that is under way then is left behind."""
        thread = threading.Thread(target=self._run, args=(tell,), name="penstock-task-protection", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()

    def look(self, tell: Listener) -> None:
        """Ask for protection where it is due; tell what changed."""
        now = self._clock.monotonic()
        if self._protected_until is not None and now >= self._protected_until:
            self._protected_until = None
        if not self._wanted(now) or now < self._next_call_at:
            return
        self._next_call_at = now + RENEW_SECONDS
        try:
            self._ask(EXPIRES_IN_MINUTES)
        except Exception as error:  # whatever it is, the work goes on
            if not self._failing:
                self._failing = True
                tell(TaskProtectionFailed(error=f"{type(error).__name__}: {error}"))
            return
        self._failing = False
        if self._protected_until is None:
            tell(TaskProtected(expires_in_seconds=EXPIRES_IN_MINUTES * 60.0))
        self._protected_until = now + EXPIRES_IN_MINUTES * 60.0

    def _run(self, tell: Listener) -> None:
        # What is being stopped cannot be protected any more.
        while not self._stop.requested and not self._clock.wait(self._ended, LOOK_SECONDS):
            self.look(tell)

    def _wanted(self, now: float) -> bool:
        with self._lock:
            return not self._stop.requested and any(now - since >= self._long_seconds for since in self._since.values())


def ask_agent(agent_uri: str | None) -> Ask:
    """Over the endpoint that ECS's agent gives to each container of a task, at ``ECS_AGENT_URI``."""
    opener = build_opener(ProxyHandler({}))  # it is on this host, whatever proxy leads elsewhere

    def ask(minutes: int) -> None:
        if not agent_uri:
            raise OSError("there is no ECS_AGENT_URI, so this is no task of ECS")
        body = json.dumps({"ProtectionEnabled": True, "ExpiresInMinutes": minutes}).encode()
        request = Request(
            f"{agent_uri.rstrip('/')}/task-protection/v1/state",
            data=body,
            method="PUT",
            headers={"Content-Type": "application/json"},
        )
        try:
            with opener.open(request, timeout=CALL_SECONDS) as answer:
                said = answer.read(ANSWER_BYTES_MAX)
        except HTTPError as error:
            with error:
                said = error.read(ANSWER_BYTES_MAX)
            raise OSError(refusal(said) or f"the agent answered {error.code}") from error
        except http.client.HTTPException as error:
            raise OSError(f"the agent's answer is none: {error!r}") from error
        reason = refusal(said)
        if reason is not None:
            raise OSError(reason)

    return ask


def refusal(answer: bytes) -> str | None:
    """Why the agent does not protect, by its answer; None where it does."""
    try:
        said = json.loads(answer)
    except ValueError:
        said = None
    if not isinstance(said, dict):
        return "the agent's answer is no JSON object"
    failure, error, protection = (said.get(part) for part in ("failure", "error", "protection"))
    if isinstance(failure, dict):
        return f"{failure.get('Reason')}: {failure.get('Detail') or 'no detail'}"
    if isinstance(error, dict):
        return f"{error.get('Code')}: {error.get('Message')}"
    if isinstance(protection, dict) and protection.get("ProtectionEnabled") is True:
        return None
    return "the agent's answer names no protection"
