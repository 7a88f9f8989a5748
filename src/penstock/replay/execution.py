"""A batch of dead letters on their way back.

Plan each, record the intents, send what is due, record that it is sent, and answer: the letters of what is sent are
acked, which deletes them, the others go on waiting, or to the second tier. A crash between any two of these steps sends
a message twice at most, under one replay id, and loses none.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from penstock.errors import ConfigurationError, PenstockError, TemporaryError
from penstock.events import Bus
from penstock.messaging.broker import Broker, is_fifo
from penstock.messaging.claims import HeldClaim
from penstock.messaging.clock import Clock
from penstock.messaging.delivery import Delivery
from penstock.messaging.handler import Answer
from penstock.messaging.outages import ServiceWatch, Unwatched
from penstock.messaging.replays import Replay, ReplayLog, letter_replay_id, replayed
from penstock.messaging.sending import send_each
from penstock.messaging.settlement import Ack, DeadLetter, Release, Settlement
from penstock.messaging.steps import Probe, Step, no_probe
from penstock.messaging.waits import Random, backoff_seconds
from penstock.replay.policy import Hold, Send, SetAside, next_step, planned
from penstock.replay.sources import Sources
from penstock.replay.telling import Telling

NAME = "replayer"
_DELAYED_SHARE_MAX = 0.5  # of its retention in its queue that a message is invisible there
_HOLD_MARGIN_SECONDS = 60.0  # SQS counts from the receive for how long a message can be hidden
_AWAY_BASE_SECONDS, _AWAY_CAP_SECONDS = 1.0, 60.0  # until the next try, while broker or log are away


class Away:
    """Batches in a row that met a broker or a log that was away. Written by whoever runs one: one at a time does."""

    def __init__(self) -> None:
        self.in_a_row = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """One first tier, and what replaying its letters takes. ``retention_seconds`` is that tier's."""

    sources: Sources
    retention_seconds: float | None
    broker: Broker
    log: ReplayLog
    bus: Bus
    clock: Clock
    random: Random
    probe: Probe = no_probe
    away: Away = field(default_factory=Away)
    ledger_watch: ServiceWatch = field(default_factory=Unwatched)  # of the log


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A letter, and its replay as it is on record."""

    letter: Delivery
    replay: Replay


class ReplayExecution:
    """A `penstock.messaging.handler.Execution`. It holds nothing but its deliveries."""

    def __init__(self, letters: Sequence[Delivery], desk: Desk) -> None:
        self._letters = letters
        self._desk = desk
        self._telling = Telling(desk.bus, desk.sources)
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
        due: dict[str, list[tuple[_Planned, Send]]] = {}
        for letter, plan in plans:
            # An intent on record may be that of a person who died behind the send: it is carried out, not given up.
            replay = on_record.get(_id_of(letter)) or plan
            if isinstance(replay, SetAside):
                answers[letter.receipt] = self._set_aside(letter, replay.reason)
            elif replay.sent:
                answers[letter.receipt] = self._sent(_Planned(letter=letter, replay=replay), new_message_id=None)
            else:
                one = _Planned(letter=letter, replay=replay)
                step = self._next_step(one)
                if isinstance(step, Send):
                    due.setdefault(one.replay.queue, []).append((one, step))
                else:
                    answers[letter.receipt] = self._hold(one, step)
        for queue, sends in due.items():
            answers |= self._send(queue, sends, away)
        return answers

    def _plan(self, letter: Delivery) -> Replay | SetAside:
        source = self._desk.sources.of(letter)
        if isinstance(source, SetAside):
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

    def _recorded(self, plans: Iterable[Replay | SetAside]) -> Mapping[str, Replay]:
        """Every letter's replay that is on record, now at the latest. A person may have sent one that is set aside."""
        replays = [plan for plan in plans if isinstance(plan, Replay)]
        ids = {_id_of(letter) for letter in self._letters} - {replay.replay_id for replay in replays}
        known = self._desk.log.find(sorted(ids)) if ids else {}
        opened = self._desk.log.open(replays) if replays else {}
        if opened:
            self._desk.ledger_watch.succeeded()
        self._desk.probe(Step.REPLAY_INTENDED)
        return {**known, **opened}

    def _next_step(self, one: _Planned) -> Hold | Send:
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

    def _send(self, queue: str, sends: Sequence[tuple[_Planned, Send]], away: int) -> Answer:
        desk = self._desk
        if self._gone.is_set():
            return {one.letter.receipt: Release(refund=True) for one, _ in sends}
        messages = [replayed(one.letter.message, one.replay, delay_seconds=step.delay_seconds) for one, step in sends]
        outcomes = list(zip([one for one, _ in sends], send_each(desk.broker, queue, messages), strict=True))
        desk.probe(Step.REPLAY_SENT)
        sent = [one for one, outcome in outcomes if not isinstance(outcome, PenstockError)]
        self._mark(sent)
        return {one.letter.receipt: self._outcome(one, outcome, away) for one, outcome in outcomes}

    def _mark(self, sent: Sequence[_Planned]) -> None:
        try:
            self._desk.log.sent([one.replay.replay_id for one in sent])
        except TemporaryError as error:
            # They are in their queues, so their letters go nevertheless: only if that fails too are they sent again.
            self._telling.unmarked([one.letter for one in sent], error)
        self._desk.probe(Step.REPLAY_MARKED)

    # What becomes of a letter

    def _outcome(self, one: _Planned, outcome: str | PenstockError, away: int) -> Settlement:
        if isinstance(outcome, ConfigurationError):
            return self._set_aside(one.letter, f"its queue {one.replay.queue} does not take it: {outcome}")
        if isinstance(outcome, PenstockError):
            return self._put_back(one.letter, one.replay, outcome, away)
        return self._sent(one, new_message_id=outcome)

    def _sent(self, one: _Planned, *, new_message_id: str | None) -> Settlement:
        self._telling.sent(one.letter, one.replay, new_message_id=new_message_id)
        return Ack()

    def _hold(self, one: _Planned, step: Hold) -> Settlement:
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
