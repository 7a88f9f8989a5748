"""Histories of workers, told by their own logs in whatever order and wrapping: each diagnosis names what was built in,
and nothing else.

The oracle is the building: while a history is made up, attempt by attempt, what should be found is written down.
"""

import base64
import io
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import events
from penstock.events import Event
from penstock.messaging.settlement import Ack, DeadLetter, Release
from penstock.monitoring.diagnoses import Diagnoser, Diagnoses, Found, Unwrapping
from penstock.monitoring.logs.listener import configure_logs
from penstock.monitoring.logs.plans import LogSettings
from penstock.testing import FakeClock

WORKERS = ("w1", "w2", "w3", "w4")
MESSAGE_ENDS = ("finished", "interrupted", "killed", "failed", "settled", "taken over")
ENDS = ("finished", "failed", "retrying", "interrupted", "gone", "superseded", "killed", "taken over")
OUTCOMES = {"failed": "dead", "retrying": "retry", "gone": "gone", "superseded": "superseded", "taken over": "retry"}
STRANGE = ("s3://b/plain", "s3://b/new\nline", "s3://b/\x1b[31mred", 's3://b/"quoted"{', "s3://b/ключ", "s3://b/😀")
BEGAN = 1_764_000_000.0

Settlements = Counter[tuple[str | None, ...]]


@dataclass
class History:
    """Events with their times and workers, and what should be found in them."""

    told: list[tuple[float, str, Event]] = field(default_factory=list)
    wrong: Settlements = field(default_factory=Counter)
    failed: Settlements = field(default_factory=Counter)
    finished: Settlements = field(default_factory=Counter)
    died: Settlements = field(default_factory=Counter)
    back: Settlements = field(default_factory=Counter)
    dead: Settlements = field(default_factory=Counter)  # messages, as is the next
    died_messages: Settlements = field(default_factory=Counter)
    over: Settlements = field(default_factory=Counter)  # taken over: what, by which attempt, from whose


def object_history(history: History, random: Random, pipeline: str, uri: str, attempts: list[str]) -> None:
    """One object of one pipeline, attempt after attempt, with skips between them."""
    at = BEGAN + random.random()
    backs: list[str] = []  # attempts that were given back and that nobody finished yet
    finishes, skipped_early, last = 0, False, ""
    late: list[tuple[float, str, Event]] = []  # what an attempt that was taken over says at its own end
    before: tuple[str, str] | None = None  # worker and attempt that left the object behind

    def tell(worker: str, event: Event) -> float:
        nonlocal at
        at += 6.0 + random.random()  # more than clocks of two hosts may differ
        history.told.append((at, worker, event))
        return at

    def skip() -> None:
        nonlocal skipped_early
        if random.random() < 0.3:
            reason = random.choice(["already_processed", "already_processed", "in_progress"])
            tell(random.choice(WORKERS), events.ObjectSkipped(pipeline=pipeline, object_uri=uri, reason=reason))
            skipped_early = skipped_early or (reason == "already_processed" and not finishes)

    for number, end in enumerate(attempts, start=1):
        skip()
        attempt_id, worker = f"{pipeline}-{uri}-{number}", random.choice(WORKERS)
        about: dict[str, Any] = {"pipeline": pipeline, "object_uri": uri, "attempt_id": attempt_id}
        tell(worker, events.ObjectStarted(**about, attempt=number))
        if before is not None:
            whose: dict[str, Any] = {"from_worker": before[0], "from_attempt_id": before[1], "reason": "it died"}
            tell(worker, events.ObjectTakenOver(**about, attempt=number, **whose))
            history.over[uri, attempt_id, *before] += 1
        before = (worker, attempt_id) if end in ("killed", "taken over") else None
        last = end
        if end == "finished":
            tell(worker, events.ObjectFinished(**about, rows=1, lines_quarantined=0))
            history.back.update((uri, one, attempt_id) for one in backs)
            backs, finishes = [], finishes + 1
        elif end == "interrupted":
            tell(worker, events.ObjectInterrupted(**about, reason="a stop"))
            backs.append(attempt_id)
        elif end == "taken over":
            event = events.ObjectFailed(**about, outcome="retry", reason="the claim was lost")
            late.append((at + 500.0, worker, event))
        elif end != "killed":
            tell(worker, events.ObjectFailed(**about, outcome=OUTCOMES[end], reason="r"))
            history.failed.update([(uri, attempt_id)] if end == "failed" else [])
    skip()
    history.told += late
    history.back.update((uri, one, None) for one in backs)
    history.finished.update([(pipeline, uri, str(finishes))] if finishes else [])
    history.wrong.update([(pipeline, uri)] if skipped_early else [])
    history.died.update([(pipeline, uri, f"{pipeline}-{uri}-{len(attempts)}")] if last == "killed" else [])


