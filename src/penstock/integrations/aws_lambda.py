"""The automatic replayer as an AWS Lambda function, `penstock.integrations.aws_lambda.handler`.

An event source mapping on the first tier receives, calls the function, and deletes what it does not name as failed (the
mapping has to have ReportBatchItemFailures). Policy and steps are the worker's, see `penstock.dead_letters`: what is
due is sent and deleted, what waits is hidden for that long and named as failed, the rest goes to the second tier. Of a
FIFO queue nothing of a group goes on behind one that does not.

A function has no database unless PENSTOCK_LEDGER names one. Without one, when a letter is due is told by the letter
itself, see `replay_unrecorded`; and a function that dies between sending and deleting sends that letter once more.

What a replaying function is made of: settings from its environment, log and error hook, broker, first tiers.

Each is made when it is asked for first, and kept: Lambda uses a process for many calls, one after the other.

When letters are due whose replays nobody records: times that come out the same whenever a letter is looked at.

A replay's wait is drawn from its id, and so always the same; what is missing without a record is when it began. The
letter itself says when it died, where Penstock buried it. One that SQS moved says nothing: its wait is drawn so short
that the queue keeps it as a delay, and the letter need not be looked at again. A FIFO queue keeps no delays, so there
the wait begins at the letter's first receive, which SQS remembers.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from random import random
from typing import TYPE_CHECKING, Any

from penstock.app.backends import SQS, aws_of, has_local_ledger, is_sqs, open_ledger
from penstock.app.naming import worker_id
from penstock.app.replayer import replay_policy, with_sample
from penstock.app.telemetry import Telemetry, guarded, open_telemetry
from penstock.app.tracing import tracing_of
from penstock.config import Settings, load_settings, shown
from penstock.dead_letters.policy import ReplayTarget, ReplayTargets, spread
from penstock.dead_letters.replayer import NAME, ReplayContext, ReplayExecution
from penstock.dead_letters.sample import SampleSettings, sample_settings
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Bus, Listener, SettleFailed, WorkerFailed
from penstock.messaging.broker import SettleFailure, is_fifo, listed_name
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.death import death_of
from penstock.messaging.failure import end_of
from penstock.messaging.replay import NoLog, Replay, letter_replay_id
from penstock.messaging.settlement import Ack, Release, Settlement, operation_of
from penstock.messaging.steps import Probe, no_probe
from penstock.monitoring.errors.hook import ErrorHook
from penstock.storage.aws import require_aws

if TYPE_CHECKING:
    from penstock.brokers.sqs import SqsBroker
    from penstock.brokers.sqs.envelope import SqsDelivery
    from penstock.ledger import Ledger


class LambdaParts:
    """Every property raises `ConfigurationError` for settings that do not fit."""

    def __init__(
        self, *, on_error: ErrorHook | None, listeners: Sequence[Listener], clock: Clock, probe: Probe
    ) -> None:
        self._on_error = on_error
        self._listeners = tuple(listeners)
        self._clock = clock
        self._probe = probe
        self._desks: dict[str, ReplayContext] = {}  # by the ARN of the first tier; written by the one thread that calls

    @cached_property
    def bus(self) -> Bus:
        """Log, error hook and listeners are at it."""
        heard = self.telemetry.listeners
        return Bus(*guarded(self._listeners, tell=Bus(*heard).emit), *heard)

    @cached_property
    def telemetry(self) -> Telemetry:
        """What the settings ask for, and the error hook."""
        return open_telemetry(self._settings, worker=self._worker, process="lambda", on_error=self._on_error)

    @cached_property
    def broker(self) -> "SqsBroker":
        """On SQS, wherever the settings say."""
        settings = self._settings
        if "broker" in settings.model_fields_set and not is_sqs(settings.broker):
            raise ConfigurationError(
                f"The broker is {shown('broker', settings.broker)!r}, and letters come from SQS: write sqs://, or "
                "leave the setting out."
            )
        from penstock.brokers.sqs import SqsBroker

        address = settings.broker if is_sqs(settings.broker) else SQS
        return SqsBroker(aws_of(address, settings.aws), holder=self._worker, clock=self._clock)

    def desk(self, arn: str) -> ReplayContext:
        """A first tier, and what replaying its letters takes."""
        if arn not in self._desks:
            sources = self._sources()
            log = NoLog() if self._ledger is None else self._ledger.replays
            if self._sample.queue is not None:
                self._believe(self._sample.queue, arn)
            self._desks[arn] = ReplayContext(
                sources=sources,
                retention_seconds=self.broker.retention_seconds(arn.rpartition(":")[2]),
                broker=tracing_of(self._settings, worker=self._worker).broker(self.broker),
                log=log,
                bus=self.bus,
                clock=self._clock,
                random=random,
                probe=self._probe,
            )
        return self._desks[arn]

    def close(self) -> None:
        """Give back connections."""
        if "broker" in self.__dict__:
            self.broker.close()
        if self.__dict__.get("_ledger") is not None:
            self.__dict__["_ledger"].close()

    # Inside

    @cached_property
    def _sample(self) -> SampleSettings:
        return sample_settings(os.environ)

    @cached_property
    def _settings(self) -> Settings:
        return with_sample(load_settings(), self._sample)

    @cached_property
    def _worker(self) -> str:
        return worker_id()

    @cached_property
    def _ledger(self) -> "Ledger | None":
        if "ledger" not in self._settings.model_fields_set:
            return None
        if has_local_ledger(self._settings):
            raise ConfigurationError(
                "The ledger is a file, and what a function writes goes with it: name a database (mysql://... or "
                "postgresql://...), or leave PENSTOCK_LEDGER out."
            )
        return open_ledger(self._settings)

    def _sources(self) -> ReplayTargets:
        """The queues that letters may go back to."""
        named = [listed_name(self._sample.queue)] if self._sample.queue is not None else list(self._settings.queues)
        if not named:
            raise ConfigurationError(
                "Where dead letters go back to is not said: set SQS_MAIN_URL to the URL of their queue."
            )
        policies = {queue: replay_policy(self._settings, queue) for queue in named}
        found = [
            # The function may not look at its queues; the cap is what it is told of their retention.
            ReplayTarget(queue=queue, policy=policy, retention_seconds=policy.cap_seconds)
            for queue, policy in policies.items()
            if policy is not None
        ]
        if not found:
            raise ConfigurationError(
                f"The dead letters of {', '.join(named)} are not replayed, by the setting replay_queues: then let no "
                "queue invoke this function."
            )
        return ReplayTargets(found)

    def _believe(self, main_url: str, arn: str) -> None:
        """The URLs of the tiers follow from that of the queue, in the same account and region as SQS has it: so the
        function needs no right to ask for them."""
        place = main_url.rpartition("/")[0]
        beginning, _, name = arn.rpartition(":")
        if place.rpartition("/")[2] != beginning.rpartition(":")[2]:
            return  # the queue is another account's
        self.broker.know(listed_name(main_url), main_url)
        self.broker.know(name, f"{place}/{name}")
        second = self.broker.dead_letter_queue(name)
        for called in (second, f"{beginning}:{second}"):
            self.broker.know(called, f"{place}/{second}")


DELAY_SECONDS_MAX = 900.0  # of a message that is sent on SQS


class UnrecordedReplays(NoLog):
    """A `penstock.messaging.replay.ReplayLog` for these letters, planned at ``now``."""

    def __init__(self, letters: "Sequence[SqsDelivery]", *, now: float) -> None:
        self._letters = {letter_replay_id(letter.queue, letter.message): letter for letter in letters}
        self._now = now

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        return {replay.replay_id: replace(replay, due_at=self._due_at(replay)) for replay in replays}

    def _due_at(self, replay: Replay) -> float:
        letter = self._letters[replay.replay_id]
        wait_seconds = max(replay.due_at - self._now, 0.0)
        first_received_at = min(letter.first_received_at, self._now)
        death = death_of(letter.message.attributes)
        if death is not None and letter.moved_from is None:
            # Nobody can have received it before it died: a later death is forged, and would be put off with each look.
            return min(death.last_failed_at, first_received_at) + wait_seconds
        # uniform(0, min(900, ceiling)), as where the ceiling is higher the draw is a share of 900 s.
        short_seconds = min(wait_seconds, spread(replay.replay_id) * DELAY_SECONDS_MAX)
        began_at = first_received_at if is_fifo(letter.queue) else self._now
        return began_at + short_seconds


Failed = dict[str, list[dict[str, str]]]
REPORTS_SECONDS = 2.0  # for the error hook: Lambda halts the process when the function has answered


class ReplayFunction:
    """What Lambda calls: ``handler = ReplayFunction(on_error=tell_somebody)`` in a module of one's own.

    Settings are read and connections made at the first call, and kept. Lambda makes one call at a time.
    """

    def __init__(
        self,
        *,
        on_error: ErrorHook | None = None,
        listeners: Sequence[Listener] = (),
        clock: Clock | None = None,
        probe: Probe = no_probe,
    ) -> None:
        self._clock = clock or SystemClock()
        self._parts = LambdaParts(on_error=on_error, listeners=listeners, clock=self._clock, probe=probe)

    def __call__(self, event: Any, context: object = None) -> Failed:  # noqa: ARG002 - the signature is Lambda's
        """Answers which letters stay. Raises what a person has to mend; Lambda then leaves all where they are."""
        with self._told():
            require_aws()
            from penstock.brokers.sqs.lambda_records import deliveries_of, queue_arn_of

            letters = deliveries_of(event, self._clock)
            stay = self._stay(self._parts.desk(queue_arn_of(event)), letters)
            named = [{"itemIdentifier": letter.message.id} for letter in letters if letter.receipt in stay]
            return {"batchItemFailures": named}

    def close(self) -> None:
        """Give back connections. Lambda never does; tests do."""
        self._parts.close()

    # --- one call

    def _stay(self, desk: ReplayContext, letters: "Sequence[SqsDelivery]") -> set[str]:
        """The receipts of those that stay where they are."""
        if not is_fifo(letters[0].queue):
            return self._brought_on(desk, letters)
        stay: set[str] = set()
        waiting = list(letters)
        while waiting:
            firsts = _firsts(waiting)
            stay |= self._brought_on(desk, firsts)
            halted = {letter.message.group for letter in firsts if letter.receipt in stay}
            behind = [letter for letter in waiting if letter not in firsts]
            stay |= {letter.receipt for letter in behind if letter.message.group in halted}
            waiting = [letter for letter in behind if letter.receipt not in stay]
        return stay

    def _brought_on(self, desk: ReplayContext, letters: "Sequence[SqsDelivery]") -> set[str]:
        """One step. What was sent goes, whether or not it could be deleted: Lambda deletes what is not named."""
        if isinstance(desk.log, NoLog):
            desk = replace(desk, log=UnrecordedReplays(letters, now=self._clock.now()))
        answer = ReplayExecution(letters, desk).run()
        unsettled = self._settle(desk, [(letter, answer[letter.receipt]) for letter in letters])
        held = {receipt for receipt, settlement in answer.items() if isinstance(settlement, Release)}
        lasting = {receipt for receipt, settlement in answer.items() if not isinstance(settlement, Ack)}
        return held | (unsettled & lasting)

    def _settle(self, desk: ReplayContext, settlements: "Sequence[tuple[SqsDelivery, Settlement]]") -> set[str]:
        """Answers the receipts of what could not be settled: that comes back by itself, after the queue's own time."""
        try:
            failures = desk.broker.settle(settlements)
        except TemporaryError as error:
            failures = [SettleFailure(delivery=letter, reason=str(error), lost=False) for letter, _ in settlements]
        operations = {letter.receipt: operation_of(settlement) for letter, settlement in settlements}
        for each in failures:
            desk.bus.emit(
                SettleFailed(
                    queue=each.delivery.queue,
                    message_id=each.delivery.message.id,
                    attempt=each.delivery.attempt,
                    operation=operations[each.delivery.receipt],
                    reason=each.reason,
                    lost=each.lost,
                )
            )
        return {each.delivery.receipt for each in failures}

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Log and error hook hear of what ends a call before Lambda does, and are done when it is over."""
        try:
            yield
        except Exception as error:
            with suppress(ConfigurationError):  # of the settings: then there is no log, and Lambda's own has it
                self._tell(error)
            raise
        else:
            self._parts.telemetry.flush(REPORTS_SECONDS)

    def _tell(self, error: Exception) -> None:
        failure = end_of(error)
        self._parts.bus.emit(
            WorkerFailed(error_type=failure.error_type, error=failure.error, traceback=failure.traceback)
        )
        self._parts.telemetry.report(error, handler=NAME)
        self._parts.telemetry.flush(REPORTS_SECONDS)


def _firsts(letters: "Sequence[SqsDelivery]") -> "Sequence[SqsDelivery]":
    """The first of each group."""
    seen: set[str | None] = set()
    firsts: list[SqsDelivery] = []
    for letter in letters:
        if letter.message.group not in seen:
            seen.add(letter.message.group)
            firsts.append(letter)
    return firsts


handler = ReplayFunction()
"""The value that Lambda is told of. It is empty until it is called first."""
