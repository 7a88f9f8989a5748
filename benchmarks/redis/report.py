"""The figures for people, and for programs."""

import dataclasses
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.redis.figures import SLEEP_SECONDS, SLEEPS, SLEEPS_CONCURRENCY, Figures

Cell = Callable[[Figures], str]
BEST_SECONDS = SLEEPS * SLEEP_SECONDS / SLEEPS_CONCURRENCY


def table(figures: Sequence[Figures]) -> str:
    heads = [head for head, _, _ in COLUMNS]
    rows = [[cell(each) for _, _, cell in COLUMNS] for each in figures if each.trouble is None]
    widths = [max(len(row[at]) for row in [heads, *rows]) for at in range(len(heads))]
    lines = [
        "  ".join(_padded(text, width, at) for at, (text, width) in enumerate(zip(row, widths, strict=True)))
        for row in [heads, *rows]
    ]
    legend = [f"{head}: {meaning}" for head, meaning, _ in COLUMNS if meaning]
    left_out = [f"left out: {each.contestant}: {each.trouble}" for each in figures if each.trouble]
    return "\n".join([*lines, "", *legend, *left_out])


def write(
    file: Path,
    figures: Sequence[Figures],
    *,
    messages: int,
    seconds: float,
    ratios: Mapping[str, float] | None = None,
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
        "load": os.getloadavg(),
        "messages": messages,
        "seconds": round(seconds, 1),
        "ratios": dict(ratios or {}),
        "figures": [dataclasses.asdict(each) for each in figures],
    }
    file.write_text(json.dumps(document, indent=2) + "\n")


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def _sleeps(figures: Figures) -> str:
    return ("~" if figures.sleeps_scaled else "") + _number(figures.sleeps_seconds, ".2f")


def _recovery(figures: Figures) -> str:
    return (figures.recovery or "-") + (f" ({figures.recovery_elsewhere})" if figures.recovery_elsewhere else "")


def _padded(text: str, width: int, column: int) -> str:
    return text.ljust(width) if column == 0 else text.rjust(width)


COLUMNS: Sequence[tuple[str, str, Cell]] = (
    ("", "", lambda each: each.contestant),
    ("empty/s", "messages a second, handlers that do nothing", lambda each: _number(each.empty_rate, ",.0f")),
    ("us worker", "microseconds of a core a message, then", lambda each: _number(each.worker_cpu_microseconds, ",.0f")),
    ("us Redis", "the same of the server", lambda each: _number(each.redis_cpu_microseconds, ",.0f")),
    (
        "sleeps s",
        f"{SLEEPS:,} handlers of {SLEEP_SECONDS * 1_000:.0f} ms, at best {BEST_SECONDS:g}; ~ scaled: one at a time",
        _sleeps,
    ),
    (
        "p50 ms",
        "from before the send to the handler, a message every 20 ms",
        lambda each: _number(each.latency_p50_ms, ".1f"),
    ),
    ("p99 ms", "", lambda each: _number(each.latency_p99_ms, ".1f")),
    ("send/s", "one after another", lambda each: _number(each.send_rate, ",.0f")),
    ("send many/s", "by what the library has for it", lambda each: _number(each.send_many_rate, ",.0f")),
    ("MiB idle", "resident, all processes", lambda each: _number(each.resident_idle_mib, ",.0f")),
    ("MiB after", "after the empty handlers", lambda each: _number(each.resident_after_mib, ",.0f")),
    ("idle CPU %", "of a core", lambda each: _number(each.idle_cpu_percent, ".2f")),
    ("idle cmd/s", "commands to Redis while idle", lambda each: _number(each.idle_commands_rate, ",.1f")),
    ("cmd/msg", "commands of the worker to Redis a message", lambda each: _number(each.commands_a_message, ".2f")),
    (
        "recovery s",
        "after SIGKILL, until all work was begun again (in brackets: by a worker on another host)",
        _recovery,
    ),
)
