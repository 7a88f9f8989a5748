"""Compare the rates of consumers in alternating rounds.

On a machine that also does other work, only the ratios within a round mean anything.
"""

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.redis.contestants import Contestant
from benchmarks.redis.figures import PACED, Figures, drained, latency
from benchmarks.redis.stage import Stage, stage

Round = Mapping[str, Figures]  # by contestant
RATIOS = (
    ("redis plain / bare", "penstock plain", "bare"),
    ("redis async / bare", "penstock async", "bare"),
    ("redis plain / bullmq", "penstock plain", "bullmq"),
    ("redis async / bullmq", "penstock async", "bullmq"),
    ("redis 2 processes / 1", "penstock plain x2", "penstock plain"),
)


def alternating(contestants: Sequence[Contestant], folder: Path, *, messages: int, rounds: int) -> list[Round]:
    """Return the figures of each round, in which every contestant has its turn."""
    with ExitStack() as stack:
        stages = [
            stack.enter_context(stage(contestant, folder, messages_max=rounds * (messages + PACED)))
            for contestant in contestants
        ]
        return [{own.contestant.name: _one(own, messages) for own in stages} for _ in range(rounds)]


def ratios(rounds: Sequence[Round]) -> dict[str, float]:
    """Return the medians, over the rounds, of each ratio of two rates, and of Penstock's latencies in milliseconds."""
    found = {
        name: statistics.median(each[one].empty_rate / each[other].empty_rate for each in rounds)  # type: ignore[operator]
        for name, one, other in RATIOS
        if {one, other} <= rounds[0].keys()
    }
    for name in rounds[0]:
        if name.startswith("penstock"):
            found[f"redis {name.removeprefix('penstock ')} p50 ms"] = _median(rounds, name, "latency_p50_ms")
            found[f"redis {name.removeprefix('penstock ')} p99 ms"] = _median(rounds, name, "latency_p99_ms")
    return {name: round(value, 3) for name, value in found.items()}


def medians(rounds: Sequence[Round]) -> list[Figures]:
    """Return the median figures of each contestant."""
    return [
        Figures(
            contestant=name,
            version="",
            empty_rates=[each[name].empty_rate or 0.0 for each in rounds],
            empty_rate=_median(rounds, name, "empty_rate"),
            worker_cpu_microseconds=_median(rounds, name, "worker_cpu_microseconds"),
            redis_cpu_microseconds=_median(rounds, name, "redis_cpu_microseconds"),
            latency_p50_ms=_median(rounds, name, "latency_p50_ms"),
            latency_p99_ms=_median(rounds, name, "latency_p99_ms"),
        )
        for name in rounds[0]
    ]


def _one(own: Stage, messages: int) -> Figures:
    figures = Figures(contestant=own.contestant.name, version="")
    numbers = own.take(messages)
    own.fill(numbers)
    with own.worker(own.contestant.empty_concurrency) as worker:
        figures.empty_rate = messages / drained(own, worker, numbers, figures)
        latency(own, figures)
    return figures


def _median(rounds: Sequence[Round], name: str, field: str) -> float:
    values: list[float] = [getattr(each[name], field) for each in rounds]
    return statistics.median(values)