def message_history(history: History, random: Random, message_id: str, attempts: list[str]) -> None:
    at = BEGAN + random.random()
    backs: list[int] = []
    deaths: list[int] = []
    before: str | None = None  # the worker that left the message behind
    late: list[tuple[float, str, Event]] = []  # what an attempt that was taken over says at its own end

    def tell(worker: str, event: Event) -> None:
        nonlocal at
        at += 0.001 + random.random()
        history.told.append((at, worker, event))

    for number, end in enumerate(attempts, start=1):
        where: dict[str, Any] = {"queue": "q", "message_id": message_id, "attempt": number}
        about: dict[str, Any] = {**where, "handler": "h"}
        worker = random.choice(WORKERS)
        if before is not None:
            tell(worker, events.MessageTakenOver(**where, from_worker=before, from_attempt=number - 1, reason=None))
            history.over[message_id, str(number), before, str(number - 1)] += 1
        before = worker if end in ("killed", "taken over") else None
        tell(worker, events.MessageStarted(**about, enqueued_at=BEGAN))
        worked: dict[str, Any] = {**about, "enqueued_at": BEGAN, "duration_seconds": 1.0}
        if end == "finished":
            tell(worker, events.MessageFinished(**worked))
            for one in backs:
                history.back[message_id, str(one), str(number)] += 1
            for one in deaths:
                history.dead[message_id, str(one), str(number)] += 1
            backs, deaths = [], []
        elif end == "interrupted":
            tell(worker, events.MessageInterrupted(**about, duration_seconds=1.0))
            backs.append(number)
        elif end == "settled":  # of which nothing but the settlement is told
            tell(worker, events.DeliverySettled(**where, settlement=Release()))
        elif end == "failed":
            about_error: dict[str, Any] = {"error_type": "E", "error": "e", "traceback": None, "exception": None}
            tell(worker, events.MessageFailed(**worked, **about_error, final=True, delay_seconds=None))
            tell(worker, events.DeliverySettled(**where, settlement=DeadLetter(reason="failed")))
            deaths.append(number)
        elif end == "taken over":
            late.append((at + 50.0, worker, events.MessageFinished(**worked)))
    last = attempts[-1] if attempts else ""
    if last == "killed" and random.random() < 0.3:  # another worker finds it done already
        tell("w4", events.DeliverySettled(queue="q", message_id=message_id, attempt=99, settlement=Ack()))
        last = "done"
    history.died_messages.update([(message_id, str(len(attempts)))] if last == "killed" else [])
    history.told += late
    first_late = min((number for number, end in enumerate(attempts, start=1) if end == "taken over"), default=None)
    history.back.update((message_id, str(one), None if first_late is None else str(first_late)) for one in backs)
    history.dead.update((message_id, str(one), None if first_late is None else str(first_late)) for one in deaths)


def logs_of(history: History) -> dict[str, list[str]]:
    """Return each worker's own log of it."""
    streams = {worker: io.StringIO() for worker in WORKERS}
    clock = FakeClock(BEGAN)
    logs = {
        worker: configure_logs(LogSettings(worker=worker, format="json", level="debug"), stream, clock=clock)
        for worker, stream in streams.items()
    }
    for at, worker, event in sorted(history.told, key=lambda one: one[0]):
        clock.advance(at - clock.now())
        logs[worker](event)
    return {worker: stream.getvalue().splitlines() for worker, stream in streams.items()}


def rotated(logs: dict[str, list[str]], random: Random) -> Iterator[list[str]]:
    """Each log as two files, which come in any order."""
    for lines in logs.values():
        cut = random.randint(0, len(lines))
        yield lines[:cut]
        yield lines[cut:]


