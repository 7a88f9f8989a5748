"""Races with delta-spark's unconditional puts on an S3 server: no row of a batch is lost, and none is there twice.

Each race is a seeded order of commits, publishes, compactions and deaths of two processes of Penstock, and of a driver
of the other writer whose put may come late. Rows are compared with what was committed, by two readers: deltalake, and a
plain reading of the log's JSON files.
"""

import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from tests.conformance.publishing.shared_table import SharedTable, choose
from tests.services.aws_server import AwsServer
from tests.services.spark_writer import CommitExists, PendingCommit

from penstock.events import CommitOverwritten
from penstock.ledger import Ledger
from penstock.messaging.steps import Step
from penstock.storage.roots import files_at

RACES = 200
GROUPS = 10  # tests of the long matrix, so that they can run in parallel; half of the first one's races always run
PUTS = 2  # of the other writer
BETWEEN_MAX = 3  # actions of Penstock between the check of the other writer and its put
DYING = (Step.PUBLISHING, Step.ROWS_PUBLISHED, Step.REPUBLISHING, Step.REPUBLISHED)
EVENTS_MIN = 3  # overwritten commits below later ones, in each test


class Died(BaseException):
    """Simulates the death of the process."""


@dataclass(kw_only=True)
class Race:
    """One race. ``late``: the other writer's commit that is checked and not put."""

    table: SharedTable
    chance: random.Random
    late: PendingCommit | None = None
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10_000)))
    others: list[int] = field(default_factory=list)  # rows of the other writer
    late_rows: list[int] = field(default_factory=list)

    def run(self) -> None:
        self.table.published(next(self.numbers))
        for _ in range(PUTS):
            self.plan()
            for _ in range(self.chance.randint(1, BETWEEN_MAX)):
                getattr(self, choose(self.chance, publish=4, die=2, compact=1))()
            self.put()
        self.table.publish()

    def publish(self) -> None:
        self.batch()
        self.table.publish()

    def batch(self) -> None:
        self.table.batch(*(next(self.numbers) for _ in range(self.chance.randint(1, 2))))

    def die(self) -> None:
        """Commit a batch and die while publishing it."""
        self.batch()
        step = self.chance.choice(DYING)

        def probe(at: Step) -> None:
            if at is step:
                raise Died

        with suppress(Died):
            self.table.publish(probe=probe)

    def compact(self) -> None:
        self.table.compact()

    def plan(self) -> None:
        spark = self.table.spark
        row = next(self.numbers)
        with suppress(CommitExists):
            if self.chance.random() < 0.4:
                self.late, self.late_rows = spark.append({"id": [row], "word": ["spark"]}), [row]
            else:
                self.late, self.late_rows = spark.optimize(), []

    def put(self) -> None:
        if self.late is not None:
            self.late.put()
            self.others += self.late_rows
            self.late = None


@pytest.mark.parametrize(
    "races",
    [
        pytest.param(range(0, RACES, 2 * GROUPS), id="some"),
        *(
            pytest.param(range(group, RACES, GROUPS), id=f"group {group}", marks=pytest.mark.slow)
            for group in range(GROUPS)
        ),
    ],
)
def test_no_row_is_lost_or_doubled_by_a_writer_that_puts_without_a_condition(moto: AwsServer, races: range) -> None:
    moto.client("s3").create_bucket(Bucket="lake")
    overwritten = 0
    for number in races:
        ledger = Ledger.open("sqlite://")
        table = SharedTable(files=files_at(f"s3://lake/race-{number}", moto.aws), ledger=ledger)
        race = Race(table=table, chance=random.Random(number))
        race.run()
        table.assert_complete(*race.others)
        overwritten += sum(isinstance(event, CommitOverwritten) for event in table.events)
        ledger.close()
    assert overwritten >= EVENTS_MIN, "the races did not happen"
