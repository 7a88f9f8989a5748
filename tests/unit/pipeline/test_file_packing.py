"""Distribution of a table's files over tasks."""

from collections.abc import Sequence

import pytest

from penstock.pipeline.spark.frames import OPENING_BYTES, PACK_BYTES_MAX, packed
from penstock.sinks.sink import TableFile

MB = 1 << 20


def files(*sizes_bytes: int) -> Sequence[TableFile]:
    return [
        TableFile(path=f"{number}.parquet", size_bytes=size, partition_values={})
        for number, size in enumerate(sizes_bytes)
    ]


def sizes(packs: Sequence[Sequence[TableFile]]) -> list[list[int]]:
    return [[file.size_bytes // MB for file in pack] for pack in packs]


def test_each_large_file_has_its_own_task() -> None:
    assert sizes(packed(files(100 * MB, 300 * MB, 120 * MB), tasks=2)) == [[300], [120], [100]]


def test_small_files_share_the_tasks() -> None:
    packs = packed(files(*[1 * MB] * 40), tasks=4)
    assert [len(pack) for pack in packs] == [10] * 4


@pytest.mark.parametrize("tasks", [1, 3, 1000])
@pytest.mark.parametrize("count", [1, 2, 57])
def test_each_file_is_in_one_pack_and_none_is_too_large(tasks: int, count: int) -> None:
    given = files(*(number * number * 50_000 for number in range(count)))
    packs = packed(given, tasks=tasks)
    assert sorted(file.path for pack in packs for file in pack) == sorted(file.path for file in given)
    for pack in packs:
        assert len(pack) == 1 or sum(file.size_bytes for file in pack) <= PACK_BYTES_MAX - OPENING_BYTES * (
            len(pack) - 1
        )
