"""The automatic replayer, as a handler of a DLQ.

For each batch: plan the replays, record the intents, send the messages that are due, record the sends, and return the
settlements. Sent messages are acked, which deletes them from the DLQ; the others keep waiting or move to the final DLQ.
A crash between any two steps sends a message at most twice, under one replay id, and loses none.

In order: `ReplayEvents` emits one event per message; `ReplayExecution` runs a batch; `ReplayLogCleanup` deletes old
records; `ReplayHandler` is the worker's view.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from penstock.dead_letters.policy import (
    HideFor,
    MoveToFinal,
    ReplayAfter,
    ReplayTarget,
    ReplayTargets,
    next_step,
    plan_replay,
)
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.events import Bus, DeadLetterReplayed, ReplaysUnrecorded
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.broker import Broker, is_fifo, send_each
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import ExecutionPlace, HeldClaim, ServiceWatch, Settlements, Unwatched
from penstock.messaging.replay import Replay, ReplayLog, dead_letter_replay_id, replayed, replays_so_far
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.messaging.steps import Probe, Step, no_probe

Result = Literal["sent", "already_sent", "waiting", "released", "set_aside"]
NAME = "replayer"
_DELAYED_SHARE_MAX = 0.5  # maximum delay of a sent message, as a share of its queue's retention
_HIDE_MARGIN_SECONDS = 60.0  # SQS limits the total time that a message can be hidden, counted from its receive
_RETRY_BASE_SECONDS, _RETRY_CAP_SECONDS = 1.0, 60.0  # before a retry, while broker or log are unavailable
FORGET_SECONDS = 600.0  # between two runs
FORGET_MAX = 1_000  # rows per delete; repeated at once while as many are found
_DELETES_MAX = 20  # deletes per run
UNKNOWN_RETENTION_SECONDS = 366 * 86_400.0  # for unlimited or unknown retention
_SLACK_SECONDS = 86_400.0  # clocks differ, and a message may be in flight when its retention ends


class ReplayEvents:
    """Emit the replayer's events. Thread-safe."""

    def __init__(self, bus: Bus, sources: ReplayTargets) -> None:
        self._bus = bus
        self._sources = sources

    def emit_sent(self, dead_letter: Delivery, replay: Replay, *, new_message_id: str | None) -> None:
        """Report that the message was sent and has this new id; None: it had been sent before."""
        result: Result = "already_sent" if new_message_id is None else "sent"
        self._emit(dead_letter, replay, result=result, new_message_id=new_message_id)

    def emit_waiting(self, dead_letter: Delivery, replay: Replay) -> None:
        """Report that the message waits in its DLQ."""
        self._emit(dead_letter, replay, result="waiting")

    def emit_set_aside(self, dead_letter: Delivery, reason: str) -> None:
        """Report that the message moves to the final DLQ."""
        self._emit(dead_letter, None, result="set_aside", reason=reason)

    def emit_released(self, dead_letter: Delivery, replay: Replay | None, error: PenstockError) -> None:
        """Report that the broker or the log is unavailable, so the message is retried."""
        self._emit(dead_letter, replay, result="released", reason=_error_text(error))

    def emit_unmarked(self, dead_letters: Sequence[Delivery], error: PenstockError) -> None:
        """Report that the messages were sent, but marking them in the log failed."""
        ids = tuple(dead_letter_replay_id(dead_letter.queue, dead_letter.message) for dead_letter in dead_letters)
        self._bus.emit(ReplaysUnrecorded(replay_ids=ids, error=_error_text(error)))

    def _emit(
        self,
        dead_letter: Delivery,
        replay: Replay | None,
        *,
        result: Result,
        reason: str | None = None,
        new_message_id: str | None = None,
    ) -> None:
        source = self._sources.of(dead_letter)
        so_far = replays_so_far(dead_letter.message.attributes)
        self._bus.emit(
            DeadLetterReplayed(
                queue=source.queue if isinstance(source, ReplayTarget) else None,
                dead_letter_queue=dead_letter.queue,
                message_id=dead_letter.message.id,
                replay_id=dead_letter_replay_id(dead_letter.queue, dead_letter.message),
                count=so_far if replay is None else replay.count,
                due_at=None if replay is None else replay.due_at,
                new_message_id=new_message_id,
                result=result,
                reason=reason,
            )
        )


