"""Measure one contestant at a time, with nothing else running. docs/why/benchmarks.md gives the reasons."""

import statistics
import time
from dataclasses import dataclass, field

from benchmarks.redis.processes import Processes, cpu_seconds
from benchmarks.redis.server import Listening
from benchmarks.redis.stage import Failed, Stage, wait_until

ROUNDS_MAX = 3
ROUNDS_SECONDS = 4.0  # a drain that took less in all is repeated, and the median counts
DRAIN_SECONDS_MAX = 90.0
START_SECONDS_MAX = 30.0
SENDS_ONE = 1_000
SLEEPS = 2_000
SLEEP_SECONDS = 0.05
SLEEPS_CONCURRENCY = 100
PACED = 200  # every 20 ms
COUNTED = 1_000


@dataclass(slots=True, kw_only=True)
class Figures:
    """The figures of one contestant. None: not measured, or not available. Rates are messages per second."""

    contestant: str
    version: str
    trouble: str | None = None
    empty_rate: float | None = None
    empty_rates: list[float] = field(default_factory=list)
    worker_cpu_microseconds: float | None = None  # a message, while empty handlers are worked off
    redis_cpu_microseconds: float | None = None
    sleeps_seconds: float | None = None  # ideal: SLEEPS * SLEEP_SECONDS / SLEEPS_CONCURRENCY
    sleeps_scaled: bool = False  # measured with fewer, for one that works on one message at a time
    latency_p50_ms: float | None = None
    latency_p99_ms: float | None = None
    send_rate: float | None = None
    send_many_rate: float | None = None
    resident_idle_mib: float | None = None
    resident_after_mib: float | None = None
    idle_cpu_percent: float | None = None
    idle_commands_rate: float | None = None
    commands_a_message: float | None = None
    recovery: str | None = None  # seconds, or words
    recovery_elsewhere: str | None = None  # by a worker on another host, where that differs


def measure(stage: Stage, figures: Figures, *, messages: int) -> None:
    """Measure everything that must be alone on the machine."""
    sending(stage, figures, messages)
    empty(stage, figures, messages)
    sleeps(stage, figures)
    commands(stage, figures)


def messages_max(messages: int) -> int:
    """Return the largest number of messages that `measure` and `recovery` send."""
    return ROUNDS_MAX * messages + PACED + SLEEPS + 2 * COUNTED


def sending(stage: Stage, figures: Figures, messages: int) -> None:
    """Measure sending. The messages stay in the queue, and `empty` processes them first."""
    singly = stage.take(messages if not stage.contestant.bulk else min(SENDS_ONE, messages // 2))
    figures.send_rate = (len(singly) - 1) / stage.send(singly)
    if stage.contestant.bulk:
        together = stage.take(messages - len(singly))
        figures.send_many_rate = (len(together) - 1) / stage.send(together, mode="many")


def empty(stage: Stage, figures: Figures, messages: int) -> None:
    """Measure handlers that do nothing, then the latency of the same worker."""
    numbers, took = range(messages), 0.0
    while True:
        with stage.worker(stage.contestant.empty_concurrency) as worker:
            seconds = drained(stage, worker, numbers, figures)
            figures.empty_rates.append(messages / seconds)
            took += seconds
            if took > ROUNDS_SECONDS or len(figures.empty_rates) == ROUNDS_MAX:
                figures.resident_after_mib = worker.resident_mib()
                latency(stage, figures)
                break
        numbers = stage.take(messages)
        stage.fill(numbers)
    figures.empty_rate = statistics.median(figures.empty_rates)


def drained(
    stage: Stage, worker: Processes, numbers: range, figures: Figures | None = None, *, sleeping: bool = False
) -> float:
    """Return the seconds from the first start until the queue is empty. Raises `Failed`."""
    head = numbers[: 2 * stage.contestant.waiting_concurrency]
    if not wait_until(lambda: bool(stage.started(head)), seconds_max=START_SECONDS_MAX, worker=worker):
        raise Failed(f"it did not begin: {stage.last_words()}")
    before = (worker.cpu_seconds(), cpu_seconds(stage.server.pid))
    wait_until(lambda: stage.left() == 0, seconds_max=DRAIN_SECONDS_MAX, worker=worker)
    nothing_left_at = time.time()
    after = (worker.cpu_seconds(), cpu_seconds(stage.server.pid))
    # Those that take messages off the queue before they work on them have some in hand yet.
    finished = stage.ended if sleeping else stage.started
    if not wait_until(lambda: len(finished(numbers)) == len(numbers), seconds_max=2.0, worker=worker):
        raise Failed(f"{len(finished(numbers)):,} of {len(numbers):,} done in time: {stage.last_words()}")
    effects = list(stage.effects.read(numbers))
    doubled = sum(effect.starts > 1 for effect in effects)
    if doubled:
        raise Failed(f"{doubled:,} of {len(numbers):,} messages were worked on more than once")
    if figures is not None:
        figures.worker_cpu_microseconds = (after[0] - before[0]) / len(numbers) * 1e6
        figures.redis_cpu_microseconds = (after[1] - before[1]) / len(numbers) * 1e6
    last_at = max(max(effect.last_start_at, effect.ended_at) for effect in effects)
    return max(nothing_left_at, last_at) - min(effect.first_start_at for effect in effects)


def latency(stage: Stage, figures: Figures) -> None:
    """Send a message every 20 ms to an idle worker, and measure the time from its send to its handler's start."""
    numbers = stage.take(PACED)
    stage.send(numbers, mode="paced")
    if not wait_until(lambda: len(stage.started(numbers)) == PACED, seconds_max=5.0):
        raise Failed(f"{len(stage.started(numbers))} of {PACED} paced messages were begun: {stage.last_words()}")
    waited = sorted((effect.first_start_at - effect.sent_at) * 1_000 for effect in stage.effects.read(numbers))
    figures.latency_p50_ms = waited[PACED // 2]
    figures.latency_p99_ms = waited[PACED * 99 // 100 - 1]


def sleeps(stage: Stage, figures: Figures) -> None:
    """Measure handlers that wait. A contestant with one message at a time would need 100 s, and gets a fiftieth."""
    share = 50 if stage.contestant.waiting_concurrency == 1 else 1
    numbers = stage.take(SLEEPS // share)
    stage.fill(numbers, seconds=SLEEP_SECONDS)
    with stage.worker(stage.contestant.waiting_concurrency) as worker:
        took = drained(stage, worker, numbers, sleeping=True)
    figures.sleeps_seconds, figures.sleeps_scaled = took * share, share > 1


def commands(stage: Stage, figures: Figures) -> None:
    """Count a worker's commands to Redis per message, including its start and its last empty reads."""
    numbers = stage.take(COUNTED)
    stage.fill(numbers)
    listening = Listening(stage.server)
    try:
        with stage.worker(stage.contestant.empty_concurrency) as worker:
            drained(stage, worker, numbers)
            commands = sum(listening.commands.values())
    finally:
        listening.close()
    figures.commands_a_message = commands / COUNTED
