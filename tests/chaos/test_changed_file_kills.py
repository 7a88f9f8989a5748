"""Files change between ingests, and the process group is killed at every step of the commits that replace their rows.

At every moment a reader sees all lines of one version of each file and no other. At the end it is the version in the
folder, and the run that made them visible reports how many rows were replaced.

In CI one test goes through the steps that matter here, without Spark: killed at one, started again, killed at the next.
The slow tests take every step, and each alone, also on Spark, in Iceberg and for files that change back.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.chaos.oracle import (
    Place,
    Values,
    abandoned_folders,
    attempts,
    messages,
    query,
    read_quarantine,
    read_table,
    truth,
)
from tests.chaos.runs import DELTA, ICEBERG, IN_PROCESS, KILLED, ON_SPARK, Case, line, write_objects

from penstock.messaging.steps import Step

pytestmark = pytest.mark.timeout(900)

OBJECTS = 12
OPTIONS = ("--max-batch-objects", "6")  # two batches
GREW, CORRECTED, SHRANK, DELETED = 1, 2, 3, 6  # numbers of objects
NO_ROW_LEFT = 7
CHANGED = 4
LINES = 20
ROWS_OF_CHANGED = (LINES + 1) + LINES + 3 + 0  # of the new versions

STORY = (
    Step.ANNOUNCED,
    Step.RECEIVED,
    Step.OBJECTS_REGISTERED,
    Step.ATTEMPT_OPENED,
    Step.PLANNED,
    Step.WRITTEN,
    Step.MANIFESTED,
    Step.RECORDED,
    Step.COMMITTING,
    Step.COMMITTED,
    Step.PUBLISHING,  # of that commit, at the next start
    Step.REWRITTEN,
    Step.ROWS_PUBLISHED,
    Step.QUARANTINE_PUBLISHED,
    Step.SETTLING,
    Step.SETTLED,
)
SHORT_STORY = (Step.WRITTEN, Step.COMMITTING, Step.COMMITTED, Step.REWRITTEN, Step.ROWS_PUBLISHED)
ON_SPARK_TOO = {Step.WRITTEN, Step.COMMITTED, Step.REWRITTEN, Step.ROWS_PUBLISHED}
FIRST_WITH_ROWS_SHOWN = STORY.index(Step.ROWS_PUBLISHED)


@dataclass(slots=True)
class Versions:
    """The contents that each file has had, by its URI. Written by one test."""

    first_lines_may_go: bool = False  # another writer deletes rows of first lines
    by_uri: dict[str, list[Mapping[Place, Values]]] = field(default_factory=lambda: defaultdict(list))
    bad: dict[Place, bytes] = field(default_factory=dict)

    def note(self, folder: Path) -> None:
        """Add the contents of the folder."""
        found: dict[str, dict[Place, Values]] = defaultdict(dict)
        known = truth(folder)
        for (uri, offset), values in known.good.items():
            rows = found[uri]
            if not (self.first_lines_may_go and offset == 0):
                rows[uri, offset] = values
        self.bad |= known.bad
        for uri, _ in known.bad:
            found.setdefault(uri, {})
        for uri, rows in found.items():
            if rows not in self.by_uri[uri]:
                self.by_uri[uri].append(rows)

    def check_meanwhile(self, case: Case) -> Mapping[str, Mapping[Place, Values]]:
        """Check that the table has all rows of one version of each file, or none, and return them by file."""
        rows, quarantined = read_table(case.table).rows, read_quarantine(case.table).rows
        for found in (rows, quarantined):
            twice = [place for place, number in Counter(place for place, _ in found).items() if number > 1]
            assert not twice, f"{len(twice)} lines are in the table twice: {sorted(twice)[:5]}"
        assert all(values["raw"] == self.bad.get(place) for place, values in quarantined)
        seen: dict[str, dict[Place, Values]] = defaultdict(dict)
        for place, values in rows:
            if not (self.first_lines_may_go and place[1] == 0):
                seen[place[0]][place] = values
        for uri, one in seen.items():
            assert one in self.by_uri[uri], f"the rows of {uri} are of no version of it: {one}"
        return seen

    def check_done(self, case: Case) -> None:
        """Check that the table shows the folder, and nothing is left open. A deleted file keeps its rows."""
        seen, now = self.check_meanwhile(case), Versions(first_lines_may_go=self.first_lines_may_go)
        now.note(case.source)
        for uri, (content,) in now.by_uri.items():
            assert seen.get(uri, {}) == content, f"the table does not show the content of {uri}"
        gone = self.by_uri.keys() - now.by_uri.keys()
        assert all(seen.get(uri) in self.by_uri[uri] for uri in gone), "a deleted file has lost its rows"
        assert {place for place, _ in read_quarantine(case.table).rows} == self.bad.keys()
        assert attempts(case.table)["open"] == 0
        assert messages(case.table) == 0
        assert messages(case.table, dead=True) == 0
        assert not abandoned_folders(case.table)


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """A file's content and time, to put it back."""

    path: Path
    content: bytes
    time_ns: int

    @staticmethod
    def of(path: Path) -> "Before":
        return Before(path=path, content=path.read_bytes(), time_ns=path.stat().st_mtime_ns)

    def restore(self) -> None:
        self.path.write_bytes(self.content)
        os.utime(self.path, ns=(self.time_ns, self.time_ns))


