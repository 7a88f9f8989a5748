"""A queue with two tiers of dead letters, a worker that lives, replayers that die, and a book of what arrived.

The book is a database of the test's own, in which the handlers write; what lies in a queue is read from the broker's
own store with bare clients. So the oracle shares no code with what it judges.
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
ALWAYS = 99  # so many lives are not enough
DEATH_SECONDS = 120.0  # within which a replayer comes to the step that kills it
FEED_SECONDS = 5.0  # after which it is given more letters to come to it
END_SECONDS = 240.0
LOOK_SECONDS = 0.2
MOMENT_SECONDS = 0.8  # in which a replayer is killed at random, from its start on
QUEUES = ("jobs", "once")
FIRST_TIERS = tuple(f"{queue}-dlq" for queue in QUEUES)
SECOND_TIERS = tuple(f"{queue}-dead" for queue in QUEUES)
STEPS = ("received", "replay_intended", "replay_sent", "replay_marked", "settling", "settled")
AT_RANDOM = "random"

APP = '''
"""Handlers that write into the test's book what comes to them."""

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

Bodies = Callable[[str], Sequence[bytes]]  # of all messages in a queue, hidden ones too: read past the product


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result. ``doubles``: messages beyond the first of a replay id."""

    kills: int
    letters: int
    replays: int  # replay ids that arrived
    doubles: int
    doubles_of_one: int  # the most of them that one replay id has
    set_aside: int  # letters in the second tier
    set_aside_again: int  # beyond those that doubles account for

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.letters} letters, {self.replays} replays: 0 lost, {self.doubles} arrived twice "
            f"(at most {self.doubles_of_one} more of one replay), {self.set_aside} letters in the second tier, "
            f"{self.set_aside_again} of them there twice"
        )


class ReplayCase:
    """``bodies`` reads a queue past the product; ``broker`` is the workers' address, ``aside`` the test's own way."""

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
            # SQS knows no holders: what a killed process held comes back when its lease ends. Elsewhere its host has
            # proof of its death, and no lease of a living one needs to end on a busy machine.
            worker_lease=3 if aside is not None else 30,
            worker_stop_timeout=12,
            dead_letters_max_replays=REPLAYS_MAX,
            dead_letters_replay_base=0.2,
        )
        self._bodies = bodies
        self._chance = random.Random(seed)
        self._replayer: subprocess.Popen[bytes] | None = None
        self._letters: dict[str, int] = {}  # lives that each one of `jobs` needs, by its id
        self._once: set[str] = set()
        self._kills = 0
        self._starts: list[float] = []  # epoch seconds, of each replayer
        self._fed_at = 0.0  # monotonic

    # --- what happens

    def begin(self) -> None:
        self._fleet.start().ready()

    def kill(self, step: str) -> None:
        """Dead letters, and a replayer killed at a step's first, second or third time, or at a random moment."""
        self._add_letters()
        if step == AT_RANDOM:
            self._start()
            wait_for(self._started, "the replayer has started")
            let_pass(self._chance.uniform(0.0, MOMENT_SECONDS))
        else:
            self._start(kill_at=f"{step}:{self._chance.randint(1, 3)}")
            wait_for(self._comes_to_its_step, f"the replayer has died at {step}", within=DEATH_SECONDS)
        self._end()
        self._kills += 1

    def finish(self) -> Verdict:
        """A replayer that lives until nothing is left to do; then all that is promised is checked."""
        self._start()
        ends_at = time.monotonic() + END_SECONDS
        while left := self._surely_left():
            assert time.monotonic() < ends_at, f"this is left after {END_SECONDS:.0f} s: {left}"
            let_pass(LOOK_SECONDS)
        self._end()
        return self._judge()

    def close(self) -> None:
        self._end()
        self._fleet.close()

    # --- how

    def _add_letters(self) -> None:
        """Of each kind one: it works at once, in the second life, in the last that is given to it, and in none."""
        self._fed_at = time.monotonic()
        number = len(self._letters)
        lives = (0, 1, REPLAYS_MAX - 1, ALWAYS)
        jobs = {f"{number + n}": each for n, each in enumerate(lives)}
        once = f"once-{number}"
        self._letters |= jobs
        self._once.add(once)
        self._fleet.broker.send("jobs-dlq", [_letter("jobs", id, lives=each) for id, each in jobs.items()])
        self._fleet.broker.send("once-dlq", [_letter("once", once)])

    def _start(self, *, kill_at: str | None = None) -> None:
        environment = {**self._fleet.environment, **({"PENSTOCK_KILL_AT": kill_at} if kill_at else {})}
        self._starts.append(time.time())
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

    def _started(self) -> bool:
        assert self._replayer is not None
        assert self._replayer.poll() is None, self._log.read_text()[-4000:]
        return '"worker.started"' in self._log.read_text()

    def _comes_to_its_step(self) -> bool:
        """Whether it has. What it was given may be done before: then there is more for it."""
        if self._ended():
            return True
        if time.monotonic() - self._fed_at > FEED_SECONDS:
            self._add_letters()
        return False

    def _ended(self) -> bool:
        assert self._replayer is not None
        code = self._replayer.poll()
        assert code in (None, -signal.SIGKILL), self._log.read_text()[-4000:]
        return code is not None

    def _end(self) -> None:
        if self._replayer is not None and self._replayer.poll() is None:
            os.killpg(self._replayer.pid, signal.SIGKILL)
            self._replayer.wait(60)

    # --- the oracle

    def _surely_left(self) -> Mapping[str, object]:
        """Return the remaining work; empty only if no message moved past the readings.

        Queues are read one after the other, so a message that dies meanwhile is seen in neither. It cannot escape two
        passes in a row without a new arrival.
        """
        before = self._asked("SELECT count(*) FROM arrivals")
        left = self._left() or self._left()
        after = self._asked("SELECT count(*) FROM arrivals")
        return left or ({} if before == after else {"arrivals meanwhile": after})

    def _left(self) -> Mapping[str, object]:
        waiting = {queue: len(self._bodies(queue)) for queue in (*FIRST_TIERS, *QUEUES)}
        for_people = {id for id, lives in self._letters.items() if lives == ALWAYS}
        done = set(self._asked("SELECT id FROM effects UNION ALL SELECT id FROM effects_once"))
        told = {_id(body) for body in self._bodies("jobs-dead")}
        left: Mapping[str, object] = {
            **waiting,
            "without an effect": sorted((self._letters.keys() - for_people | self._once) - done),
            "not in the second tier": sorted(for_people - told),
        }
        return {what: value for what, value in left.items() if value}

    def _judge(self) -> Verdict:
        self._check_effects()
        self._check_senders()
        sent = self._replays()
        doubles = {id: sum(times - 1 for times in of_one.values()) for id, of_one in sent.items()}
        aside = Counter(_id(body) for body in self._bodies("jobs-dead"))
        assert self._bodies("once-dead") == []
        for id, lives in self._letters.items():
            if lives != ALWAYS:
                assert aside[id] <= doubles[id], f"letter {id}, which works in life {lives}, is in the second tier"
                continue
            assert len(sent[id]) >= REPLAYS_MAX, f"letter {id} came back {len(sent[id])} times"
            assert aside[id] >= 1 + doubles[id], f"letter {id} is lost: {aside[id]} letters, {doubles[id]} doubles"
        again = sum(max(aside[id] - 1 - doubles[id], 0) for id, lives in self._letters.items() if lives == ALWAYS)
        counts = [times for of_one in sent.values() for times in of_one.values()]
        return Verdict(
            kills=self._kills,
            letters=len(self._letters) + len(self._once),
            replays=len(counts),
            doubles=sum(doubles.values()),
            doubles_of_one=max(counts) - 1,
            set_aside=aside.total(),
            set_aside_again=again,
        )

    def _check_effects(self) -> None:
        works = {id for id, lives in self._letters.items() if lives != ALWAYS}
        assert set(self._asked("SELECT id FROM effects")) == works
        assert Counter(self._asked("SELECT id FROM effects_once")) == Counter(self._once), "not once each"

    def _check_senders(self) -> None:
        """A replayer sends a replay once in its life. So each one that arrives again had its death before it."""
        senders: dict[str, list[int]] = {}
        with closing(sqlite3.connect(self.book, timeout=60)) as book:
            for replay, sent_at in book.execute("SELECT replay, sent_at FROM arrivals"):
                senders.setdefault(replay, []).append(bisect(self._starts, sent_at))
        twice = [replay for replay, numbers in senders.items() if len(set(numbers)) < len(numbers)]
        assert twice == [], f"{len(twice)} replays were sent twice by one replayer"

    def _replays(self) -> Mapping[str, Counter[str]]:
        """Count the messages of each replay, by the dead letter's id in its body and the replay's id."""
        found: dict[str, Counter[str]] = {id: Counter() for id in self._letters}
        with closing(sqlite3.connect(self.book, timeout=60)) as book:
            for id, replay in book.execute("SELECT id, replay FROM arrivals"):
                found[id][replay] += 1
        return found

    def _asked(self, question: str) -> list[str]:
        with closing(sqlite3.connect(self.book, timeout=60)) as book:
            return [str(value) for (value,) in book.execute(question)]


def _letter(queue: str, id: str, *, lives: int = 0) -> Outgoing:
    death = Death(
        reason="it failed", attempts=1, last_failed_at=1.0, worker="w", queue=queue, message_id=id, enqueued_at=1.0
    )
    body = json.dumps({"id": id, "lives": lives}).encode()
    return Outgoing(body=body, attributes=with_death({"tenant": "a"}, death))


def _id(body: bytes) -> str:
    return str(json.loads(body)["id"])
