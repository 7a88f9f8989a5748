"""A queue with a DLQ and a final DLQ, a running worker, replayers that are killed, and a record of arrivals.

The handlers write the record into a database of the test. The content of a queue is read from the broker's store with
bare clients. So the oracle shares no code with the product.
"""

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from tests.integration.fleet import Fleet, let_pass, wait_for
from tests.services.forked_process import ForkedPopen

from penstock.messaging.broker import Broker
from penstock.messaging.death import Death, with_death
from penstock.messaging.message import Outgoing

REPLAYS_MAX = 3
ALWAYS = 99  # more failures than there are replays
DEATH_SECONDS = 120.0  # a replayer reaches the step that kills it within this time
FEED_SECONDS = 5.0  # after this time, it gets more dead letters to reach the step
END_SECONDS = 240.0
LOOK_SECONDS = 0.2
MOMENT_SECONDS = 0.8  # a replayer is killed at random within this time after its start
QUEUES = ("jobs", "once")
DLQS = tuple(f"{queue}-dlq" for queue in QUEUES)
FINAL_DLQS = tuple(f"{queue}-dead" for queue in QUEUES)
STEPS = ("received", "replay_intended", "replay_sent", "replay_marked", "settling", "settled")
AT_RANDOM = "random"

APP = '''
"""Handlers that record each message for the test."""

import os
import sqlite3
from contextlib import closing

from penstock import App, Queue

app = App.from_config()


def note(statement, *values):
    with closing(sqlite3.connect(os.environ["BOOK"], timeout=60)) as book, book:
        book.execute(statement, values)


@app.handler(Queue("jobs", dict), max_attempts=1, breaker_failures=0)
def jobs(body, ctx):
    attributes = ctx.message.attributes
    count, replay = attributes.get("sqs-dlq-replay-nb"), attributes.get("penstock-replay-id")
    sent_at = ctx.message.enqueued_at
    note("INSERT OR IGNORE INTO arrivals VALUES (?, ?, ?, ?, ?)", ctx.message.id, body["id"], count, replay, sent_at)
    if int(count) <= body["lives"]:
        raise RuntimeError("not in this life")
    note("INSERT OR IGNORE INTO effects VALUES (?)", body["id"])


@app.handler(Queue("once", dict), max_attempts=1, breaker_failures=0, idempotency=lambda body: body["id"])
def once(body, ctx):
    note("INSERT INTO effects_once VALUES (?)", body["id"])
'''
_BOOK = """
PRAGMA journal_mode = WAL;
CREATE TABLE arrivals (message TEXT PRIMARY KEY, id TEXT, count TEXT, replay TEXT, sent_at REAL);
CREATE TABLE effects (id TEXT PRIMARY KEY);
CREATE TABLE effects_once (id TEXT);
"""

