"""The automatic replayer as an AWS Lambda function, `penstock.integrations.aws_lambda.handler`.

An event source mapping on the DLQ receives messages, calls the function, and deletes the messages that the function
does not report as failed (the mapping needs ReportBatchItemFailures). Policy and steps are those of the worker, see
`penstock.dead_letters`: a due message is sent and deleted, one that has to wait is hidden for that long and reported as
failed, and the rest goes to the final DLQ. On a FIFO queue, no message of a group overtakes one that stays.

A function has no database unless PENSTOCK_LEDGER names one. Without one, the due time is derived from the message
itself, see `UnrecordedReplays`; and if the function dies between sending and deleting, the message is sent again.

`LambdaResources` opens the function's resources from the environment: settings, log and error hook, broker, DLQs. Each
is created on first use and kept, because Lambda uses a process for many calls, one at a time.

Due times without a record have to be the same at each inspection. A replay's wait is derived from its id, so it is
constant; the missing part is its start. A message that Penstock dead-lettered has the time of its death. One that SQS
moved does not: its wait is drawn short enough for the queue to keep it as a delay, so that it need not be inspected
again. A FIFO queue has no delays per message, so there the wait begins at the first receive, which SQS records.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from random import random
from typing import TYPE_CHECKING, Any

from penstock.app.backends import has_local_ledger, open_ledger
from penstock.app.brokers import SQS_ADDRESS, broker_aws
from penstock.app.naming import worker_id
from penstock.app.replayer import replay_policy, with_sample
from penstock.app.telemetry import Telemetry, guarded, open_telemetry
from penstock.app.tracing import tracing_of
from penstock.config import Settings, load_settings, shown
from penstock.dead_letters.policy import ReplayTarget, ReplayTargets, spread
from penstock.dead_letters.replayer import NAME, ReplayContext, ReplayExecution
from penstock.dead_letters.sample import SampleSettings, sample_settings
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Bus, Listener, SettlementFailed, WorkerFailed
from penstock.messaging.broker import SettleFailure, is_fifo, listed_name
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.death import death_of
from penstock.messaging.failure import end_of
from penstock.messaging.replay import NoLog, Replay, dead_letter_replay_id
from penstock.messaging.settlement import Ack, Release, Settlement, operation_of
from penstock.messaging.steps import Probe, no_probe
from penstock.monitoring.errors.hook import ErrorHook
from penstock.storage.aws import require_aws

if TYPE_CHECKING:
    from penstock.brokers.sqs import SqsBroker
    from penstock.brokers.sqs.envelope import SqsDelivery
    from penstock.ledger import Ledger


class LambdaResources:
    """The resources of the function. Every property raises `ConfigurationError` for invalid settings."""

    def __init__(
        self, *, on_error: ErrorHook | None, listeners: Sequence[Listener], clock: Clock, probe: Probe
    ) -> None:
        self._on_error = on_error
        self._listeners = tuple(listeners)
        self._clock = clock
        self._probe = probe
        self._contexts: dict[str, ReplayContext] = {}  # by ARN of the DLQ; written by the calling thread

    @cached_property
    def bus(self) -> Bus:
        """The bus with log, error hook and listeners."""
        reporters = self.telemetry.listeners
        return Bus(*guarded(self._listeners, emit=Bus(*reporters).emit), *reporters)

    @cached_property
    def telemetry(self) -> Telemetry:
        """The telemetry that the settings ask for, with the error hook."""
        return open_telemetry(self._settings, worker=self._worker, process="lambda", on_error=self._on_error)

    @cached_property
    def broker(self) -> "SqsBroker":
        """The SQS broker at the address in the settings."""
        settings = self._settings
        if "broker" not in settings.model_fields_set:
            settings = settings.model_copy(update={"broker": SQS_ADDRESS})
        aws = broker_aws(settings)
        if aws is None:
            raise ConfigurationError(
                f"The broker is {shown('broker', settings.broker)!r}, but the function's messages come from SQS: write "
                "sqs://, or leave the setting out."
            )
        from penstock.brokers.sqs import SqsBroker

        return SqsBroker(aws, holder=self._worker, clock=self._clock)

    def context_of(self, arn: str) -> ReplayContext:
        """Return the context to replay the messages of a DLQ, created on first use."""
        if arn not in self._contexts:
            sources = self._sources()
            log = NoLog() if self._ledger is None else self._ledger.replays
            if self._sample.queue is not None:
                self._derive_urls(self._sample.queue, arn)
            self._contexts[arn] = ReplayContext(
                sources=sources,
                retention_seconds=self.broker.retention_seconds(arn.rpartition(":")[2]),
                broker=tracing_of(self._settings, worker=self._worker).broker(self.broker),
                log=log,
                bus=self.bus,
                clock=self._clock,
                random=random,
                probe=self._probe,
            )
        return self._contexts[arn]

    def close(self) -> None:
        """Close the connections."""
        if "broker" in self.__dict__:
            self.broker.close()
        if self.__dict__.get("_ledger") is not None:
            self.__dict__["_ledger"].close()

    # Internals

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
                "The ledger is a file, and the files of a function are lost with it: name a database (mysql://... or "
                "postgresql://...), or leave PENSTOCK_LEDGER out."
            )
        return open_ledger(self._settings)

    def _sources(self) -> ReplayTargets:
        """Return the queues that messages may return to."""
        named = (
            [listed_name(self._sample.queue)] if self._sample.queue is not None else list(self._settings.worker_queues)
        )
        if not named:
            raise ConfigurationError("The queue that dead letters return to is not set: set SQS_MAIN_URL to its URL.")
        policies = {queue: replay_policy(self._settings, queue) for queue in named}
        found = [
            # The function may lack permission to inspect its queues; the policy's cap stands in for their retention.
            ReplayTarget(queue=queue, policy=policy, retention_seconds=policy.cap_seconds)
            for queue, policy in policies.items()
            if policy is not None
        ]
        if not found:
            raise ConfigurationError(
                f"The setting dead_letters.replay_queues turns off replays for {', '.join(named)}: remove the "
                "event source mapping of this function."
            )
        return ReplayTargets(found)

    def _derive_urls(self, main_url: str, arn: str) -> None:
        """Derive the URLs of the DLQs from the queue's URL, within the same account and region.

        So the function needs no permission to look them up.
        """
        prefix = main_url.rpartition("/")[0]
        beginning, _, name = arn.rpartition(":")
        if prefix.rpartition("/")[2] != beginning.rpartition(":")[2]:
            return  # the queue is another account's
        self.broker.set_url(listed_name(main_url), main_url)
        self.broker.set_url(name, f"{prefix}/{name}")
        second = self.broker.dead_letter_queue(name)
        for called in (second, f"{beginning}:{second}"):
            self.broker.set_url(called, f"{prefix}/{second}")


DELAY_SECONDS_MAX = 900.0  # maximum delay of a message on SQS


class UnrecordedReplays(NoLog):
    """A `penstock.messaging.replay.ReplayLog` without a record, for these messages at the time ``now``."""

    def __init__(self, dead_letters: "Sequence[SqsDelivery]", *, now: float) -> None:
        self._dead_letters = {
            dead_letter_replay_id(dead_letter.queue, dead_letter.message): dead_letter for dead_letter in dead_letters
        }
        self._now = now

    def open(self, replays: Sequence[Replay]) -> Mapping[str, Replay]:
        return {replay.replay_id: replace(replay, due_at=self._due_at(replay)) for replay in replays}

    def _due_at(self, replay: Replay) -> float:
        dead_letter = self._dead_letters[replay.replay_id]
        wait_seconds = max(replay.due_at - self._now, 0.0)
        first_received_at = min(dead_letter.first_received_at, self._now)
        death = death_of(dead_letter.message.attributes)
        if death is not None and dead_letter.moved_from is None:
            # A message cannot be received before it died: a later time of death is forged, and would postpone the
            # replay at each inspection.
            return min(death.last_failed_at, first_received_at) + wait_seconds
        # This equals uniform(0, min(900, ceiling)): if the ceiling is higher, the draw is a share of 900 s.
        short_seconds = min(wait_seconds, spread(replay.replay_id) * DELAY_SECONDS_MAX)
        began_at = first_received_at if is_fifo(dead_letter.queue) else self._now
        return began_at + short_seconds


Failed = dict[str, list[dict[str, str]]]
REPORTS_SECONDS = 2.0  # for the error hook: Lambda freezes the process after the function returns


class ReplayFunction:
    """The callable for Lambda: ``handler = ReplayFunction(on_error=notify)`` in the user's own module.

    Settings are read and connections opened at the first call, and kept. Lambda makes one call at a time.
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
        self._resources = LambdaResources(on_error=on_error, listeners=listeners, clock=self._clock, probe=probe)

    def __call__(self, event: Any, context: object = None) -> Failed:  # noqa: ARG002 - the signature is Lambda's
        """Replay the event's messages; return those that stay in the DLQ.

        Raises the error that a person has to fix; Lambda then leaves all messages in the DLQ.
        """
        with self._reporting_errors():
            require_aws()
            from penstock.brokers.sqs.lambda_records import deliveries_of, queue_arn_of

            dead_letters = deliveries_of(event, self._clock)
            stay = self._replay(self._resources.context_of(queue_arn_of(event)), dead_letters)
            named = [
                {"itemIdentifier": dead_letter.message.id}
                for dead_letter in dead_letters
                if dead_letter.receipt in stay
            ]
            return {"batchItemFailures": named}

    def close(self) -> None:
        """Close the connections. Lambda never calls this; tests do."""
        self._resources.close()

    # One call

    def _replay(self, context: ReplayContext, dead_letters: "Sequence[SqsDelivery]") -> set[str]:
        """Return the receipt handles of the messages that stay in the DLQ."""
        if not is_fifo(dead_letters[0].queue):
            return self._replay_batch(context, dead_letters)
        stay: set[str] = set()
        waiting = list(dead_letters)
        while waiting:
            firsts = _firsts(waiting)
            stay |= self._replay_batch(context, firsts)
            halted = {dead_letter.message.group for dead_letter in firsts if dead_letter.receipt in stay}
            behind = [dead_letter for dead_letter in waiting if dead_letter not in firsts]
            stay |= {dead_letter.receipt for dead_letter in behind if dead_letter.message.group in halted}
            waiting = [dead_letter for dead_letter in behind if dead_letter.receipt not in stay]
        return stay

    def _replay_batch(self, context: ReplayContext, dead_letters: "Sequence[SqsDelivery]") -> set[str]:
        """Replay one message per group, or all of a standard queue; return the receipt handles of those that stay.

        A message that was sent does not stay, even if deleting it failed: Lambda deletes the unreported ones.
        """
        if isinstance(context.log, NoLog):
            context = replace(context, log=UnrecordedReplays(dead_letters, now=self._clock.now()))
        settlements = ReplayExecution(dead_letters, context).run()
        unsettled = self._settle(
            context, [(dead_letter, settlements[dead_letter.receipt]) for dead_letter in dead_letters]
        )
        hidden = {receipt for receipt, settlement in settlements.items() if isinstance(settlement, Release)}
        lasting = {receipt for receipt, settlement in settlements.items() if not isinstance(settlement, Ack)}
        return hidden | (unsettled & lasting)

    def _settle(self, context: ReplayContext, settlements: "Sequence[tuple[SqsDelivery, Settlement]]") -> set[str]:
        """Settle the messages.

        Return the receipt handles of failures, which become visible again after the queue's timeout.
        """
        try:
            failures = context.broker.settle(settlements)
        except TemporaryError as error:
            failures = [
                SettleFailure(delivery=dead_letter, reason=str(error), lost=False) for dead_letter, _ in settlements
            ]
        operations = {dead_letter.receipt: operation_of(settlement) for dead_letter, settlement in settlements}
        for failure in failures:
            context.bus.emit(
                SettlementFailed(
                    queue=failure.delivery.queue,
                    message_id=failure.delivery.message.id,
                    attempt=failure.delivery.attempt,
                    operation=operations[failure.delivery.receipt],
                    reason=failure.reason,
                    lost=failure.lost,
                )
            )
        return {failure.delivery.receipt for failure in failures}

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        """Report an error that ends the call before Lambda sees it, and flush the log and the error hook."""
        try:
            yield
        except Exception as error:
            with suppress(ConfigurationError):  # from the settings: there is no log then, but Lambda logs the error
                self._report(error)
            raise
        else:
            self._resources.telemetry.flush(REPORTS_SECONDS)

    def _report(self, error: Exception) -> None:
        failure = end_of(error)
        self._resources.bus.emit(
            WorkerFailed(error_type=failure.error_type, error=failure.error, traceback=failure.traceback)
        )
        self._resources.telemetry.report(error, handler=NAME)
        self._resources.telemetry.flush(REPORTS_SECONDS)


def _firsts(dead_letters: "Sequence[SqsDelivery]") -> "Sequence[SqsDelivery]":
    """Return the first message of each group."""
    seen: set[str | None] = set()
    firsts: list[SqsDelivery] = []
    for dead_letter in dead_letters:
        if dead_letter.message.group not in seen:
            seen.add(dead_letter.message.group)
            firsts.append(dead_letter)
    return firsts


handler = ReplayFunction()
"""The handler to name in Lambda's configuration. It is empty until the first call."""
