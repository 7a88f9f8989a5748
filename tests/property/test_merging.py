"""Merges of any changes, in any batches, in any order, with publishers that die: the table is that of a plain fold."""

import random
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conformance.publishing.merge_maker import Change, MergeMaker, folded, numbered
from tests.examples import examples

from penstock.ledger import Ledger
from penstock.messaging.steps import Probe, Step
from penstock.pipeline.merging.tombstones import fold_deletes
from penstock.storage.local import LocalFiles

KILLED_AT = (Step.PUBLISHING, Step.REWRITTEN, Step.ROWS_PUBLISHED)

CHANGE = st.builds(
    Change,
    id=st.integers(1, 2),
    at=st.none() | st.integers(1, 2),
    part=st.sampled_from(["p", "q"]),
    value=st.none() | st.sampled_from([0.0, 1.5]),
    is_delete=st.booleans(),
)
OBJECTS = st.lists(st.lists(CHANGE, min_size=1, max_size=4), min_size=1, max_size=10)


class Killed(BaseException):
    """The publisher ends here."""


@contextmanager
def maker(scheme: str, partition_by: Sequence[str]) -> Iterator[MergeMaker]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve()
        ledger = Ledger.open(root / "ledger.db")
        with closing(ledger):
            yield MergeMaker(root=root / "table", ledger=ledger, scheme=scheme, partition_by=partition_by)


def dying(rng: random.Random) -> Probe:
    def probe(step: Step) -> None:
        if step in KILLED_AT and rng.random() < 0.3:
            raise Killed

    return probe


@pytest.mark.generated
@pytest.mark.parametrize("scheme", ["delta", "iceberg"])
@settings(max_examples=examples(60), deadline=None)
@given(objects=OBJECTS, seed=st.integers(0, 2**32), partitioned=st.booleans())
def test_the_table_depends_only_on_the_processed_objects(
    scheme: str, objects: list[list[Change]], seed: int, partitioned: bool
) -> None:
    rng = random.Random(seed)
    waiting = numbered(objects)
    rng.shuffle(waiting)
    done: list[Change] = []
    with maker(scheme, ("part",) if partitioned else ()) as table:
        while waiting:
            batch = [waiting.pop() for _ in range(min(len(waiting), rng.randint(1, 3)))]
            changes = [change for one in batch for change in one]
            table.changes(changes, row_group=rng.randint(1, 3))
            done += changes
            if rng.random() < 0.5:
                with suppress(Killed):
                    table.publish(probe=dying(rng))
            if rng.random() < 0.3:
                fold_deletes(table.ledger, LocalFiles(table.root), pipeline=table.pipeline, now=0.0, files_min=2)
        table.publish()
        assert table.rows() == folded(done)
