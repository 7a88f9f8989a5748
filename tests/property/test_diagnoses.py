"""Diagnoses of random histories, from logs in any order and wrapping: each finds exactly the generated history.

The oracle is the construction: while a history is generated, attempt by attempt, the expected findings are recorded.
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

Findings = Counter[tuple[str | None, ...]]


@dataclass
class History:
    """Events with their times and workers, and the findings expected from them."""

    events: list[tuple[float, str, Event]] = field(default_factory=list)
    wrong: Findings = field(default_factory=Counter)
    failed: Findings = field(default_factory=Counter)
    finished: Findings = field(default_factory=Counter)
    died: Findings = field(default_factory=Counter)
    back: Findings = field(default_factory=Counter)
    dead: Findings = field(default_factory=Counter)  # messages, as in the next field
    died_messages: Findings = field(default_factory=Counter)
    # Takeovers: object or message, attempt, previous worker and attempt.
    over: Findings = field(default_factory=Counter)


def object_history(history: History, random: Random, pipeline: str, uri: str, attempts: list[str]) -> None:
    """Generate one object of one pipeline, attempt after attempt, with skips between them."""
    at = BEGAN + random.random()
    backs: list[str] = []  # released attempts that no later attempt finished yet
    finishes, skipped_early, last = 0, False, ""
    late: list[tuple[float, str, Event]] = []  # events of an attempt after it was taken over
    before: tuple[str, str] | None = None  # worker and attempt that left the object unfinished

    def emit(worker: str, event: Event) -> float:
        nonlocal at
        at += 6.0 + random.random()  # more than the clocks of two hosts may differ
        history.events.append((at, worker, event))
        return at

    def skip() -> None:
        nonlocal skipped_early
        if random.random() < 0.3:
            reason = random.choice(["already_processed", "already_processed", "in_progress"])
            emit(random.choice(WORKERS), events.ObjectSkipped(pipeline=pipeline, object_uri=uri, reason=reason))
            skipped_early = skipped_early or (reason == "already_processed" and not finishes)

    for number, end in enumerate(attempts, start=1):
        skip()
        attempt_id, worker = f"{pipeline}-{uri}-{number}", random.choice(WORKERS)
        about: dict[str, Any] = {"pipeline": pipeline, "object_uri": uri, "attempt_id": attempt_id}
        emit(worker, events.ObjectStarted(**about, attempt=number))
        if before is not None:
            taken_from: dict[str, Any] = {"from_worker": before[0], "from_attempt_id": before[1], "reason": "it died"}
            emit(worker, events.ObjectTakenOver(**about, attempt=number, **taken_from))
            history.over[uri, attempt_id, *before] += 1
        before = (worker, attempt_id) if end in ("killed", "taken over") else None
        last = end
        if end == "finished":
            emit(worker, events.ObjectFinished(**about, rows=1, lines_quarantined=0))
            history.back.update((uri, one, attempt_id) for one in backs)
            backs, finishes = [], finishes + 1
        elif end == "interrupted":
            emit(worker, events.ObjectInterrupted(**about, reason="a stop"))
            backs.append(attempt_id)
        elif end == "taken over":
            event = events.ObjectFailed(**about, outcome="retry", reason="the claim was lost")
            late.append((at + 500.0, worker, event))
        elif end != "killed":
            emit(worker, events.ObjectFailed(**about, outcome=OUTCOMES[end], reason="r"))
            history.failed.update([(uri, attempt_id)] if end == "failed" else [])
    skip()
    history.events += late
    history.back.update((uri, one, None) for one in backs)
    history.finished.update([(pipeline, uri, str(finishes))] if finishes else [])
    history.wrong.update([(pipeline, uri)] if skipped_early else [])
    history.died.update([(pipeline, uri, f"{pipeline}-{uri}-{len(attempts)}")] if last == "killed" else [])


def message_history(history: History, random: Random, message_id: str, attempts: list[str]) -> None:
    at = BEGAN + random.random()
    backs: list[int] = []
    deaths: list[int] = []
    before: str | None = None  # the worker that left the message unfinished
    late: list[tuple[float, str, Event]] = []  # events of an attempt after it was taken over

    def emit(worker: str, event: Event) -> None:
        nonlocal at
        at += 0.001 + random.random()
        history.events.append((at, worker, event))

    for number, end in enumerate(attempts, start=1):
        where: dict[str, Any] = {"queue": "q", "message_id": message_id, "attempt": number}
        about: dict[str, Any] = {**where, "handler": "h"}
        worker = random.choice(WORKERS)
        if before is not None:
            emit(worker, events.MessageTakenOver(**where, from_worker=before, from_attempt=number - 1, reason=None))
            history.over[message_id, str(number), before, str(number - 1)] += 1
        before = worker if end in ("killed", "taken over") else None
        emit(worker, events.MessageStarted(**about, enqueued_at=BEGAN))
        worked: dict[str, Any] = {**about, "enqueued_at": BEGAN, "duration_seconds": 1.0}
        if end == "finished":
            emit(worker, events.MessageFinished(**worked))
            for one in backs:
                history.back[message_id, str(one), str(number)] += 1
            for one in deaths:
                history.dead[message_id, str(one), str(number)] += 1
            backs, deaths = [], []
        elif end == "interrupted":
            emit(worker, events.MessageInterrupted(**about, duration_seconds=1.0))
            backs.append(number)
        elif end == "settled":  # only its settlement is logged
            emit(worker, events.DeliverySettled(**where, settlement=Release()))
        elif end == "failed":
            about_error: dict[str, Any] = {"error_type": "E", "error": "e", "traceback": None, "exception": None}
            emit(worker, events.MessageFailed(**worked, **about_error, final=True, delay_seconds=None))
            emit(worker, events.DeliverySettled(**where, settlement=DeadLetter(reason="failed")))
            deaths.append(number)
        elif end == "taken over":
            late.append((at + 50.0, worker, events.MessageFinished(**worked)))
    last = attempts[-1] if attempts else ""
    if last == "killed" and random.random() < 0.3:  # another worker finds it done
        emit("w4", events.DeliveryAcked(queue="q", message_id=message_id, attempt=99, settlement=Ack()))
        last = "done"
    history.died_messages.update([(message_id, str(len(attempts)))] if last == "killed" else [])
    history.events += late
    first_late = min((number for number, end in enumerate(attempts, start=1) if end == "taken over"), default=None)
    history.back.update((message_id, str(one), None if first_late is None else str(first_late)) for one in backs)
    history.dead.update((message_id, str(one), None if first_late is None else str(first_late)) for one in deaths)


def logs_of(history: History) -> dict[str, list[str]]:
    """Return each worker's log of the history."""
    streams = {worker: io.StringIO() for worker in WORKERS}
    clock = FakeClock(BEGAN)
    logs = {
        worker: configure_logs(LogSettings(worker=worker, format="json", level="debug"), stream, clock=clock)
        for worker, stream in streams.items()
    }
    for at, worker, event in sorted(history.events, key=lambda one: one[0]):
        clock.advance(at - clock.now())
        logs[worker](event)
    return {worker: stream.getvalue().splitlines() for worker, stream in streams.items()}


