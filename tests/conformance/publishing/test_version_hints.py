"""Version hints of Iceberg tables in folders, and their old metadata: whatever fails there, a publish succeeds."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
from tests.conformance.publishing.batch_maker import PIPELINE, BatchMaker, shown_ids
from tests.conformance.publishing.test_checkpoints import Process, dying_at, published
from tests.conformance.publishing.test_compaction import keep_nothing
from tests.conformance.publishing.test_publishing import Died, seq

from penstock.errors import TemporaryError
from penstock.events import CheckpointFailed
from penstock.messaging.steps import Step
from penstock.pipeline.maintenance.compact import compact
from penstock.sinks.iceberg import folder
from penstock.sinks.iceberg.folder import HINT
from penstock.storage.local import LocalFiles
from penstock.testing import FakeClock

KEPT = 2  # metadata files
Refuse = Callable[..., None]


@pytest.fixture
def begun(iceberg_maker: BatchMaker, monkeypatch: pytest.MonkeyPatch) -> BatchMaker:
    """Return a maker whose table has the row 0. Its newest metadata file is 2."""
    monkeypatch.setattr(folder, "KEPT", KEPT)
    published(iceberg_maker, 0)
    return iceberg_maker


def metadata(maker: BatchMaker) -> tuple[int, list[int]]:
    """Return the version that the hint names, and the numbers of the metadata files."""
    names = (maker.root / "metadata").glob("v*.metadata.json")
    return int((maker.root / HINT).read_text()), sorted(int(path.name[1:].partition(".")[0]) for path in names)


def vacuum(maker: BatchMaker) -> Sequence[str]:
    history = maker.sink().history
    table = None if history is None else history.load()
    assert table is not None
    return table.vacuum(retention_hours=None, dry_run=False)


@contextmanager
def refused(method: str, path: str) -> Iterator[None]:
    """Make a method of `LocalFiles` fail for paths with this ending."""
    real: Refuse = getattr(LocalFiles, method)

    def refuse(files: LocalFiles, changed: str | list[str], *arguments: bytes) -> None:
        if any(one.endswith(path) for one in ([changed] if isinstance(changed, str) else changed)):
            raise TemporaryError(f"{path}: no")
        real(files, changed, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalFiles, method, refuse)
        yield


@pytest.mark.parametrize(
    ("step", "left"),
    [(Step.ROWS_PUBLISHED, 2), (Step.CHECKPOINTING, 2), (Step.CHECKPOINTED, 3)],
    ids=lambda value: value.value if isinstance(value, Step) else "",
)
def test_the_next_publisher_continues_after_one_that_died_beside_a_hint(
    begun: BatchMaker, step: Step, left: int
) -> None:
    with pytest.raises(Died):
        published(begun, 1, probe=dying_at(step))
    assert metadata(begun) == (left, [1, 2, 3])
    assert (shown_ids(begun.root), seq(begun)) == ([0, 1], 2)
    published(begun, 2)
    assert metadata(begun) == (4, [3, 4])
    assert (shown_ids(begun.root), seq(begun)) == ([0, 1, 2], 3)


@pytest.mark.parametrize("others", [1, KEPT, KEPT + 2])
def test_a_hint_that_is_written_late_names_the_newest_version(begun: BatchMaker, others: int) -> None:
    def publish_others(step: Step) -> None:
        if step is Step.CHECKPOINTING:
            for row in range(others):
                published(begun, 2 + row)

    published(begun, 1, probe=publish_others)
    newest = 3 + others
    assert metadata(begun) == (newest, list(range(newest + 1 - KEPT, newest + 1)))
    assert shown_ids(begun.root) == list(range(2 + others))


@pytest.mark.parametrize(
    ("method", "path", "left"),
    [("write", HINT, (2, [1, 2, 3, 4])), ("delete", ".metadata.json", (4, [1, 2, 3, 4]))],
    ids=["hint", "old metadata"],
)
def test_a_failure_beside_a_hint_fails_no_publish_and_is_reported_once_in_a_process(
    begun: BatchMaker, method: str, path: str, left: tuple[int, list[int]]
) -> None:
    process = Process(begun)
    with refused(method, path):
        for row in (1, 2):
            begun.batch([row])
            process.publish()
    assert (shown_ids(begun.root), seq(begun), metadata(begun)) == ([0, 1, 2], 3, left)
    assert process.warnings == [
        CheckpointFailed(pipeline=PIPELINE, sink=LocalFiles(begun.root).uri, version=2, error=f"{path}: no")
    ]
    begun.batch([3])
    process.publish()
    assert (shown_ids(begun.root), metadata(begun)) == ([0, 1, 2, 3], (5, [4, 5]))


def test_a_vacuum_deletes_no_file_that_the_hinted_version_may_name(begun: BatchMaker) -> None:
    published(begun, 1)
    compact(begun.sink(), clock=FakeClock(auto_advance=True))
    assert metadata(begun)[0] == 4
    data = sorted(begun.root.glob("data/**/*.parquet"))
    keep_nothing(begun)
    with refused("write", HINT), pytest.raises(TemporaryError):
        vacuum(begun)
    assert sorted(begun.root.glob("data/**/*.parquet")) == data
    assert len(vacuum(begun)) == 2
    assert shown_ids(begun.root) == [0, 1]


def test_a_compaction_that_cannot_write_the_hint_succeeds(begun: BatchMaker) -> None:
    published(begun, 1)
    with refused("write", HINT):
        done = compact(begun.sink(), clock=FakeClock(auto_advance=True))
    assert done is not None
    assert (done.files_before, done.files_after, shown_ids(begun.root)) == (2, 1, [0, 1])
    published(begun, 2)
    assert metadata(begun) == (5, [4, 5])
