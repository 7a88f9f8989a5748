"""What a replaying function is made of: settings from its environment, log and error hook, broker, first tiers.

Each is made when it is asked for first, and kept: Lambda uses a process for many calls, one after the other.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from random import random
from typing import TYPE_CHECKING

from penstock.app.backends import has_local_ledger, open_ledger
from penstock.app.identity import worker_id
from penstock.app.listeners import guarded
from penstock.app.replay_settings import replay_policy, with_sample
from penstock.app.sqs_address import SQS, aws_of, is_sqs
from penstock.app.telemetry import Telemetry, open_telemetry
from penstock.app.tracing import tracing_of
from penstock.config import Settings, load_settings, shown
from penstock.errors import ConfigurationError
from penstock.events import Bus, Listener
from penstock.messaging.broker import listed_name
from penstock.messaging.clock import Clock
from penstock.messaging.replays import NoLog
from penstock.messaging.steps import Probe
from penstock.monitoring.errors import ErrorHook
from penstock.replay.execution import Desk
from penstock.replay.sample import SampleSettings, sample_settings
from penstock.replay.sources import Source, Sources

if TYPE_CHECKING:
    from penstock.brokers.sqs import SqsBroker
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
        self._desks: dict[str, Desk] = {}  # by the ARN of the first tier; written by the one thread that calls

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

    def desk(self, arn: str) -> Desk:
        """A first tier, and what replaying its letters takes."""
        if arn not in self._desks:
            sources = self._sources()
            log = NoLog() if self._ledger is None else self._ledger.replays
            if self._sample.queue is not None:
                self._believe(self._sample.queue, arn)
            self._desks[arn] = Desk(
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

    def _sources(self) -> Sources:
        """The queues that letters may go back to."""
        named = [listed_name(self._sample.queue)] if self._sample.queue is not None else list(self._settings.queues)
        if not named:
            raise ConfigurationError(
                "Where dead letters go back to is not said: set SQS_MAIN_URL to the URL of their queue."
            )
        policies = {queue: replay_policy(self._settings, queue) for queue in named}
        found = [
            # The function may not look at its queues; the cap is what it is told of their retention.
            Source(queue=queue, policy=policy, retention_seconds=policy.cap_seconds)
            for queue, policy in policies.items()
            if policy is not None
        ]
        if not found:
            raise ConfigurationError(
                f"The dead letters of {', '.join(named)} are not replayed, by the setting replay_queues: then let no "
                "queue invoke this function."
            )
        return Sources(found)

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