class UnavailableStreak:
    """The number of consecutive batches that met an unavailable broker or log.

    Shared by the executions of one DLQ, which run one at a time; written by the thread that runs the batch.
    """

    def __init__(self) -> None:
        self.in_a_row = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayContext:
    """One DLQ and everything needed to replay its messages. ``retention_seconds`` is the DLQ's."""

    sources: ReplayTargets
    retention_seconds: float | None
    broker: Broker
    log: ReplayLog
    bus: Bus
    clock: Clock
    random: Random
    probe: Probe = no_probe
    unavailable: UnavailableStreak = field(default_factory=UnavailableStreak)
    ledger_watch: ServiceWatch = field(default_factory=Unwatched)  # of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedReplay:
    """A message and its recorded replay."""

    dead_letter: Delivery
    replay: Replay


class ReplayExecution:
    """One batch of a DLQ as a `penstock.messaging.handler.Execution`, owned by the executor. It holds no claim."""

    def __init__(self, dead_letters: Sequence[Delivery], context: ReplayContext) -> None:
        self._dead_letters = dead_letters
        self._context = context
        self._events = ReplayEvents(context.bus, context.sources)
        self._interrupted = threading.Event()  # set by the interrupting thread; nothing is sent afterwards
        self._now = 0.0  # epoch seconds, the time of this batch; written by the running thread

    def run(self) -> Settlements:
        """Advance each message by one step. Raises `ConfigurationError` if a person must fix a queue or the log."""
        self._now = self._context.clock.now()
        unavailable, self._context.unavailable.in_a_row = self._context.unavailable.in_a_row, 0
        try:
            return self._settlements(unavailable)
        except TemporaryError as error:  # raised by the log, before anything was sent
            return {
                dead_letter.receipt: self._retry_later(dead_letter, None, error, unavailable)
                for dead_letter in self._dead_letters
            }

    def claim(self) -> HeldClaim | None:
        return None

    def loses(self, claim: HeldClaim) -> bool:  # noqa: ARG002 - it holds none
        return False

    def drain(self) -> None:
        """Do nothing: the run takes only a few calls."""

    def left_seconds(self, timeout_seconds: float) -> float:
        return timeout_seconds

    def time_out(self) -> Settlements:
        raise AssertionError("a replayer has no timeout")

    def release(self) -> None:
        """Do nothing: there is no claim, and the recorded intents are visible to every worker."""

    def interrupt(self) -> None:
        self._interrupted.set()

    # The steps, in order

    def _settlements(self, unavailable: int) -> Settlements:
        plans = [(dead_letter, self._plan(dead_letter)) for dead_letter in self._dead_letters]
        with self._context.ledger_watch.watch_request():
            on_record = self._recorded([plan for _, plan in plans])
        settlements: dict[str, Settlement] = {}
        due: dict[str, list[tuple[_PlannedReplay, ReplayAfter]]] = {}
        for dead_letter, plan in plans:
            # A recorded intent may be from a person's replay that died after the send: carry it out.
            replay = on_record.get(_id_of(dead_letter)) or plan
            if isinstance(replay, MoveToFinal):
                settlements[dead_letter.receipt] = self._set_aside(dead_letter, replay.reason)
            elif replay.sent:
                settlements[dead_letter.receipt] = self._sent(
                    _PlannedReplay(dead_letter=dead_letter, replay=replay), new_message_id=None
                )
            else:
                planned = _PlannedReplay(dead_letter=dead_letter, replay=replay)
                step = self._next_step(planned)
                if isinstance(step, ReplayAfter):
                    due.setdefault(planned.replay.queue, []).append((planned, step))
                else:
                    settlements[dead_letter.receipt] = self._hide(planned, step)
        for queue, sends in due.items():
            settlements |= self._send(queue, sends, unavailable)
        return settlements

    def _plan(self, dead_letter: Delivery) -> Replay | MoveToFinal:
        source = self._context.sources.of(dead_letter)
        if isinstance(source, MoveToFinal):
            return source
        return plan_replay(
            dead_letter.message,
            dead_letter_queue=dead_letter.queue,
            queue=source.queue,
            policy=source.policy,
            retention_seconds=source.retention_seconds,
            dlq_retention_seconds=self._context.retention_seconds,
            now=self._now,
        )

    def _recorded(self, plans: Iterable[Replay | MoveToFinal]) -> Mapping[str, Replay]:
        """Record the planned replays; return the recorded ones of all messages.

        A message that is to move to the final DLQ may still have a recorded replay, sent by a person.
        """
        replays = [plan for plan in plans if isinstance(plan, Replay)]
        ids = {_id_of(dead_letter) for dead_letter in self._dead_letters} - {replay.replay_id for replay in replays}
        known = self._context.log.find(sorted(ids)) if ids else {}
        opened = self._context.log.open(replays) if replays else {}
        if opened:
            self._context.ledger_watch.record_success()
        self._context.probe(Step.REPLAY_INTENDED)
        return {**known, **opened}

    def _next_step(self, planned: _PlannedReplay) -> HideFor | ReplayAfter:
        capabilities = self._context.broker.capabilities
        hidden_seconds = self._now - planned.dead_letter.received_at
        return next_step(
            planned.replay,
            now=self._now,
            delay_seconds_max=self._delay_seconds_max(planned.replay.queue),
            hide_seconds_max=max(
                capabilities.release_delay_seconds_max - max(hidden_seconds, 0.0) - _HIDE_MARGIN_SECONDS, 0.0
            ),
        )

    def _delay_seconds_max(self, queue: str) -> float:
        if is_fifo(queue):
            return 0.0
        most = self._context.broker.capabilities.delay_seconds_max
        source = self._context.sources.named(queue)
        retention_seconds = None if source is None else source.retention_seconds
        return most if retention_seconds is None else min(most, _DELAYED_SHARE_MAX * retention_seconds)

    def _send(self, queue: str, sends: Sequence[tuple[_PlannedReplay, ReplayAfter]], unavailable: int) -> Settlements:
        context = self._context
        if self._interrupted.is_set():
            return {planned.dead_letter.receipt: Release(uncounted=True) for planned, _ in sends}
        messages = [
            replayed(planned.dead_letter.message, planned.replay, delay_seconds=step.delay_seconds)
            for planned, step in sends
        ]
        outcomes = list(zip([planned for planned, _ in sends], send_each(context.broker, queue, messages), strict=True))
        context.probe(Step.REPLAY_SENT)
        sent = [planned for planned, outcome in outcomes if not isinstance(outcome, PenstockError)]
        self._mark(sent)
        return {
            planned.dead_letter.receipt: self._outcome(planned, outcome, unavailable) for planned, outcome in outcomes
        }

    def _mark(self, sent: Sequence[_PlannedReplay]) -> None:
        try:
            self._context.log.mark_sent([planned.replay.replay_id for planned in sent])
        except TemporaryError as error:
            # The replays were sent, so the dead letters are deleted anyway; only if that fails too are they sent again.
            self._events.emit_unmarked([planned.dead_letter for planned in sent], error)
        self._context.probe(Step.REPLAY_MARKED)

    # Settlements of single messages

    def _outcome(self, planned: _PlannedReplay, outcome: str | PenstockError, unavailable: int) -> Settlement:
        if isinstance(outcome, ConfigurationError):
            return self._set_aside(
                planned.dead_letter, f"its queue {planned.replay.queue} does not accept it: {outcome}"
            )
        if isinstance(outcome, PenstockError):
            return self._retry_later(planned.dead_letter, planned.replay, outcome, unavailable)
        return self._sent(planned, new_message_id=outcome)

    def _sent(self, planned: _PlannedReplay, *, new_message_id: str | None) -> Settlement:
        self._events.emit_sent(planned.dead_letter, planned.replay, new_message_id=new_message_id)
        return Ack()

    def _hide(self, planned: _PlannedReplay, step: HideFor) -> Settlement:
        self._events.emit_waiting(planned.dead_letter, planned.replay)
        return Release(delay_seconds=step.seconds, uncounted=True)

    def _set_aside(self, dead_letter: Delivery, reason: str) -> Settlement:
        self._events.emit_set_aside(dead_letter, reason)
        return DeadLetter(reason=reason, set_aside=True)

    def _retry_later(
        self, dead_letter: Delivery, replay: Replay | None, error: PenstockError, unavailable: int
    ) -> Settlement:
        """Release the message for a retry.

        If the send succeeded after all, the retry sends it again under the same id.
        """
        self._context.unavailable.in_a_row = unavailable + 1
        self._events.emit_released(dead_letter, replay, error)
        wait_seconds = backoff_seconds(
            attempt=unavailable + 1,
            base_seconds=_RETRY_BASE_SECONDS,
            cap_seconds=_RETRY_CAP_SECONDS,
            random=self._context.random,
        )
        return Release(delay_seconds=wait_seconds, uncounted=True, reason=str(error))


