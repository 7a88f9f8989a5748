"""Background actions of the dashboard: replays, purges and retries, which may outlast a request by far.

An action is one operation in a thread of the dashboard. It reports its progress, and a person can abort it: it then
stops after its current chunk and leaves the rest untouched. A few run at once, further ones wait. Actions with equal
keys never run together, and neither do actions that share a resource, such as a dead-letter queue: two replays of the
same messages at once would send some of them twice.

This is memory of one process, and bounded. The lasting record of an action is the audit in the ledger, which the
operation writes itself.
"""

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

from ulid import ULID

from penstock.errors import TemporaryError, UsageError, UserError
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.failure import failure_of
from penstock.messaging.threads import begin_thread
from penstock.operations.status.sentences import Sentence, sentence

RUNNING_MAX = 4
WAITING_MAX = 20
FINISHED_MAX = 100
NOTES_MAX = 100  # sentences that an action may add while it runs; the latest are kept
STOP_SECONDS = 10.0
RATE_SECONDS = 20.0  # the rate covers the latest progress, at most this long
_RATE_SAMPLES_MAX = 128

ActionOutcome = Literal["done", "stopped", "failed"]
ActionState = Literal["waiting", "running", "done", "aborted", "failed", "interrupted"]
ENDED: frozenset[ActionState] = frozenset({"done", "aborted", "failed", "interrupted"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionDescription:
    """An action as it was confirmed, before it begins."""

    title: Sentence
    facts: Sequence[tuple[str, str]] = ()  # filter and options: a label in English, and its value
    total: int | None = None  # the number of steps; None: unknown
    page: str = "/"  # the page that shows what the action changes
    key: Hashable = None  # an action with the key of one that has not ended is refused; None: never
    resources: frozenset[str] = frozenset()  # an action waits until no running one has any of these


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """The result of an action. "stopped": it ended early because `ActionProgress.stopped` returned True."""

    sentences: Sequence[Sentence]
    outcome: ActionOutcome = "done"
    value: object = None  # for the page that started the action


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSnapshot:
    """An action at one moment. Times are epoch seconds."""

    id: str
    kind: str
    user: str
    description: ActionDescription
    state: ActionState
    created_at: float
    started_at: float | None
    ended_at: float | None
    done: int
    total: int | None
    per_second: float | None  # None: unknown, or the action does not run
    seconds_left: float | None
    sentences: Sequence[Sentence]  # what it reported so far, and its result
    stop_requested: bool
    aborted_by: str | None
    waits_for: str | None  # the id of a running action that has the same resource
    value: object

    @property
    def ended(self) -> bool:
        return self.state in ENDED


class ActionRunsAlready(UsageError):
    """An equal action has not ended yet."""

    def __init__(self, action_id: str) -> None:
        super().__init__("The same action runs already: wait for its end, or abort it first.")
        self.action_id = action_id


class ActionProgress:
    """The handle of a running action. Used by the thread that runs it."""

    def __init__(self, runner: "ActionRunner", action: "_Action") -> None:
        self._runner = runner
        self._action = action

    def stopped(self) -> bool:
        """Return True if the action has to end after its current chunk."""
        return self._action.stop_requested.is_set()

    def add(self, count: int) -> None:
        """Report that this many more steps are done."""
        self._runner.progressed(self._action, count)

    def say(self, text: Sentence) -> None:
        """Add a sentence for people, while the action runs."""
        self._runner.noted(self._action, text)


ActionFunction = Callable[[ActionProgress], ActionResult]


class _Action:
    """The mutable state of one action. All of it is written under the runner's lock."""

    def __init__(self, kind: str, user: str, described: ActionDescription, run: ActionFunction, now: float) -> None:
        self.id = str(ULID())
        self.kind = kind
        self.user = user
        self.described = described
        self.run = run
        self.created_at = now
        self.state: ActionState = "waiting"
        self.started_at: float | None = None
        self.ended_at: float | None = None
        self.notes: deque[Sentence] = deque(maxlen=NOTES_MAX)
        self.done = 0
        self.samples: deque[tuple[float, int]] = deque(maxlen=_RATE_SAMPLES_MAX)  # monotonic time, steps done by then
        self.result: Sequence[Sentence] = ()
        self.value: object = None
        self.stop_requested = threading.Event()
        self.stopped_as: Literal["aborted", "interrupted"] = "interrupted"
        self.aborted_by: str | None = None
        self.has_ended = threading.Event()


class ActionRunner:
    """Run actions in threads of this process, and remember the latest ones. Thread-safe."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        running_max: int = RUNNING_MAX,
        waiting_max: int = WAITING_MAX,
        finished_max: int = FINISHED_MAX,
    ) -> None:
        self._clock = clock or SystemClock()
        self._running_max = running_max
        self._waiting_max = waiting_max
        self._finished_max = finished_max
        self._lock = threading.Lock()
        self._actions: dict[str, _Action] = {}  # oldest first; this and the next two are written under the lock
        self._closed = False
        self._listeners: list[Callable[[], None]] = []

    def when_ended(self, listener: Callable[[], None]) -> None:
        """Call ``listener``, in the action's thread, after each action that ran. It must not block."""
        with self._lock:
            self._listeners.append(listener)

    def start(self, kind: str, user: str, describe: ActionDescription, run: ActionFunction) -> str:
        """Start an action, or let it wait; return its id.

        ``kind`` is a word that pages translate: replay, purge, retry. ``user`` is the name for the audit.

        Raises:
            ActionRunsAlready: an action with the same key has not ended.
            UsageError: too many actions wait already.
            TemporaryError: the dashboard stops.
        """
        action = _Action(kind, user, describe, run, self._clock.now())
        with self._lock:
            self._check(describe)
            self._actions[action.id] = action
        self._start_waiting()
        return action.id

    def abort(self, action_id: str, *, user: str) -> bool:
        """Stop an action after its current chunk; return False if it has ended, or is unknown."""
        with self._lock:
            action = self._actions.get(action_id)
            if action is None or action.state in ENDED:
                return False
            if not action.stop_requested.is_set():
                action.aborted_by = user
                self._request_stop(action, "aborted")
        return True

    def find(self, action_id: str) -> ActionSnapshot | None:
        """Return one action; None if it is unknown or was forgotten."""
        with self._lock:
            action = self._actions.get(action_id)
            return None if action is None else self._snapshot(action)

    def latest(self) -> Sequence[ActionSnapshot]:
        """Return all remembered actions, newest first."""
        with self._lock:
            return [self._snapshot(action) for action in reversed(self._actions.values())]

    def wait(self, action_id: str, seconds: float) -> ActionSnapshot | None:
        """Wait at most this long for the end of an action; return it as it is then."""
        with self._lock:
            action = self._actions.get(action_id)
        if action is not None:
            action.has_ended.wait(seconds)
        return self.find(action_id)

    def stop(self, *, seconds: float = STOP_SECONDS) -> int:
        """Stop all actions, and wait for them at most this long; return how many have not ended by then.

        An action that has not ended is not harmed: its audit entry stays without an outcome, as after a kill.
        """
        with self._lock:
            self._closed = True
            left = [action for action in self._actions.values() if action.state not in ENDED]
            for action in left:
                self._request_stop(action, "interrupted")
        end_at = self._clock.monotonic() + seconds
        return sum(not action.has_ended.wait(max(0.0, end_at - self._clock.monotonic())) for action in left)

    def progressed(self, action: _Action, count: int) -> None:
        """Count steps of a running action. This and the next one are called by its `ActionProgress`."""
        with self._lock:
            action.done += count
            action.samples.append((self._clock.monotonic(), action.done))

    def noted(self, action: _Action, text: Sentence) -> None:
        """Add a sentence to a running action."""
        with self._lock:
            action.notes.append(text)

    def _check(self, described: ActionDescription) -> None:
        if self._closed:
            raise TemporaryError("the dashboard is about to stop: start the action again after its restart")
        left = [action for action in self._actions.values() if action.state not in ENDED]
        for action in left:
            if described.key is not None and action.described.key == described.key:
                raise ActionRunsAlready(action.id)
        if sum(action.state == "waiting" for action in left) >= self._waiting_max:
            raise UsageError(f"{self._waiting_max} actions wait already: start this one when some of them have ended.")

    def _request_stop(self, action: _Action, how: Literal["aborted", "interrupted"]) -> None:
        """Ask a running action to stop, and end a waiting one."""
        if not action.stop_requested.is_set():
            action.stopped_as = how
            action.stop_requested.set()
        if action.state == "waiting":
            self._end(action, how, [sentence("It had not begun: nothing was changed.")], None)

    def _start_waiting(self) -> None:
        """Start the actions that need not wait any more, in the order of their start."""
        with self._lock:
            ready = [action for action in self._actions.values() if self._begin_if_free(action)]
        for action in ready:
            try:
                begin_thread(partial(self._run, action), name="penstock-action")
            except TemporaryError as error:
                with self._lock:
                    self._end(action, "failed", [sentence("{reason}", reason=str(error))], None)

    def _begin_if_free(self, action: _Action) -> bool:
        if action.state != "waiting" or self._blocking(action) is not None:
            return False
        if sum(other.state == "running" for other in self._actions.values()) >= self._running_max:
            return False
        action.state = "running"
        action.started_at = self._clock.now()
        action.samples.append((self._clock.monotonic(), 0))
        return True

    def _blocking(self, action: _Action) -> _Action | None:
        """Return a running action that has one of the same resources."""
        running = (other for other in self._actions.values() if other.state == "running")
        return next((other for other in running if other.described.resources & action.described.resources), None)

    def _run(self, action: _Action) -> None:
        result = _result_of(action, ActionProgress(self, action))
        state: ActionState = action.stopped_as if result.outcome == "stopped" else result.outcome
        with self._lock:
            self._end(action, state, result.sentences, result.value)
            listeners = list(self._listeners)
        for listener in listeners:
            listener()
        self._start_waiting()

    def _end(self, action: _Action, state: ActionState, result: Sequence[Sentence], value: object) -> None:
        action.state = state
        action.ended_at = self._clock.now()
        action.result, action.value = result, value
        action.has_ended.set()
        ended = [other.id for other in self._actions.values() if other.state in ENDED]
        for forgotten in ended[: max(0, len(ended) - self._finished_max)]:
            del self._actions[forgotten]

    def _snapshot(self, action: _Action) -> ActionSnapshot:
        per_second = self._rate(action) if action.state == "running" else None
        total = action.described.total
        left = None if total is None else max(0, total - action.done)
        blocking = self._blocking(action) if action.state == "waiting" else None
        return ActionSnapshot(
            id=action.id,
            kind=action.kind,
            user=action.user,
            description=action.described,
            state=action.state,
            created_at=action.created_at,
            started_at=action.started_at,
            ended_at=action.ended_at,
            done=action.done,
            total=total,
            per_second=per_second,
            seconds_left=left / per_second if left is not None and per_second else None,
            sentences=[*action.notes, *action.result],
            stop_requested=action.stop_requested.is_set(),
            aborted_by=action.aborted_by,
            waits_for=None if blocking is None else blocking.id,
            value=action.value,
        )

    def _rate(self, action: _Action) -> float | None:
        """Return the steps per second of the latest progress."""
        now = self._clock.monotonic()
        while len(action.samples) > 1 and now - action.samples[1][0] > RATE_SECONDS:
            action.samples.popleft()
        since, done = action.samples[0]
        return (action.done - done) / (now - since) if now > since else None


def _result_of(action: _Action, progress: ActionProgress) -> ActionResult:
    """Run the action, and turn an exception into its result."""
    try:
        return action.run(progress)
    except (UserError, TemporaryError) as error:
        return ActionResult(sentences=[sentence("{reason}", reason=str(error))], outcome="failed")
    except Exception as error:
        text = "It failed with an error that Penstock did not expect: {reason}"
        return ActionResult(sentences=[sentence(text, reason=failure_of(error).summary)], outcome="failed")
