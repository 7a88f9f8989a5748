"""Compare Redis consumers, each with one worker process and its own Redis server.

    python -m benchmarks.redis [--only NAME,...] [--messages N] [--with-recovery]
    python -m benchmarks.redis --rounds 5 [--only penstock,bare,bullmq]    # rates and latencies only, as ratios

Prints a table and writes build/bench-redis/figures.json. A contestant that is not installed is left out, with a line
that gives the reason. docs/why/benchmarks.md describes measurements and method.
"""

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.redis import report, rounds
from benchmarks.redis.contestants import BUILD, NODE, Contestant, NotHere, build_node, contestants
from benchmarks.redis.effects import Effects
from benchmarks.redis.figures import Figures, measure, messages_max
from benchmarks.redis.stage import Failed, stage
from benchmarks.redis.together import idle, recovery

LOGS = BUILD / "logs"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="NAME,...", help="the contestants to measure; default: all")
    parser.add_argument("--messages", type=int, default=20_000, help="that do nothing; default: 20000")
    parser.add_argument("--with-recovery", action="store_true", help="kill workers too; takes two minutes more")
    parser.add_argument("--rounds", type=int, help="only rates and latencies, in this many alternating rounds")
    arguments = parser.parse_args()
    if shutil.which("redis-server") is None:
        print("left out: there is no redis-server on PATH")
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all processes are stopped, as after Ctrl-C
    begun = time.monotonic()
    taking_part, figures = present(chosen(arguments.only))
    shutil.rmtree(LOGS, ignore_errors=True)
    if arguments.rounds:
        return compared(taking_part, messages=arguments.messages, times=arguments.rounds)
    for contestant in list(taking_part):
        if not one(contestant, figures[contestant.name], arguments.messages):
            taking_part.remove(contestant)
    idle(taking_part, figures, LOGS / "idle")
    if arguments.with_recovery:
        recovery(taking_part, figures, LOGS / "recovery")
    seconds = time.monotonic() - begun
    print(report.table(list(figures.values())))
    print(f"\n{arguments.messages:,} messages each, {seconds:.0f} s in all, load {os.getloadavg()[0]:.1f}")
    report.write(BUILD / "figures.json", list(figures.values()), messages=arguments.messages, seconds=seconds)
    return 0


def compared(contestants: Sequence[Contestant], *, messages: int, times: int) -> int:
    """Print the medians of alternating rounds, and the ratios within them."""
    begun = time.monotonic()
    done = rounds.alternating(contestants, LOGS, messages=messages, rounds=times)
    figures, ratios = rounds.medians(done), rounds.ratios(done)
    print(report.table(figures))
    for name, ratio in ratios.items():
        print(f"{name}: {ratio:g}")
    seconds = time.monotonic() - begun
    print(f"\n{messages:,} messages, {times} rounds, {seconds:.0f} s in all, load {os.getloadavg()[0]:.1f}")
    report.write(BUILD / "figures.json", figures, messages=messages, seconds=seconds, ratios=ratios)
    return 0


def chosen(only: str | None) -> list[Contestant]:
    """Return the contestants with these names; the first word of a name is enough, as in `--only penstock,bullmq`."""
    if only is None:
        return contestants()
    names = set(only.split(","))
    found = [each for each in contestants() if names & {each.name, each.name.split()[0]}]
    unknown = names - {name for each in found for name in (each.name, each.name.split()[0])}
    if unknown:
        sys.exit(
            f"No contestant is called {', '.join(sorted(unknown))}; there are: {', '.join(map(_name, contestants()))}."
        )
    return found


def present(all_: Sequence[Contestant]) -> tuple[list[Contestant], dict[str, Figures]]:
    """Return the contestants that this machine can run, and figures for all."""
    taking_part, figures, node = [], {}, ""
    if any(contestant.folder == NODE for contestant in all_):
        try:
            build_node()
        except NotHere as reason:
            node = str(reason)
    for contestant in all_:
        try:
            if node and contestant.folder == NODE:
                raise NotHere(node)
            version = _version(contestant)
        except NotHere as reason:
            figures[contestant.name] = Figures(contestant=contestant.name, version="", trouble=str(reason))
            print(f"left out: {contestant.name}: {reason}", flush=True)
        else:
            figures[contestant.name] = Figures(contestant=contestant.name, version=version)
            taking_part.append(contestant)
    return taking_part, figures


def one(contestant: Contestant, figures: Figures, messages: int) -> bool:
    """Return True if it did its work; if not, its figures hold the reason."""
    begun = time.monotonic()
    try:
        with stage(contestant, LOGS, messages_max=messages_max(messages)) as own:
            measure(own, figures, messages=messages // contestant.share)
    except Failed as failed:
        figures.trouble = str(failed)
    words = figures.trouble or f"{figures.empty_rate:,.0f} empty messages a second"
    print(f"{contestant.name} ({figures.version}): {words}; {time.monotonic() - begun:.0f} s", flush=True)
    return figures.trouble is None


def _version(contestant: Contestant) -> str:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "effects"
        Effects.make(file, 1).close()
        environment = {"BENCH_REDIS": "redis://127.0.0.1:1/0", "BENCH_EFFECTS": str(file), "BENCH_CONCURRENCY": "1"}
        return contestant.version({**os.environ, **contestant.environment, **environment})


def _name(contestant: Contestant) -> str:
    return contestant.name


if __name__ == "__main__":
    sys.exit(main())