def change(folder: Path) -> Sequence[Before]:
    """Change four files, one so that no good line is left, and delete another; return what the four were."""
    paths = {number: folder / f"object-{number:04}.jsonl" for number in (GREW, CORRECTED, SHRANK, NO_ROW_LEFT, DELETED)}
    before = [Before.of(path) for number, path in paths.items() if number != DELETED]
    with paths[GREW].open("ab") as file:
        file.write(line(GREW, LINES) + b"\n")
    lines = paths[CORRECTED].read_bytes().splitlines(keepends=True)
    paths[CORRECTED].write_bytes(b"".join([line(CORRECTED, 0, s="corrected") + b"\n", *lines[1:]]))
    lines = paths[SHRANK].read_bytes().splitlines(keepends=True)
    paths[SHRANK].write_bytes(b"".join(lines[:3]))
    paths[NO_ROW_LEFT].write_bytes(b"--- nothing here is JSON ---\n")
    paths[DELETED].unlink()
    return before


def replaced(case: Case) -> tuple[int, int]:
    """Return the totals of the ledger, and check that `penstock status` has the same."""
    found = case.command("status", "--table", case.address, "--json").report
    total = int(found["replaced_objects"]), int(found["replaced_rows"])
    sql = "SELECT count(replaces), coalesce(sum(replaced_rows), 0) FROM batches WHERE replaces IS NOT NULL"
    ((batches, rows),) = query(case.table, sql)
    assert total[1] == rows
    assert batches <= total[0]
    return total


def test_kills_in_turn_leave_one_version_of_each_file(case: Case) -> None:
    story(case, SHORT_STORY)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", [DELTA, ICEBERG])
def test_kills_at_every_step_in_turn_while_files_change_back(case: Case) -> None:
    versions, before = story(case, STORY)
    for one in before:
        one.restore()
    for step in (step for step in STORY if step is not Step.QUARANTINE_PUBLISHED):  # there are no new bad lines
        case.ingest(*OPTIONS, code=KILLED, kill_at=step.value)
        versions.check_meanwhile(case)
    case.ingest(*OPTIONS)
    versions.check_done(case)
    assert replaced(case) == (2 * CHANGED, CHANGED * LINES + ROWS_OF_CHANGED)


def story(case: Case, steps: Sequence[Step]) -> tuple[Versions, Sequence[Before]]:
    """Load files, change some, kill at every step in turn, and check after each; return what the changed ones were."""
    write_objects(case.source, range(OBJECTS))
    versions = Versions()
    versions.note(case.source)
    case.ingest(*OPTIONS)
    versions.check_done(case)
    before = change(case.source)
    versions.note(case.source)
    for step in steps:
        case.ingest(*OPTIONS, code=KILLED, kill_at=step.value)
        versions.check_meanwhile(case)
    report = case.ingest(*OPTIONS).report
    versions.check_done(case)
    assert (report["objects_dead"], report["replaced_objects"]) == (0, 0), "an earlier run made them visible"
    assert replaced(case) == (CHANGED, CHANGED * LINES)
    return versions, before


def alone() -> list[tuple[Step, str, str]]:
    return [
        (step, module, scheme)
        for step in STORY
        for module, scheme in ((IN_PROCESS, DELTA), (IN_PROCESS, ICEBERG), (ON_SPARK, DELTA))
        if module == IN_PROCESS or step in ON_SPARK_TOO
    ]


@pytest.mark.spark
@pytest.mark.slow
@pytest.mark.parametrize(("step", "module", "scheme"), alone())
def test_the_run_that_shows_replaced_rows_reports_them(tmp_path: Path, step: Step, module: str, scheme: str) -> None:
    with closing(Case(tmp_path, module=module, scheme=scheme)) as case:
        write_objects(case.source, range(OBJECTS))
        versions = Versions()
        versions.note(case.source)
        case.ingest()
        change(case.source)
        versions.note(case.source)
        case.ingest(code=KILLED, kill_at=step.value)
        versions.check_meanwhile(case)
        report = case.ingest().report
        versions.check_done(case)
        said = report["replaced_objects"], report["replaced_rows"]
        shown_before = STORY.index(step) >= FIRST_WITH_ROWS_SHOWN
        assert said == ((0, 0) if shown_before else (CHANGED, CHANGED * LINES))
        assert replaced(case) == (CHANGED, CHANGED * LINES)
