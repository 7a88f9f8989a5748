"""`penstock ingest` as users run it: bad objects among good ones, repeated runs, good and bad transforms.

The command runs in the test's process, in the session that all tests share. It has its own process and JVM only if the
test kills it, takes rights from it, or reads everything that it writes to the terminal.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.chaos import transforms
from tests.chaos.oracle import (
    check_done,
    check_meanwhile,
    claims,
    messages,
    objects,
    read_quarantine,
    read_table,
    truth,
)
from tests.chaos.runs import (
    IN_PROCESS,
    JUNK,
    KILLED,
    ON_SPARK,
    SCHEMA,
    SOME_DEAD,
    STOPPED,
    Case,
    Ended,
    environment,
    line,
    write_objects,
)
from tests.permissions import obey_permissions

from penstock.cli.main import main
from penstock.messaging.steps import Step
from penstock.operations.ingest import ingest as ingest_module

MAX_ATTEMPTS = 4


class SharedCase(Case):
    """A case whose ingests run in this process, unless they lose rights, or are killed, which happens before a run."""

    def __init__(
        self, folder: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
    ) -> None:
        super().__init__(folder)
        self._spark = spark
        self._monkeypatch = monkeypatch
        self._capfd = capfd

    def ingest(
        self, *options: str, code: int = 0, before_exec: Callable[[], None] | None = None, **settings: object
    ) -> Ended:
        if before_exec is not None or code == KILLED:
            self.module = IN_PROCESS if code == KILLED else ON_SPARK
            return super().ingest(*options, code=code, before_exec=before_exec, **settings)
        return self._called("ingest", *self.arguments, "--schema", SCHEMA, "--json", *options, **settings).expect(code)

    def _called(self, *arguments: str, **settings: object) -> Ended:
        began_at = time.monotonic()
        with self._monkeypatch.context() as patch:
            patch.chdir(self.folder)
            for name, value in environment(**settings).items():
                patch.setenv(name, value)
            patch.setattr("sys.argv", ["penstock", *arguments])
            patch.setattr(ingest_module, "ingest", partial(ingest_module.ingest, spark=self._spark))
            patch.setattr("penstock.cli.exits.leave_within", lambda *_: None)  # the command must not end this process
            patch.setattr("penstock.cli.main.ignore_handled_signals", lambda: None)  # nor change its signals
            patch.setattr("penstock.cli.main.leave", sys.exit)  # nor end with os._exit
            self._capfd.readouterr()
            with pytest.raises(SystemExit) as end:
                main()
        output = self._capfd.readouterr()
        assert isinstance(end.value.code, int)
        return Ended(code=end.value.code, out=output.out, err=output.err, seconds=time.monotonic() - began_at)


@pytest.fixture
def case(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Iterator[Case]:
    shutil.copy(transforms.__file__, tmp_path / "transforms.py")
    with closing(SharedCase(tmp_path, spark, monkeypatch, capfd)) as made:
        yield made


def test_three_bad_objects_among_500_do_not_affect_the_others(case: Case) -> None:
    paths = write_objects(case.source, range(500), lines=5, junk_every=50)
    truncated, deleted, forbidden = paths[100], paths[201], paths[302]
    truncated.write_bytes(truncated.read_bytes()[:-20])
    forbidden.chmod(0)
    case.ingest(code=KILLED, kill_at=Step.ANNOUNCED.value)
    deleted.unlink()
    whole = truth(case.source, without=[forbidden])

    report = case.ingest(code=SOME_DEAD, before_exec=obey_permissions).report
    check_done(whole, case.table)
    assert whole.objects() == 497
    assert (report["objects_found"], report["objects_processed"], report["objects_dead"]) == (499, 497, 2)
    assert report["rows_written"] == len(whole.good)
    assert report["lines_quarantined"] == len(whole.bad)
    seen = {path: case.show(path) for path in (truncated, deleted, forbidden)}
    assert {path: document["state"] for path, document in seen.items()} == {
        truncated: "dead",
        deleted: "gone",
        forbidden: "dead",
    }
    assert "Permission denied" in seen[forbidden]["reason"]
    assert seen[truncated]["reason"]
    assert seen[deleted]["reason"]
    assert (seen[truncated]["attempts"], seen[forbidden]["attempts"]) == (1, MAX_ATTEMPTS)
    failed = {path.as_uri() for path in seen}
    assert {count for uri, count in claims(case.table).items() if uri not in failed} == {1}
    assert messages(case.table, dead=True) == 2


def test_an_empty_mount_point_marks_no_object_as_deleted(case: Case) -> None:
    write_objects(case.source, range(4))
    case.ingest(code=KILLED, kill_at=Step.ANNOUNCED.value)
    whole = truth(case.source)
    away = case.source.rename(case.folder / "unmounted")
    case.source.mkdir()
    ended = case.ingest(code=STOPPED, objects_retry_base=0.05)
    assert f"the source folder {case.source.resolve()} is empty" in ended.err
    assert {word for word, _, _ in objects(case.table).values()} == {"unprocessed"}
    case.source.rmdir()
    away.rename(case.source)
    assert case.ingest().report["objects_processed"] == 4
    check_done(whole, case.table)


def test_a_second_ingest_adds_nothing_and_a_third_only_new_files(case: Case) -> None:
    paths = write_objects(case.source, range(12))
    first = truth(case.source)
    version = case.ingest().report["table_version"]
    again = case.ingest().report
    assert (again["objects_skipped"], again["objects_processed"], again["rows_written"]) == (12, 0, 0)
    assert again["table_version"] == version
    arguments = ("ingest", str(case.source), str(case.table))
    assert "Nothing new: all 12 objects are in the table already. 0 rows added." in case.command(*arguments).out

    write_objects(case.source, range(12, 15))
    # An empty line first, so that every line of the new version has another place than in the old one.
    paths[1].write_bytes(b"\n" + b"\n".join(line(1, place, note="changed") for place in range(30)))
    whole = truth(case.source).plus(first)
    third = case.ingest("--on-change", "add").report
    check_done(whole, case.table)
    assert (third["replaced_objects"], third["replaced_rows"]) == (0, 0)
    assert (third["objects_skipped"], third["objects_processed"], third["objects_new_versions"]) == (11, 4, 1)
    assert third["rows_written"] == len(whole.good) - len(first.good)


def test_an_object_that_breaks_the_transform_fails_alone(case: Case) -> None:
    paths = write_objects(case.source, range(60))
    culprit = paths[33]
    culprit.write_bytes(b"\n".join([line(33, 0), line(33, 1).replace(b"line 1", b"poison"), line(33, 2)]))
    options = ("--max-batch-objects", "20", "--transform", "transforms:no_number")
    report = case.ingest(*options, code=SOME_DEAD, objects_retry_base=0.05).report
    whole = truth(case.source, without=[culprit])
    assert report["objects_dead"] == 1
    assert report["rows_written"] == len(whole.good)
    check_done(whole, case.table)
    state = objects(case.table)
    assert {uri for uri, (word, _, _) in state.items() if word == "dead"} == {culprit.as_uri()}
    assert "poison" in str(state[culprit.as_uri()][2])
    assert max(claims(case.table).values()) <= MAX_ATTEMPTS
    innocent = [uri for uri, count in claims(case.table).items() if count > 1 and uri != culprit.as_uri()]
    assert len(innocent) <= 19, "only objects of the culprit's run are run again"


def test_a_transform_that_always_fails_stops_the_job_and_fails_no_object(case: Case) -> None:
    write_objects(case.source, range(30), lines=3, junk_every=10)
    whole = truth(case.source)
    options = ("--max-batch-objects", "10", "--transform")
    # As a process: the shared session would keep Spark's logs of failed queries from the terminal.
    ended = Case.ingest(case, *options, "transforms:always_fails", code=1, objects_retry_base=0.05)
    sentence = ended.err.strip().splitlines()[-1]
    assert sentence.startswith("penstock: ")
    assert "fix the transform" in sentence
    assert "Traceback" not in ended.err
    assert ended.out == ""
    assert {word for word, _, _ in objects(case.table).values()} == {"unprocessed"}
    check_meanwhile(whole, case.table)

    report = case.ingest(*options, "transforms:mended").report
    assert report["rows_written"] == len(whole.good)
    assert report["objects_dead"] == 0
    check_done(whole, case.table)


def test_transforms_may_drop_all_rows_or_read_the_input_several_times(case: Case) -> None:
    write_objects(case.source, range(20))
    report = case.ingest("--transform", "transforms:nothing").report
    assert (report["objects_processed"], report["rows_written"], report["batches"]) == (20, 0, 1)
    assert report["lines_quarantined"] == 4
    assert not read_table(case.table).rows
    assert [values["raw"] for _, values in read_quarantine(case.table).rows] == [JUNK] * 4

    let_through = write_objects(case.source, range(20, 40))
    case.accept_transform("transforms:tangled")
    report = case.ingest("--transform", "transforms:tangled").report
    whole = truth(case.source)
    new = {path.as_uri() for path in let_through}
    expected = replace(whole, good={place: values for place, values in whole.good.items() if place[0] in new})
    check_done(expected, case.table)
    assert (report["objects_processed"], report["rows_written"]) == (20, len(expected.good))
    assert report["lines_quarantined"] == 4