def wrapped(lines: list[str], how: str) -> list[str]:
    match how:
        case "cloudwatch":
            return [f"2026-11-22T07:53:31.000Z {line}" for line in lines]
        case "kubectl":
            return [f"[pod/worker-0/worker] {line}" for line in lines]
        case "docker":  # which cuts at 16 KiB; here sooner
            parts = [(line[:100], line[100:] + "\n") for line in lines]
            return [
                json.dumps({"log": part, "stream": "stderr", "time": "2026-11-22T07:53:31.1Z"})
                for both in parts
                for part in both
            ]
        case "containerd":
            return [
                f"2026-11-22T07:53:31.1Z stderr {mark} {part}"
                for line in lines
                for mark, part in (("P", line[:100]), ("F", line[100:]))
            ]
        case "journald":
            return [json.dumps({"MESSAGE": line, "__REALTIME_TIMESTAMP": "1", "_PID": "7"}) for line in lines]
        case "journald, not plain":
            return [json.dumps({"MESSAGE": list(line.encode()), "PRIORITY": "6"}) for line in lines]
        case "firehose":
            return [
                json.dumps({"messageType": "DATA_MESSAGE", "logEvents": [{"id": "1", "message": one}]}) for one in lines
            ]
        case "twice":
            return [json.dumps({"message": json.dumps({"log": line})}) for line in lines]
        case _:
            return lines


NOISE = (
    "a line of another program",
    "{not json",
    '{"event": "user.login", "ts": "2026-11-22T07:53:31.000000Z"}',
    '{"event": "object.started", "ts": "yesterday", "object": "o"}',
    '{"event": "object.started", "ts": "2026-11-22T07:53:31.000000Z", "object": ["o"], "attempt_id": "a"}',
    "[" * 5_000,
    '{"a":' * 5_000,
    base64.b64encode(b"{").decode(),
)
WRAPPINGS = (
    "plain",
    "cloudwatch",
    "kubectl",
    "docker",
    "containerd",
    "journald",
    "journald, not plain",
    "firehose",
    "twice",
)


def asked(files: list[list[str]]) -> tuple[Diagnoses, int]:
    """Return the findings, and the number of ignored lines."""
    diagnoser, others = Diagnoser(io.StringIO()), 0
    for lines in files:
        unwrapping = Unwrapping()
        for text in lines:
            for line in unwrapping.lines(text.encode() + b"\n"):
                if line is None:
                    others += 1
                else:
                    diagnoser.take(line)
    return diagnoser.diagnoses(), others


def attempt_of(one: Found) -> str | None:
    return one.attempt_id or (None if one.attempt is None else str(one.attempt))


def later_of(one: Found) -> str | None:
    return None if one.later is None else one.later.attempt_id or str(one.later.attempt)


@settings(max_examples=150, deadline=None)
@given(
    objects=st.lists(
        st.tuples(st.sampled_from(["p", "q"]), st.sampled_from(STRANGE), st.lists(st.sampled_from(ENDS), max_size=5)),
        max_size=8,
        unique_by=lambda one: one[:2],
    ),
    messages=st.lists(st.lists(st.sampled_from(MESSAGE_ENDS), max_size=5), max_size=5),
    seed=st.integers(0, 2**32),
)
def test_the_histories_built_in_are_found(
    objects: list[tuple[str, str, list[str]]], messages: list[list[str]], seed: int
) -> None:
    history, random = History(), Random(seed)
    for pipeline, uri, attempts in objects:
        object_history(history, random, pipeline, uri, attempts)
    for number, attempts in enumerate(messages):
        message_history(history, random, f"m{number}", attempts)

    noise = 0
    files = []
    for lines in rotated(logs_of(history), random):
        told = wrapped(lines, random.choice(WRAPPINGS))
        for _ in range(random.randrange(3)):
            told.insert(random.choice([0, len(told)]), random.choice(NOISE))
            noise += 1
        files.append(told)
    if random.random() < 0.3:  # everything in one file, one log behind the other
        files = [[line for lines in files for line in lines]]
    random.shuffle(files)
    found, others = asked(files)

    assert others == noise
    assert Counter((one.place, one.name) for one in found.wrongly_processed) == history.wrong
    assert Counter((one.name, one.attempt_id) for one in found.failed if one.kind == "object") == history.failed
    letters = [one for one in found.failed if one.kind == "message"]
    assert Counter((one.name, attempt_of(one), later_of(one)) for one in letters) == history.dead
    assert {one.reason for one in letters} <= {"E: e"}
    assert Counter((one.place, one.name, str(one.times)) for one in found.finished) == history.finished
    assert Counter((one.place, one.name, one.attempt_id) for one in found.died if one.kind == "object") == history.died
    assert Counter((one.name, attempt_of(one)) for one in found.died if one.kind == "message") == history.died_messages
    assert Counter((one.name, attempt_of(one), later_of(one)) for one in found.interrupted) == history.back
    taken_over = [(one.name, attempt_of(one), one.from_worker, str(one.from_attempt)) for one in found.taken_over]
    assert Counter(taken_over) == history.over
    assert found.is_wrong == bool(history.wrong or history.died or history.died_messages)
    for each in (
        found.wrongly_processed,
        found.failed,
        found.finished,
        found.died,
        found.interrupted,
        found.taken_over,
    ):
        assert [one.ts for one in each] == sorted(one.ts for one in each)


