"""Two ingests and a compaction while files change: at any time one version of each file, and no endless retries."""

import random
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import TimeoutExpired

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import CommitFailedError
from tests.chaos.oracle import attempts, query
from tests.chaos.runs import DELTA, ICEBERG, Case, Running, line
from tests.chaos.test_changed_file_kills import Versions

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_800)]

FILES = 12
ROUNDS = 8
CHANGE_EVERY_SECONDS = 0.15
OPTIONS = ("--max-batch-objects", "3")
CLAIMS_MAX = 6  # of one version: two ingests race for it, and a commit beside another one is repeated


class ChangingFiles:
    """Files whose contents a test replaces, each at once, so that every version is whole."""

    def __init__(self, folder: Path, chance: random.Random, *, first_lines_may_go: bool = False) -> None:
        self._folder = folder
        self._chance = chance
        self.versions = Versions(first_lines_may_go=first_lines_may_go)
        self.changes = 0

    def write(self, number: int) -> None:
        """Write a new version of a file: it grows, is corrected, or gets shorter."""
        self.changes += 1
        lines = self._chance.randint(1, 30)
        content = b"".join(line(number, place, s=f"{place}, change {self.changes}") + b"\n" for place in range(lines))
        new = self._folder / f".new-{number}"
        new.write_bytes(content)
        new.replace(self._folder / f"object-{number:04}.jsonl")
        self.versions.note(self._folder)

    def change_until_ended(self, running: Sequence[Running]) -> None:
        """Change one file after another while any of these processes runs."""
        while any(one.process.poll() is None for one in running):
            self.write(self._chance.randrange(FILES))
            for one in running:
                try:
                    one.process.wait(CHANGE_EVERY_SECONDS / len(running))
                except TimeoutExpired:
                    continue


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scheme", [DELTA, ICEBERG])
def test_two_ingests_and_a_compaction_beside_changing_files(case: Case, seed: int) -> None:
    files = ChangingFiles(case.source, random.Random(seed))
    for number in range(FILES):
        files.write(number)
    case.ingest(*OPTIONS)
    for _ in range(ROUNDS):
        running = [case.start(*OPTIONS), case.start(*OPTIONS), case.begin("admin", "compact", "--table", case.address)]
        files.change_until_ended(running)
        for one in running:
            one.end().expect(0)
        files.versions.check_meanwhile(case)
    case.ingest(*OPTIONS)
    files.versions.check_done(case)
    check_attempts(case, files)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scheme", [DELTA])
def test_two_ingests_and_a_compaction_beside_deletes_of_another_writer(case: Case, seed: int) -> None:
    files = ChangingFiles(case.source, random.Random(seed), first_lines_may_go=True)
    for number in range(FILES):
        files.write(number)
    case.ingest(*OPTIONS)
    deletes = 0
    for _ in range(ROUNDS):
        running = [case.start(*OPTIONS), case.start(*OPTIONS), case.begin("admin", "compact", "--table", case.address)]
        with deleting_first_lines(case.table) as done:
            files.change_until_ended(running)
        deletes += len(done)
        for one in running:
            one.end().expect(0)
        files.versions.check_meanwhile(case)
    case.ingest(*OPTIONS)
    files.versions.check_done(case)
    check_attempts(case, files)
    assert deletes > ROUNDS


@contextmanager
def deleting_first_lines(table: Path) -> Iterator[Sequence[int]]:
    """Delete the rows of first lines again and again, as another program does; yield the versions of its commits."""
    ended = threading.Event()
    done: list[int] = []

    def run() -> None:
        while not ended.wait(0.1):
            found = DeltaTable(str(table))
            try:
                counts = found.delete("s LIKE '0, change%'")
            except CommitFailedError:
                continue  # another commit was first
            if counts["num_deleted_rows"]:
                done.append(found.version())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()


def check_attempts(case: Case, files: ChangingFiles) -> None:
    """Check that no version was claimed again and again."""
    sql = "SELECT o.uri, count(*) FROM object_attempts JOIN objects o USING (pipeline, object_id) GROUP BY object_id"
    claims = [int(count) for _, count in query(case.table, sql)]
    assert max(claims) <= CLAIMS_MAX
    ended = attempts(case.table)
    assert ended["abandoned"] <= ended["committed"] + files.changes, f"{ended} for {files.changes} changes"
    print(f"{files.changes} changes, {len(claims)} versions claimed, {max(claims)} times at most; attempts: {ended}")  # noqa: T201
