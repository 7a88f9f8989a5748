"""Processes that work on one ledger and die at any of their words to the database; one takes the place of each dead.

A program of its own, which has loaded everything before it forks, so that a death costs milliseconds. Arguments: the
ledger's URL, how many live at once, how many die, a seed, the file of the journal. On stdout a line of JSON for each
end. In the journal stands what the ledger confirmed to a process before it went on.
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
from tests.chaos.ledger_worker import Child, Life

from penstock.ledger import Ledger

MOMENTS_MAX = 600  # two for each word to the database; each process dies at one of them
COMMITS_MAX = 60  # every second process dies at a COMMIT, of which two moments are counted too
OBJECTS_EACH = 10  # so many more are there for each process that was ever started
KEYS_EACH = 3
DEAD_REMEMBERED = 6  # whose claims a new process frees, again if need be; the last ones free those of all

DRIVERS: Sequence[tuple[type, str]] = (  # everything that is said to a database goes through one of these
    (pymysql.connections.Connection, "query"),
    (pymysql.connections.Connection, "commit"),
    (psycopg.Cursor, "execute"),
    (psycopg.Cursor, "executemany"),
    (psycopg.Connection, "commit"),
)
COMMIT = "commit"


class Doom:
    """Kills the process before or after one of its words to the database."""

    def __init__(self, moments: int, *, at_commits: bool) -> None:
        self._left = moments
        self._at_commits = at_commits

    def install(self) -> None:
        for kind, name in DRIVERS:
            if name != COMMIT and self._at_commits:
                continue
            setattr(kind, name, self._wrapped(getattr(kind, name)))

    def _wrapped(self, said: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(said)
        def doomed(*args: Any, **named: Any) -> Any:
            self._moment()
            answer = said(*args, **named)
            self._moment()
            return answer

        return doomed

    def _moment(self) -> None:
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def born(child: Child, doom: Doom) -> int:
    """Fork; answers the child's number. The child never returns."""
    pid = os.fork()
    if pid:
        return pid
    try:
        if not child.last:
            doom.install()
        Life(child).live()
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
    Ledger.open(url).close()  # how its tables are made has tests of its own
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
        living[born(child, Doom(moments, at_commits=at_commits))] = child
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