def rotated(logs: dict[str, list[str]], random: Random) -> Iterator[list[str]]:
    """Yield each log as two files."""
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
        case "docker":  # docker cuts at 16 KiB; here sooner
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


def diagnosed(files: list[list[str]]) -> tuple[Diagnoses, int]:
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
def test_diagnoses_find_exactly_the_generated_histories(
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
        text = wrapped(lines, random.choice(WRAPPINGS))
        for _ in range(random.randrange(3)):
            text.insert(random.choice([0, len(text)]), random.choice(NOISE))
            noise += 1
        files.append(text)
    if random.random() < 0.3:  # everything in one file, one log after the other
        files = [[line for lines in files for line in lines]]
    random.shuffle(files)
    found, others = diagnosed(files)

    assert others == noise
    assert Counter((one.place, one.name) for one in found.wrongly_processed) == history.wrong
    assert Counter((one.name, one.attempt_id) for one in found.failed if one.kind == "object") == history.failed
    dead_letters = [one for one in found.failed if one.kind == "message"]
    assert Counter((one.name, attempt_of(one), later_of(one)) for one in dead_letters) == history.dead
    assert {one.reason for one in dead_letters} <= {"E: e"}
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
def test_outages_noticed_by_several_workers_are_found_once(
    outages: list[tuple[float, bool]], workers: list[str], seed: int
) -> None:
    """Every worker notices each outage. The last outage may not end."""
    history, random, at = History(), Random(seed), BEGAN
    expected: list[tuple[str, str, int, bool]] = []
    for number, (seconds, of_ledger) in enumerate(outages):
        ends = number < len(outages) - 1 or random.random() < 0.5
        for worker in workers:
            began, ended = at + random.random() / 2, at + seconds + random.random() / 2
            if of_ledger:
                history.events.append((began, worker, events.LedgerUnavailable(error="refused")))
                end: Event = events.LedgerAvailable(outage_seconds=ended - began)
            else:
                opened = events.BreakerOpened(queue="q", handler="h", fingerprint="f", failures=10, error="refused")
                history.events.append((began, worker, opened))
                end = events.BreakerClosed(queue="q", handler="h", open_seconds=ended - began, probes=1)
            history.events += [(ended, worker, end)] if ends else []
        expected.append(("ledger", "", len(workers), ends) if of_ledger else ("breaker", "q", len(workers), ends))
        at += seconds + 5.0
    found, _ = diagnosed(list(rotated(logs_of(history), random)))
    finished = [(one.what, one.name, one.workers, True) for one in found.outages if one.ended_ts is not None]
    assert finished == [one for one in expected if one[3]]
    assert {(one.what, one.error) for one in found.outages if one.ended_ts is None} == {
        (what, "refused") for what, _, _, ends in expected if not ends
    }
    assert all(one.error == "refused" for one in found.outages)


def test_an_outage_without_its_beginning_is_dated_by_its_end() -> None:
    history = History()
    history.events.append((BEGAN + 30, "w1", events.BreakerClosed(queue="q", handler="h", open_seconds=20.0, probes=3)))
    found, _ = diagnosed(list(logs_of(history).values()))
    [outage] = found.outages
    assert (outage.began_ts, outage.ended_ts) == ("2025-11-24T16:00:10.000000Z", "2025-11-24T16:00:30.000000Z")


@given(raw=st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    assert set(Unwrapping().lines(raw)) <= {None}, "random bytes are never a log line of Penstock"


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
    """A line in Penstock's format may have any values."""
    ours = {"ts": "2026-11-22T07:53:31.000000Z", "event": "object.started", "object": "o", "attempt_id": "a"}
    found, _ = diagnosed([[json.dumps(document), json.dumps({**ours, **document})]])
    assert len(found.died) <= 1
