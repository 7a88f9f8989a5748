"""A batch of dead letters on their way back.

Plan each, record the intents, send what is due, record that it is sent, and answer: the letters of what is sent are
acked, which deletes them, the others go on waiting, or to the second tier. A crash between any two of these steps sends
a message twice at most, under one replay id, and loses none.

What the replayer tells: an event a letter.

Replays that are so old that their letters are gone are forgotten, now and then.

The automatic replayer as the worker sees it: a handler whose queue is a first tier.
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
    planned,
)
from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.events import Bus, DeadReplayed, ReplaysUnmarked
from penstock.messaging.backoff import Random, backoff_seconds
from penstock.messaging.broker import Broker, is_fifo, send_each
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Answer, ExecutionPlace, HeldClaim, ServiceWatch, Unwatched
from penstock.messaging.replay import Replay, ReplayLog, letter_replay_id, replayed, replays_so_far
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.messaging.steps import Probe, Step, no_probe

Result = Literal["sent", "already_sent", "held", "put_back", "set_aside"]


class ReplayEvents:
    """Any thread may call it."""

    def __init__(self, bus: Bus, sources: ReplayTargets) -> None:
        self._bus = bus
        self._sources = sources

    def sent(self, letter: Delivery, replay: Replay, *, new_message_id: str | None) -> None:
        """It is in its queue, as the message of that id; None: and was before."""
        result: Result = "already_sent" if new_message_id is None else "sent"
        self._tell(letter, replay, result=result, new_message_id=new_message_id)

    def held(self, letter: Delivery, replay: Replay) -> None:
        """It waits where it is."""
        self._tell(letter, replay, result="held")

    def set_aside(self, letter: Delivery, reason: str) -> None:
        """It goes to the second tier."""
        self._tell(letter, None, result="set_aside", reason=reason)

    def put_back(self, letter: Delivery, replay: Replay | None, error: PenstockError) -> None:
        """Broker or log are away; it is looked at again."""
        self._tell(letter, replay, result="put_back", reason=_said(error))

    def unmarked(self, letters: Sequence[Delivery], error: PenstockError) -> None:
        """They are in their queues, and the record does not say so."""
        ids = tuple(letter_replay_id(letter.queue, letter.message) for letter in letters)
        self._bus.emit(ReplaysUnmarked(replay_ids=ids, error=_said(error)))

    def _tell(
        self,
        letter: Delivery,
        replay: Replay | None,
        *,
        result: Result,
        reason: str | None = None,
        new_message_id: str | None = None,
    ) -> None:
        source = self._sources.of(letter)
        so_far = replays_so_far(letter.message.attributes)
        self._bus.emit(
            DeadReplayed(
                queue=source.queue if isinstance(source, ReplayTarget) else None,
                letter_queue=letter.queue,
                message_id=letter.message.id,
                replay_id=letter_replay_id(letter.queue, letter.message),
                count=so_far if replay is None else replay.count,
                due_at=None if replay is None else replay.due_at,
                new_message_id=new_message_id,
                result=result,
                reason=reason,
            )
        )


def _said(error: PenstockError) -> str:
    return f"{type(error).__name__}: {error}"


NAME = "replayer"
_DELAYED_SHARE_MAX = 0.5  # of its retention in its queue that a message is invisible there
_HOLD_MARGIN_SECONDS = 60.0  # SQS counts from the receive for how long a message can be hidden
_AWAY_BASE_SECONDS, _AWAY_CAP_SECONDS = 1.0, 60.0  # until the next try, while broker or log are away


class UnavailableStreak:
    """Batches in a row that met a broker or a log that was away. Written by whoever runs one: one at a time does."""

    def __init__(self) -> None:
        self.in_a_row = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayContext:
    """One first tier, and what replaying its letters takes. ``retention_seconds`` is that tier's."""

    sources: ReplayTargets
    retention_seconds: float | None
    broker: Broker
    log: ReplayLog
    bus: Bus
    clock: Clock
    random: Random
    probe: Probe = no_probe
    away: UnavailableStreak = field(default_factory=UnavailableStreak)
    ledger_watch: ServiceWatch = field(default_factory=Unwatched)  # of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class _PlannedReplay:
    """A letter, and its replay as it is on record."""

    letter: Delivery
    replay: Replay


