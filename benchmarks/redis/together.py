"""Measurements of all contestants at once: cost while idle, and the fate of work in flight when they die."""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from benchmarks.redis.contestants import Contestant
from benchmarks.redis.figures import Figures
from benchmarks.redis.server import Listening
from benchmarks.redis.stage import Failed, Stage, stage, wait_until

SETTLE_SECONDS = 6.0  # after the start of all
IDLE_SECONDS = 10.0
IN_FLIGHT = 10
WORK_SECONDS = 3.0
HELD_SECONDS = 1.5  # between the first start and the kill
RECOVERY_SECONDS_MAX = 100.0


def idle(contestants: Sequence[Contestant], figures: dict[str, Figures], folder: Path) -> None:
    """Measure each worker with its own server, on an empty queue that has been used."""
    with ExitStack() as stack:
        workers, listening, before = {}, {}, {}
        for contestant in contestants:
            own = stack.enter_context(stage(contestant, folder, messages_max=1))
            own.fill(own.take(1))
            workers[contestant.name] = stack.enter_context(own.worker(contestant.waiting_concurrency))
            listening[contestant.name] = own
        time.sleep(SETTLE_SECONDS)
        listeners = {name: Listening(own.server) for name, own in listening.items()}
        before = {name: worker.cpu_seconds() for name, worker in workers.items()}
        begun = time.monotonic()
        time.sleep(IDLE_SECONDS)
        for name, worker in workers.items():
            seconds = time.monotonic() - begun
            figures[name].idle_cpu_percent = (worker.cpu_seconds() - before[name]) / seconds * 100
            figures[name].idle_commands_rate = sum(listeners[name].close().values()) / seconds
            figures[name].resident_idle_mib = worker.resident_mib()


def recovery(contestants: Sequence[Contestant], figures: dict[str, Figures], folder: Path) -> None:
    """Measure all at the same time, because this is only waiting."""
    elsewhere = [contestant for contestant in contestants if contestant.elsewhere]
    with ThreadPoolExecutor(max_workers=len(contestants) + len(elsewhere)) as pool:
        here = [pool.submit(_recovery, each, folder / "here", {}) for each in contestants]
        there = [pool.submit(_recovery, each, folder / "elsewhere", each.elsewhere) for each in elsewhere]
        for contestant, words in zip(contestants, here, strict=True):
            figures[contestant.name].recovery = words.result()
        for contestant, words in zip(elsewhere, there, strict=True):
            figures[contestant.name].recovery_elsewhere = words.result()


def _recovery(contestant: Contestant, folder: Path, second: Mapping[str, str]) -> str:
    """Kill a worker with work in flight and start another. Return the seconds until all work restarted, or why not."""
    try:
        with stage(contestant, folder, messages_max=IN_FLIGHT) as own:
            return _killed(own, second)
    except Failed as failed:
        return str(failed)


def _killed(own: Stage, elsewhere: Mapping[str, str]) -> str:
    numbers, concurrency = own.take(IN_FLIGHT), own.contestant.waiting_concurrency
    own.fill(numbers, seconds=WORK_SECONDS)
    with own.worker(concurrency) as first:
        if not wait_until(lambda: bool(own.started(numbers)), seconds_max=30.0, worker=first):
            return f"it did not begin: {own.last_words()}"
        time.sleep(HELD_SECONDS)
        first.kill()
    killed_at = time.time()
    held = [number for number in numbers if own.started(numbers[number : number + 1])]
    with own.worker(concurrency, elsewhere) as second:
        back = wait_until(
            lambda: all(effect.starts > 1 for effect in own.effects.read(held)),
            seconds_max=RECOVERY_SECONDS_MAX,
            worker=second,
        )
    if back:
        last_at = max(effect.last_start_at for effect in own.effects.read(held))
        return f"{last_at - killed_at:.1f}"
    returned = sum(effect.starts > 1 for effect in own.effects.read(held))
    if own.left():
        return f">{RECOVERY_SECONDS_MAX:.0f}"
    return f"lost {len(held) - returned} of {len(held)}"