def keep_seconds(retentions: Iterable[float | None]) -> float:
    """Return how long replays must be recorded, given the retentions of the DLQs."""
    known = (
        UNKNOWN_RETENTION_SECONDS if retention_seconds is None else retention_seconds
        for retention_seconds in retentions
    )
    return max(known, default=UNKNOWN_RETENTION_SECONDS) + _SLACK_SECONDS


class ReplayLogCleanup:
    """Delete expired records for all DLQs of a replayer. Called by the background jobs of its handlers.

    ``forget(limit)`` deletes up to that many of the oldest records and returns their number.
    """

    def __init__(self, forget: Callable[[int], int], *, clock: Clock, random: Random) -> None:
        self._forget = forget
        self._clock = clock
        self._due_at = clock.monotonic() + FORGET_SECONDS * random()  # monotonic; written by the job

    def run_if_due(self) -> None:
        """Delete expired records if it is time. Raises `TemporaryError` if the log is unavailable."""
        if self._clock.monotonic() < self._due_at:
            return
        for _ in range(_DELETES_MAX):
            if self._forget(FORGET_MAX) < FORGET_MAX:
                break
        self._due_at = self._clock.monotonic() + FORGET_SECONDS


class ReplayHandler:
    """The replayer of one DLQ as a `penstock.messaging.handler.BatchHandler`. A consumer of the worker owns it."""

    def __init__(self, context: ReplayContext, forgetting: ReplayLogCleanup) -> None:
        self._context = context
        self._forgetting = forgetting

    @property
    def name(self) -> str:
        return NAME

    @property
    def place(self) -> ExecutionPlace:
        return ExecutionPlace.POOL

    @property
    def timeout_seconds(self) -> float | None:
        return None

    def weigh(self, delivery: Delivery) -> int:
        return len(delivery.message.body)

    def begin(self, deliveries: Sequence[Delivery]) -> ReplayExecution:
        return ReplayExecution(deliveries, self._context)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {"replays": self._forgetting.run_if_due}


def _error_text(error: PenstockError) -> str:
    return f"{type(error).__name__}: {error}"


def _id_of(dead_letter: Delivery) -> str:
    return dead_letter_replay_id(dead_letter.queue, dead_letter.message)
