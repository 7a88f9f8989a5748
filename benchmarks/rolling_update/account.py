"""The report of a rolling update, in Markdown."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from statistics import median

from tests.integration.fleet import Fleet

from benchmarks.rolling_update.scraper import Sample
from benchmarks.rolling_update.story import LEASE_SECONDS, STOP_TIMEOUT_SECONDS, WORKERS, Moment, Story

HEAD = """# A recorded rolling update

[//]: # (written by `python -m benchmarks.rolling_update --write docs/why/rolling-update.md`: do not edit)

A deploy as its logs and metrics show it: with handlers that end in time, with handlers that take too long, and with
kills. Three workers serve one queue in Redis, each with a data directory of its own, as if on three hosts, while
messages arrive all the time. In each act they are replaced one by one: the new worker is ready before the old one
gets its signal. Each row has the metrics of the nearest second; counters start at 0 with the act. Lost and repeated
messages are counted from a journal that the handlers write, independent of Penstock. Run it yourself: `python -m
benchmarks.rolling_update`. [Deploying](../run/deploying.md) explains the times that a deploy needs,
[metrics](../run/metrics.md) the metrics.

"""


def page(stories: Sequence[Story], fleet: Fleet, sent: Sequence[str], *, rate: float) -> str:
    """Return the whole report, in Markdown."""
    lines = fleet.lines()
    ended = Counter(line.id for line in lines if line.what == "end")
    lost = set(sent) - set(ended)
    twice = sum(count > 1 for count in ended.values())
    summary = (
        f"{WORKERS} workers, {rate:g} messages a second, a lease of {LEASE_SECONDS} s, a stop timeout of "
        f"{STOP_TIMEOUT_SECONDS} s: {len(sent)} messages were sent, **{len(lost)} lost**, {twice} done twice."
    )
    parts = [
        summary,
        "",
        "| act | exit after (most) | released | picked up after, median / most | orphaned | done twice |",
        "|---|---|---|---|---|---|",
        *(_summary(story, fleet) for story in stories),
    ]
    for story in stories:
        parts += ["", f"## {story.act.title}", "", story.act.says, "", *_timeline(story, fleet)]
    return "\n".join(parts) + "\n"


def _summary(story: Story, fleet: Fleet) -> str:
    lines = fleet.lines()
    waits = [at - _left_at(story, fleet, pid) for pid, starts in _starts_again(story, fleet).items() for at in starts]
    held = {line.message for line in lines if line.pid in story.names}
    ends = Counter(line.message for line in lines if line.what == "end" and line.message in held)
    released_count = sum(
        event["count"]
        for worker in fleet.workers
        if worker.pid in story.names
        for event in worker.events("worker.interrupted")
    )
    orphaned = story.samples[-1].orphaned - story.samples[0].orphaned
    picked_up = f"{median(waits):.1f} s / {max(waits):.1f} s" if waits else "-"
    return (
        f"| {story.act.title} | {max(story.exits):.1f} s | {released_count} | {picked_up} | {orphaned:.0f} | "
        f"{sum(count > 1 for count in ends.values())} |"
    )


def _starts_again(story: Story, fleet: Fleet) -> dict[int, list[float]]:
    """Return when other workers started unfinished messages of a replaced worker again, by that worker."""
    lines = fleet.lines()
    ended = {(line.message, line.pid) for line in lines if line.what == "end"}
    again: dict[int, list[float]] = {}
    for line in lines:
        if line.what == "start" and line.pid in story.names and (line.message, line.pid) not in ended:
            starts = [
                one.at for one in lines if (one.what, one.message) == ("start", line.message) and one.at > line.at
            ]
            again.setdefault(line.pid, []).append(min(starts))
    return again


def _begun_again(story: Story, fleet: Fleet) -> list[Moment]:
    return [
        Moment(
            at=max(starts),
            actor="the others",
            event=f"have started messages of {story.names[pid]} again: {len(starts)}",
        )
        for pid, starts in _starts_again(story, fleet).items()
    ]


def _left_at(story: Story, fleet: Fleet, pid: int) -> float:
    """Return when a worker lost its messages: when it released them, or when it was killed."""
    [worker] = [worker for worker in fleet.workers if worker.pid == pid]
    released = [datetime.fromisoformat(line["ts"]).timestamp() for line in worker.events("message.released")]
    after = [at for at in released if at >= story.signalled_at[pid]]
    return max(after, default=story.signalled_at[pid])


def _timeline(story: Story, fleet: Fleet) -> list[str]:
    rows = [
        "| s | who | what | visible | in flight | oldest visible | received | acked | released | orphaned |",
        "|---:|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    start = story.samples[0]
    end = Moment(at=story.samples[-1].at, actor="all", event="at the end")
    moments = sorted([*story.moments, *_begun_again(story, fleet)], key=lambda moment: moment.at)
    for moment in (*moments, end):
        nearest = min(story.samples, key=lambda sample: abs(sample.at - moment.at))
        rows.append(_row(story, nearest, start, moment))
    return rows


def _row(story: Story, sample: Sample, start: Sample, moment: Moment) -> str:
    figures = (
        f"{sample.visible:.0f}",
        f"{sample.in_flight:.0f}",
        f"{sample.oldest_visible_seconds:.1f} s",
        f"{sample.received - start.received:.0f}",
        f"{sample.acked - start.acked:.0f}",
        f"{sample.released - start.released:.0f}",
        f"{sample.orphaned - start.orphaned:.0f}",
    )
    return f"| {moment.at - story.began_at:.1f} | {moment.actor} | {moment.event} | {' | '.join(figures)} |"