class ReplayExecution:
    """A `penstock.messaging.handler.Execution`. It holds nothing but its deliveries."""

    def __init__(self, letters: Sequence[Delivery], desk: ReplayContext) -> None:
        self._letters = letters
        self._desk = desk
        self._telling = ReplayEvents(desk.bus, desk.sources)
        self._gone = threading.Event()  # set by whoever interrupts: nothing more is sent then
        self._now = 0.0  # epoch seconds, of this batch; written by the thread that runs

    def run(self) -> Answer:
        """Bring the letters one step on. Raises `ConfigurationError` for a queue or a log that a person has to mend."""
        self._now = self._desk.clock.now()
        away, self._desk.away.in_a_row = self._desk.away.in_a_row, 0
        try:
            return self._answer(away)
        except TemporaryError as error:  # of the log, before anything was sent
            return {letter.receipt: self._put_back(letter, None, error, away) for letter in self._letters}

    def claim(self) -> HeldClaim | None:
        return None

    def loses(self, claim: HeldClaim) -> bool:  # noqa: ARG002 - it holds none
        return False

    def drain(self) -> None:
        """It takes no longer than a few calls."""

    def left_seconds(self, timeout_seconds: float) -> float:
        return timeout_seconds

    def time_out(self) -> Answer:
        raise AssertionError("a replayer has no timeout")

    def give_back(self) -> None:
        """What is recorded may be seen by anybody."""

    def interrupt(self) -> None:
        self._gone.set()

    # The steps, in order

    def _answer(self, away: int) -> Answer:
        plans = [(letter, self._plan(letter)) for letter in self._letters]
        with self._desk.ledger_watch.asked():
            on_record = self._recorded([plan for _, plan in plans])
        answers: dict[str, Settlement] = {}
        due: dict[str, list[tuple[_PlannedReplay, ReplayAfter]]] = {}
        for letter, plan in plans:
            # An intent on record may be that of a person who died behind the send: it is carried out, not given up.
            replay = on_record.get(_id_of(letter)) or plan
            if isinstance(replay, MoveToFinal):
                answers[letter.receipt] = self._set_aside(letter, replay.reason)
            elif replay.sent:
                answers[letter.receipt] = self._sent(_PlannedReplay(letter=letter, replay=replay), new_message_id=None)
            else:
                one = _PlannedReplay(letter=letter, replay=replay)
                step = self._next_step(one)
                if isinstance(step, ReplayAfter):
                    due.setdefault(one.replay.queue, []).append((one, step))
                else:
                    answers[letter.receipt] = self._hold(one, step)
        for queue, sends in due.items():
            answers |= self._send(queue, sends, away)
        return answers

    def _plan(self, letter: Delivery) -> Replay | MoveToFinal:
        source = self._desk.sources.of(letter)
        if isinstance(source, MoveToFinal):
            return source
        return planned(
            letter.message,
            letter_queue=letter.queue,
            queue=source.queue,
            policy=source.policy,
            retention_seconds=source.retention_seconds,
            letter_retention_seconds=self._desk.retention_seconds,
            now=self._now,
        )

    def _recorded(self, plans: Iterable[Replay | MoveToFinal]) -> Mapping[str, Replay]:
        """Every letter's replay that is on record, now at the latest. A person may have sent one that is set aside."""
        replays = [plan for plan in plans if isinstance(plan, Replay)]
        ids = {_id_of(letter) for letter in self._letters} - {replay.replay_id for replay in replays}
        known = self._desk.log.find(sorted(ids)) if ids else {}
        opened = self._desk.log.open(replays) if replays else {}
        if opened:
            self._desk.ledger_watch.succeeded()
        self._desk.probe(Step.REPLAY_INTENDED)
        return {**known, **opened}

    def _next_step(self, one: _PlannedReplay) -> HideFor | ReplayAfter:
        capabilities = self._desk.broker.capabilities
        held_seconds = self._now - one.letter.received_at
        return next_step(
            one.replay,
            now=self._now,
            delay_seconds_max=self._delay_seconds_max(one.replay.queue),
            hold_seconds_max=max(capabilities.hold_seconds_max - max(held_seconds, 0.0) - _HOLD_MARGIN_SECONDS, 0.0),
        )

    def _delay_seconds_max(self, queue: str) -> float:
        if is_fifo(queue):
            return 0.0
        most = self._desk.broker.capabilities.delay_seconds_max
        source = self._desk.sources.named(queue)
        retention_seconds = None if source is None else source.retention_seconds
        return most if retention_seconds is None else min(most, _DELAYED_SHARE_MAX * retention_seconds)

    def _send(self, queue: str, sends: Sequence[tuple[_PlannedReplay, ReplayAfter]], away: int) -> Answer:
        desk = self._desk
        if self._gone.is_set():
            return {one.letter.receipt: Release(refund=True) for one, _ in sends}
        messages = [replayed(one.letter.message, one.replay, delay_seconds=step.delay_seconds) for one, step in sends]
        outcomes = list(zip([one for one, _ in sends], send_each(desk.broker, queue, messages), strict=True))
        desk.probe(Step.REPLAY_SENT)
        sent = [one for one, outcome in outcomes if not isinstance(outcome, PenstockError)]
        self._mark(sent)
        return {one.letter.receipt: self._outcome(one, outcome, away) for one, outcome in outcomes}

    def _mark(self, sent: Sequence[_PlannedReplay]) -> None:
        try:
            self._desk.log.sent([one.replay.replay_id for one in sent])
        except TemporaryError as error:
            # They are in their queues, so their letters go nevertheless: only if that fails too are they sent again.
            self._telling.unmarked([one.letter for one in sent], error)
        self._desk.probe(Step.REPLAY_MARKED)

    # What becomes of a letter

    def _outcome(self, one: _PlannedReplay, outcome: str | PenstockError, away: int) -> Settlement:
        if isinstance(outcome, ConfigurationError):
            return self._set_aside(one.letter, f"its queue {one.replay.queue} does not take it: {outcome}")
        if isinstance(outcome, PenstockError):
            return self._put_back(one.letter, one.replay, outcome, away)
        return self._sent(one, new_message_id=outcome)

    def _sent(self, one: _PlannedReplay, *, new_message_id: str | None) -> Settlement:
        self._telling.sent(one.letter, one.replay, new_message_id=new_message_id)
        return Ack()

    def _hold(self, one: _PlannedReplay, step: HideFor) -> Settlement:
        self._telling.held(one.letter, one.replay)
        return Release(delay_seconds=step.seconds, refund=True)

    def _set_aside(self, letter: Delivery, reason: str) -> Settlement:
        self._telling.set_aside(letter, reason)
        return DeadLetter(reason=reason, set_aside=True)

    def _put_back(self, letter: Delivery, replay: Replay | None, error: PenstockError, away: int) -> Settlement:
        """Whether it was taken may be unknown: then it is sent again under the same id."""
        self._desk.away.in_a_row = away + 1
        self._telling.put_back(letter, replay, error)
        wait_seconds = backoff_seconds(
            attempt=away + 1,
            base_seconds=_AWAY_BASE_SECONDS,
            cap_seconds=_AWAY_CAP_SECONDS,
            random=self._desk.random,
        )
        return Release(delay_seconds=wait_seconds, refund=True, reason=str(error))