Bodies = Callable[[str], Sequence[bytes]]  # of all messages in a queue, hidden ones included; reads without the product


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result. ``doubles``: messages beyond the first of a replay id."""

    kills: int
    dead_letters: int
    replays: int  # replay ids that arrived
    doubles: int
    doubles_of_one: int  # the most of them that one replay id has
    set_aside: int  # messages in the final DLQ
    set_aside_again: int  # beyond those that the doubles explain

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.dead_letters} dead letters, {self.replays} replays: 0 lost, "
            f"{self.doubles} arrived twice (at most {self.doubles_of_one} more of one replay), "
            f"{self.set_aside} messages in the final DLQ, {self.set_aside_again} of them twice"
        )


class ReplayCase:
    """The processes of one test, and the check of their results.

    ``bodies`` reads a queue without the product. ``broker`` is the workers' address, ``aside`` the test's own broker.
    """

    def __init__(
        self,
        folder: Path,
        *,
        bodies: Bodies,
        broker: str | None = None,
        aside: Broker | None = None,
        added: Mapping[str, str] | None = None,
        seed: int = 0,
    ) -> None:
        self.book = folder / "book.db"
        with closing(sqlite3.connect(self.book)) as book:
            book.executescript(_BOOK)
        self._fleet = Fleet(
            folder,
            broker=broker,
            aside=aside,
            added={**(added or {}), "BOOK": str(self.book)},
            app=APP,
            worker_lease=60,  # a lease that ends on a busy machine costs a message its only attempt
            worker_stop_timeout=12,
            dead_letters_max_replays=REPLAYS_MAX,
            dead_letters_replay_base=0.2,
        )
        self._bodies = bodies
        self._knows_no_holders = aside is not None
        self._chance = random.Random(seed)
        self._replayer: subprocess.Popen[bytes] | None = None
        self._failures: dict[str, int] = {}  # lives that each one of `jobs` needs, by its id
        self._once: set[str] = set()
        self._kills = 0
        self._started_at: list[float] = []  # epoch seconds, of each replayer
        self._sent_at = 0.0  # monotonic

    # --- actions

    def begin(self) -> None:
        self._fleet.start().ready()

    def kill(self, step: str) -> None:
        """Send dead letters and kill a replayer, at the first to third occurrence of a step or at a random moment."""
        self._send_dead_letters()
        if step == AT_RANDOM:
            self._start_replayer()
            wait_for(self._has_started, "the replayer has started")
            let_pass(self._chance.uniform(0.0, MOMENT_SECONDS))
        else:
            self._start_replayer(kill_at=f"{step}:{self._chance.randint(1, 3)}")
            wait_for(self._died_at_its_step, f"the replayer has died at {step}", within=DEATH_SECONDS)
        self._kill_replayer()
        self._kills += 1

    def finish(self) -> Result:
        """Run a replayer until nothing is left to do, check all guarantees, and return the figures."""
        self._start_replayer()
        ends_at = time.monotonic() + END_SECONDS
        while left := self._left_for_certain():
            assert time.monotonic() < ends_at, f"this is left after {END_SECONDS:.0f} s: {left}"
            let_pass(LOOK_SECONDS)
        self._kill_replayer()
        return self._check_and_count()

    def close(self) -> None:
        self._kill_replayer()
        self._fleet.close()

    # --- processes

    def _send_dead_letters(self) -> None:
        """Send one dead letter of each kind: it succeeds on the first, second or last replay, or never."""
        self._sent_at = time.monotonic()
        number = len(self._failures)
        lives = (0, 1, REPLAYS_MAX - 1, ALWAYS)
        jobs = {f"{number + n}": each for n, each in enumerate(lives)}
        once = f"once-{number}"
        self._failures |= jobs
        self._once.add(once)
        self._fleet.broker.send("jobs-dlq", [_dead_letter("jobs", id, lives=each) for id, each in jobs.items()])
        self._fleet.broker.send("once-dlq", [_dead_letter("once", once)])

    def _start_replayer(self, *, kill_at: str | None = None) -> None:
        environment = {
            **self._fleet.environment,
            # SQS knows no holders: messages of a killed replayer become visible when its lease ends. The other brokers
            # detect a dead process on this host.
            "PENSTOCK_WORKER_LEASE": "10" if self._knows_no_holders else "30",
            **({"PENSTOCK_KILL_AT": kill_at} if kill_at else {}),
        }
        self._started_at.append(time.time())
        with self._log.open("wb") as log:
            self._replayer = ForkedPopen(
                [sys.executable, "-m", "penstock", "worker", "fleet_app:app", "--replay", "--jobs", "only"],
                cwd=self._fleet.folder,
                env=environment,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # dying at a step kills the process group
            )

    @property
    def _log(self) -> Path:
        return self._fleet.folder / "replayer.log"

    def _has_started(self) -> bool:
        assert self._replayer is not None
        assert self._replayer.poll() is None, self._log.read_text()[-4000:]
        return '"worker.started"' in self._log.read_text()

    def _died_at_its_step(self) -> bool:
        """Return True if the replayer has died at its step. If it may have run out of dead letters, send more."""
        if self._has_died():
            return True
        if time.monotonic() - self._sent_at > FEED_SECONDS:
            self._send_dead_letters()
        return False

    def _has_died(self) -> bool:
        assert self._replayer is not None
        code = self._replayer.poll()
        assert code in (None, -signal.SIGKILL), self._log.read_text()[-4000:]
        return code is not None

    def _kill_replayer(self) -> None:
        if self._replayer is not None and self._replayer.poll() is None:
            os.killpg(self._replayer.pid, signal.SIGKILL)
            self._replayer.wait(60)

    # --- the oracle

    def _left_for_certain(self) -> Mapping[str, object]:
        """Return the remaining work; empty only if no message moved past the readings.

        Queues are read one after the other, so a message that dies meanwhile is seen in neither. It cannot escape two
        passes in a row without a new arrival.
        """
        before = self._query("SELECT count(*) FROM arrivals")
        left = self._left() or self._left()
        after = self._query("SELECT count(*) FROM arrivals")
        return left or ({} if before == after else {"arrivals meanwhile": after})

    def _left(self) -> Mapping[str, object]:
        waiting = {queue: len(self._bodies(queue)) for queue in (*DLQS, *QUEUES)}
        for_people = {id for id, lives in self._failures.items() if lives == ALWAYS}
        done = set(self._query("SELECT id FROM effects UNION ALL SELECT id FROM effects_once"))
        set_aside = {_id(body) for body in self._bodies("jobs-dead")}
        left: Mapping[str, object] = {
            **waiting,
            "without an effect": sorted((self._failures.keys() - for_people | self._once) - done),
            "not in the final DLQ": sorted(for_people - set_aside),
        }
        return {name: value for name, value in left.items() if value}

    def _check_and_count(self) -> Result:
        self._check_effects()
        self._check_senders()
        sent = self._replays()
        doubles = {id: sum(times - 1 for times in of_one.values()) for id, of_one in sent.items()}
        set_aside = Counter(_id(body) for body in self._bodies("jobs-dead"))
        assert self._bodies("once-dead") == []
        for id, lives in self._failures.items():
            if lives != ALWAYS:
                assert set_aside[id] <= doubles[id], (
                    f"message {id}, which succeeds in life {lives}, is in the final DLQ"
                )
                continue
            assert len(sent[id]) >= REPLAYS_MAX, f"message {id} was replayed {len(sent[id])} times"
            assert set_aside[id] >= 1 + doubles[id], (
                f"message {id} is lost: {set_aside[id]} in the final DLQ, {doubles[id]} doubles"
            )
        again = sum(max(set_aside[id] - 1 - doubles[id], 0) for id, lives in self._failures.items() if lives == ALWAYS)
        counts = [times for of_one in sent.values() for times in of_one.values()]
        return Result(
            kills=self._kills,
            dead_letters=len(self._failures) + len(self._once),
            replays=len(counts),
            doubles=sum(doubles.values()),
            doubles_of_one=max(counts) - 1,
            set_aside=set_aside.total(),
            set_aside_again=again,
        )

    def _check_effects(self) -> None:
        works = {id for id, lives in self._failures.items() if lives != ALWAYS}
        assert set(self._query("SELECT id FROM effects")) == works
        assert Counter(self._query("SELECT id FROM effects_once")) == Counter(self._once), "not once each"

    def _check_senders(self) -> None:
        """Check that no replayer sent one replay twice, so each duplicate follows the death of a replayer."""
        senders: dict[str, list[int]] = {}
        with closing(sqlite3.connect(self.book, timeout=60)) as book:
            for replay, sent_at in book.execute("SELECT replay, sent_at FROM arrivals"):
                senders.setdefault(replay, []).append(bisect(self._started_at, sent_at))
        twice = [replay for replay, numbers in senders.items() if len(set(numbers)) < len(numbers)]
        assert twice == [], f"{len(twice)} replays were sent twice by one replayer"

    def _replays(self) -> Mapping[str, Counter[str]]:
        """Count the messages of each replay, by the dead letter's id in its body and the replay's id."""
        found: dict[str, Counter[str]] = {id: Counter() for id in self._failures}
        with closing(sqlite3.connect(self.book, timeout=60)) as book:
            for id, replay in book.execute("SELECT id, replay FROM arrivals"):
                found[id][replay] += 1
        return found

    def _query(self, statement: str) -> list[str]:
        with closing(sqlite3.connect(self.book, timeout=60)) as book:
            return [str(value) for (value,) in book.execute(statement)]


def _dead_letter(queue: str, id: str, *, lives: int = 0) -> Outgoing:
    death = Death(
        reason="it failed", attempts=1, last_failed_at=1.0, worker="w", queue=queue, message_id=id, enqueued_at=1.0
    )
    body = json.dumps({"id": id, "lives": lives}).encode()
    return Outgoing(body=body, attributes=with_death({"tenant": "a"}, death))


def _id(body: bytes) -> str:
    return str(json.loads(body)["id"])