@settings(max_examples=150, deadline=None)
@given(
    outages=st.lists(st.tuples(st.floats(1.0, 60.0), st.booleans()), max_size=6),
    workers=st.lists(st.sampled_from(WORKERS), min_size=1, max_size=4, unique=True),
    seed=st.integers(0, 2**32),
)
def test_outages_are_found_once_whoever_noticed_them(
    outages: list[tuple[float, bool]], workers: list[str], seed: int
) -> None:
    """Every worker notices each outage; the last one need not end."""
    history, random, at = History(), Random(seed), BEGAN
    expected: list[tuple[str, str, int, bool]] = []
    for number, (seconds, of_ledger) in enumerate(outages):
        ends = number < len(outages) - 1 or random.random() < 0.5
        for worker in workers:
            began, ended = at + random.random() / 2, at + seconds + random.random() / 2
            if of_ledger:
                history.told.append((began, worker, events.LedgerUnavailable(error="refused")))
                end: Event = events.LedgerAvailable(outage_seconds=ended - began)
            else:
                opened = events.BreakerOpened(queue="q", handler="h", fingerprint="f", failures=10, error="refused")
                history.told.append((began, worker, opened))
                end = events.BreakerClosed(queue="q", handler="h", open_seconds=ended - began, probes=1)
            history.told += [(ended, worker, end)] if ends else []
        expected.append(("ledger", "", len(workers), ends) if of_ledger else ("breaker", "q", len(workers), ends))
        at += seconds + 5.0
    found, _ = asked(list(rotated(logs_of(history), random)))
    finished = [(one.what, one.name, one.workers, True) for one in found.outages if one.ended_ts is not None]
    assert finished == [one for one in expected if one[3]]
    assert {(one.what, one.error) for one in found.outages if one.ended_ts is None} == {
        (what, "refused") for what, _, _, ends in expected if not ends
    }
    assert all(one.error == "refused" for one in found.outages)


def test_an_outage_whose_beginning_another_log_has_is_dated_by_its_end() -> None:
    history = History()
    history.told.append((BEGAN + 30, "w1", events.BreakerClosed(queue="q", handler="h", open_seconds=20.0, probes=3)))
    found, _ = asked(list(logs_of(history).values()))
    [outage] = found.outages
    assert (outage.began_ts, outage.ended_ts) == ("2025-11-24T16:00:10.000000Z", "2025-11-24T16:00:30.000000Z")


@given(raw=st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    assert set(Unwrapping().lines(raw)) <= {None}, "no line of ours is made of them"


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=5) | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["ts", "log", "message"]), inner),
    max_leaves=6,
)


@given(
    document=st.dictionaries(
        st.sampled_from(
            [
                "ts",
                "event",
                "object",
                "objects",
                "attempt_id",
                "worker",
                "log",
                "MESSAGE",
                "logEvents",
                "stream",
                "reason",
            ]
        ),
        JSON | st.sampled_from(["2026-11-22T07:53:31.000000Z", "object.started", "already_processed"]),
    )
)
def test_no_document_breaks_a_diagnosis(document: dict[str, object]) -> None:
    """Whatever stands in a line that has the form of ours."""
    ours = {"ts": "2026-11-22T07:53:31.000000Z", "event": "object.started", "object": "o", "attempt_id": "a"}
    found, _ = asked([[json.dumps(document), json.dumps({**ours, **document})]])
    assert len(found.died) <= 1
