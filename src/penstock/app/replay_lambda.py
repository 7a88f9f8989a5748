"""The automatic replayer as an AWS Lambda function, `penstock.app.replay_lambda.handler`.

An event source mapping on the first tier receives, calls the function, and deletes what it does not name as failed (the
mapping has to have ReportBatchItemFailures). Policy and steps are the worker's, see `penstock.replay`: what is due is
sent and deleted, what waits is hidden for that long and named as failed, the rest goes to the second tier. Of a FIFO
queue nothing of a group goes on behind one that does not.

A function has no database unless PENSTOCK_LEDGER names one. Without one, when a letter is due is told by the letter
itself, see `replay_unrecorded`; and a function that dies between sending and deleting sends that letter once more.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from penstock.app.replay_lambda_parts import LambdaParts
from penstock.app.replay_unrecorded import Unrecorded
from penstock.errors import ConfigurationError, TemporaryError
from penstock.events import Listener, SettleFailed, WorkerFailed
from penstock.messaging.broker import SettleFailure, is_fifo
from penstock.messaging.clock import Clock, SystemClock
from penstock.messaging.failure import end_of
from penstock.messaging.replays import NoLog
from penstock.messaging.settlement import Ack, Release, Settlement, operation_of
from penstock.messaging.steps import Probe, no_probe
from penstock.monitoring.errors import ErrorHook
from penstock.replay.execution import NAME, Desk, ReplayExecution
from penstock.storage.aws import require_aws

if TYPE_CHECKING:
    from penstock.brokers.sqs.received import Received

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
            from penstock.brokers.sqs.records import deliveries_of, queue_arn_of

            letters = deliveries_of(event, self._clock)
            stay = self._stay(self._parts.desk(queue_arn_of(event)), letters)
            named = [{"itemIdentifier": letter.message.id} for letter in letters if letter.receipt in stay]
            return {"batchItemFailures": named}

    def close(self) -> None:
        """Give back connections. Lambda never does; tests do."""
        self._parts.close()

    # --- one call

    def _stay(self, desk: Desk, letters: "Sequence[Received]") -> set[str]:
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

    def _brought_on(self, desk: Desk, letters: "Sequence[Received]") -> set[str]:
        """One step. What was sent goes, whether or not it could be deleted: Lambda deletes what is not named."""
        if isinstance(desk.log, NoLog):
            desk = replace(desk, log=Unrecorded(letters, now=self._clock.now()))
        answer = ReplayExecution(letters, desk).run()
        unsettled = self._settle(desk, [(letter, answer[letter.receipt]) for letter in letters])
        held = {receipt for receipt, settlement in answer.items() if isinstance(settlement, Release)}
        lasting = {receipt for receipt, settlement in answer.items() if not isinstance(settlement, Ack)}
        return held | (unsettled & lasting)

    def _settle(self, desk: Desk, settlements: "Sequence[tuple[Received, Settlement]]") -> set[str]:
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


def _firsts(letters: "Sequence[Received]") -> "Sequence[Received]":
    """The first of each group."""
    seen: set[str | None] = set()
    firsts: list[Received] = []
    for letter in letters:
        if letter.message.group not in seen:
            seen.add(letter.message.group)
            firsts.append(letter)
    return firsts


handler = ReplayFunction()
"""The value that Lambda is told of. It is empty until it is called first."""
