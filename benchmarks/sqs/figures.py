"""The measurements and their output. docs/why/benchmarks.md has the reasons."""

import os
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from benchmarks.sqs.stage import CONTESTANTS, Drained, Stage
from benchmarks.sqs.way import Way

BARE, *OURS = CONTESTANTS
ROUND_SECONDS = 5.0  # of the bare loop over a way with a delay, about
SLEEPS = 2_000
SLEEP_SECONDS = 0.1
PACED = 100
PACE_SECONDS = 0.1
CALM_SECONDS = 3.0  # before a worker counts as idle
IDLE_SECONDS = 20.0
BATCH = 10


def rates(stage: Stage, messages: int, rounds: int, *, delay_seconds: float | None) -> None:
    """Measure handlers that do nothing."""
    drained: dict[str, list[Drained]] = {name: [] for name in CONTESTANTS}
    for number in range(rounds):
        for name in CONTESTANTS if number % 2 else reversed(CONTESTANTS):
            drained[name].append(stage.drain(name, messages, delay_seconds=delay_seconds))
    print(f"{messages:,} messages that do nothing, {_way(delay_seconds)}; load {os.getloadavg()[0]:.1f}")
    for name, each in drained.items():
        ratios = [mine.rate / bare.rate for mine, bare in zip(each, drained[BARE], strict=True)]
        print(
            f"  {name:>5} {statistics.median(one.rate for one in each):7,.0f} a second, "
            f"{statistics.median(ratios):.2f} of the bare loop's ({' '.join(f'{ratio:.2f}' for ratio in ratios)}), "
            f"{statistics.median(one.cpu_microseconds for one in each):.0f} us of a core each, "
            f"{each[-1].resident_mib:.0f} MiB{_calls(each[-1].calls, messages)}",
            flush=True,
        )


def delayed(stage: Stage, messages: int, rounds: int, delays_seconds: Sequence[float]) -> None:
    """Measure over proxies with delays, with few enough messages to end soon."""
    for delay_seconds in delays_seconds:
        in_time = int(stage.pollers * BATCH * ROUND_SECONDS / (2 * delay_seconds)) if delay_seconds else messages
        rates(stage, min(messages, in_time), rounds, delay_seconds=delay_seconds)


def sleeps(stage: Stage, delay_seconds: float) -> None:
    """Measure handlers that wait. The bare loop, with one message per poller, cannot compete."""
    best_seconds = SLEEPS * SLEEP_SECONDS / stage.concurrency
    print(
        f"{SLEEPS:,} sleeps of {SLEEP_SECONDS * 1_000:g} ms, concurrency {stage.concurrency}; "
        f"at best {best_seconds:g} s; load {os.getloadavg()[0]:.1f}"
    )
    for delay in (None, delay_seconds):
        for name in OURS:
            drained = stage.drain(name, SLEEPS, delay_seconds=delay, seconds=SLEEP_SECONDS)
            seconds = SLEEPS / drained.rate
            print(
                f"  {name:>5} {seconds:5.2f} s, {best_seconds / seconds:.2f} of the best, {_way(delay)}"
                f"{_calls(drained.calls, SLEEPS)}",
                flush=True,
            )


def latency(stage: Stage, delays_seconds: Sequence[float | None]) -> None:
    """Measure the time from the send to the handler's start, with an idle worker."""
    print(f"{PACED} messages, one in {PACE_SECONDS:g} s; load {os.getloadavg()[0]:.1f}")
    for delay in delays_seconds:
        for name in CONTESTANTS:
            waited = _waited(stage, name, delay)
            p50_ms, p99_ms = waited[PACED // 2], waited[PACED * 99 // 100 - 1]
            print(f"  {name:>5} p50 {p50_ms:5.1f} ms, p99 {p99_ms:5.1f} ms, {_way(delay)}", flush=True)


def idle(stage: Stage) -> None:
    """Measure idle workers, all at the same time, each with its own proxy for counting."""
    print(f"nothing to do for {IDLE_SECONDS:g} s; load {os.getloadavg()[0]:.1f}")
    with ExitStack() as stack:
        workers = {}
        for name in CONTESTANTS:
            stack.enter_context(stage.effects(name, 1))
            way = stack.enter_context(stage.way(0.0))
            assert way is not None
            workers[name] = (way, stack.enter_context(stage.worker(name, way)))
        for name, (way, worker) in workers.items():
            stage.wait(partial(_asked, way), name, worker, seconds_max=30.0)
        time.sleep(CALM_SECONDS)
        before = {name: (way.calls.total(), worker.cpu_seconds()) for name, (way, worker) in workers.items()}
        time.sleep(IDLE_SECONDS)
        for name, (way, worker) in workers.items():
            calls, cpu_seconds = before[name]
            print(
                f"  {name:>5} {(way.calls.total() - calls) / IDLE_SECONDS:5.2f} calls a second, "
                f"{(worker.cpu_seconds() - cpu_seconds) / IDLE_SECONDS:.2%} of a core, {worker.resident_mib():.0f} MiB",
                flush=True,
            )


def _waited(stage: Stage, name: str, delay_seconds: float | None) -> Sequence[float]:
    """Return sorted milliseconds."""
    pauses = random.Random(1)  # or all would fall into the same moment of a poll
    with (
        stage.effects(name, PACED + 1) as book,
        stage.way(delay_seconds) as way,
        stage.worker(name, way) as worker,
    ):
        for number in range(PACED + 1):
            book.sending(number)
            stage.filler.fill(name, [number])
            if number == 0:  # connections are open now
                stage.wait(lambda: stage.filler.left(name) == 0, name, worker, seconds_max=30.0)
            time.sleep(PACE_SECONDS * (0.5 + pauses.random()))
        stage.wait(lambda: stage.filler.left(name) == 0, name, worker, seconds_max=30.0)
        effects = list(book.read(range(PACED + 1)))
    stage.check(name, effects)
    return sorted((effect.first_start_at - effect.sent_at) * 1_000 for effect in effects[1:])


def _asked(way: Way) -> bool:
    return way.calls["ReceiveMessage"] > 0


def _way(delay_seconds: float | None) -> str:
    return "straight to the server" if delay_seconds is None else f"{delay_seconds * 1_000:g} ms each call"


def _calls(calls: Mapping[str, int], messages: int) -> str:
    if not calls:
        return ""
    each = ", ".join(f"{name} {count:,}" for name, count in sorted(calls.items()) if name != "GetQueueAttributes")
    return f", {sum(calls.values()) / messages:.2f} calls a message ({each})"