def _id_of(letter: Delivery) -> str:
    return letter_replay_id(letter.queue, letter.message)


FORGET_SECONDS = 600.0  # between two looks
FORGET_MAX = 1_000  # rows a look; it goes on at once while there are as many
_LOOKS_MAX = 20  # one after the other
UNKNOWN_RETENTION_SECONDS = 366 * 86_400.0  # of a queue that keeps for ever, or does not say
_SLACK_SECONDS = 86_400.0  # clocks differ, and a letter may be in hand when its retention ends


def keep_seconds(retentions: Iterable[float | None]) -> float:
    """How long a replay has to be on record where first tiers keep letters for so long."""
    known = (UNKNOWN_RETENTION_SECONDS if each is None else each for each in retentions)
    return max(known, default=UNKNOWN_RETENTION_SECONDS) + _SLACK_SECONDS


class ReplayLogCleanup:
    """One for all first tiers of a replayer. ``forget(limit)`` deletes the oldest and answers how many."""

    def __init__(self, forget: Callable[[int], int], *, clock: Clock, random: Random) -> None:
        self._forget = forget
        self._clock = clock
        self._due_at = clock.monotonic() + FORGET_SECONDS * random()  # monotonic; written by any job

    def care(self) -> None:
        """Forget, if it is time. Raises `TemporaryError` where the log is away."""
        if self._clock.monotonic() < self._due_at:
            return
        for _ in range(_LOOKS_MAX):
            if self._forget(FORGET_MAX) < FORGET_MAX:
                break
        self._due_at = self._clock.monotonic() + FORGET_SECONDS


class ReplayHandler:
    """A `penstock.messaging.handler.BatchHandler` for one first tier."""

    def __init__(self, desk: ReplayContext, forgetting: ReplayLogCleanup) -> None:
        self._desk = desk
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
        return ReplayExecution(deliveries, self._desk)

    def jobs(self) -> Mapping[str, Callable[[], object]]:
        return {"replays": self._forgetting.care}
