"""Supervise processes that work on one ledger and are killed at random requests to the database; replace each one.

A separate program that imports everything before it forks, so that a death costs milliseconds. Arguments: the ledger's
URL, the number of concurrent processes, the number of deaths, a seed, the journal's path. It prints a JSON line for
each process that ends. The journal has what the ledger confirmed to a process before the process continued.
"""

import json
import os
import random
import signal
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any

import psycopg
import pymysql.connections
from tests.chaos.ledger_worker import Child, LedgerWorker

from penstock.ledger import Ledger

MOMENTS_MAX = 600  # two for each request to the database; each process dies at one of them
COMMITS_MAX = 60  # every second process dies at a COMMIT, with two moments each
OBJECTS_EACH = 10  # objects added with each process that starts
KEYS_EACH = 3
DEAD_REMEMBERED = 6  # a new process frees the claims of this many dead ones, again if necessary; the last ones of all

DRIVERS: Sequence[tuple[type, str]] = (  # every request to a database goes through one of these
    (pymysql.connections.Connection, "query"),
    (pymysql.connections.Connection, "commit"),
    (psycopg.Cursor, "execute"),
    (psycopg.Cursor, "executemany"),
    (psycopg.Connection, "commit"),
)
COMMIT = "commit"


class KillAtRequest:
    """Kill the process before or after one of its requests to the database."""

    def __init__(self, moments: int, *, at_commits: bool) -> None:
        self._left = moments
        self._at_commits = at_commits

    def install(self) -> None:
        for kind, name in DRIVERS:
            if name != COMMIT and self._at_commits:
                continue
            setattr(kind, name, self._wrapped(getattr(kind, name)))

    def _wrapped(self, request: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(request)
        def counted(*args: Any, **named: Any) -> Any:
            self._moment()
            answer = request(*args, **named)
            self._moment()
            return answer

        return counted

    def _moment(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def fork_worker(child: Child, kill: KillAtRequest) -> int:
    """Fork and return the child's process id. The child never returns."""
    pid = os.fork()
    if pid:
        return pid
    try:
        if not child.last:
            kill.install()
        LedgerWorker(child).run()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    url, processes, deaths, seed, journal = (
        sys.argv[1],
        int(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
        sys.argv[5],
    )
    chance = random.Random(seed)
    written = os.open(Path(journal), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    Ledger.open(url).close()  # create the tables first: other tests cover the migrations
    living: dict[int, Child] = {}
    dead: list[str] = []
    for number in range(1, deaths + processes + 1):
        if len(living) == processes:
            _await(living, dead)
        last = number > deaths
        if last and number == deaths + 1:  # the last ones begin when all the others are dead
            while living:
                _await(living, dead)
        child = Child(
            url=url,
            name=f"w{number}",
            seed=chance.getrandbits(32),
            objects=OBJECTS_EACH * min(number, deaths),
            keys=KEYS_EACH * min(number, deaths),
            dead=tuple(dead if last else dead[-DEAD_REMEMBERED:]),
            journal=written,
            last=last,
        )
        at_commits = chance.random() < 0.5
        moments = chance.randint(1, COMMITS_MAX if at_commits else MOMENTS_MAX)
        living[fork_worker(child, KillAtRequest(moments, at_commits=at_commits))] = child
    while living:
        _await(living, dead)


def _await(living: dict[int, Child], dead: list[str]) -> None:
    pid, status = os.wait()
    child = living.pop(pid)
    ended: Mapping[str, object] = {"name": child.name, "code": os.waitstatus_to_exitcode(status)}
    if ended["code"] == -signal.SIGKILL:
        dead.append(child.name)
    print(json.dumps(ended), flush=True)  # noqa: T201 # the test reads it


if __name__ == "__main__":
    main()
