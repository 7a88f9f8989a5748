"""The ranges that a replay reads, and the limit of bad lines, which does not apply to it."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.property.source_run import Case, read, whole

from penstock.pipeline.spark.source.options import ReadOptions
from penstock.pipeline.spark.source.places import are_within, ranges_of


@pytest.mark.parametrize(
    ("found", "place", "within"),
    [
        ([], "_offset", []),
        ([(3, 2)], "_offset", [3, 4]),
        ([(3, 0)], "_offset", [3]),
        ([(7, 1), (0, 2), (1, 3)], "_offset", [0, 1, 2, 3, 7]),
        ([(3, 900), (5, 0)], "_row", [3, 5]),
        ([(3, 1), (4, 1)], "_row", [3, 4]),
    ],
)
def test_a_position_is_within_the_ranges_of_the_lines(
    found: Sequence[tuple[int, int]], place: str, within: list[int]
) -> None:
    positions = np.arange(10)
    assert positions[are_within(positions, ranges_of(found, place=place))].tolist() == within


def test_a_replay_whose_lines_are_all_bad_again_does_not_fail() -> None:
    content = [b'{"id": 1}\n{"id": "x"}\n']
    options = ReadOptions(schema_ddl="id bigint", quarantine_ratio_max=0.25)
    assert read(Case(content, whole(content), options)).failures == {
        0: "1 of its 2 lines is bad, more than the limit of 25%"
    }
    replayed = read(Case(content, whole(content), options, places={0: ranges_of([(10, 11)], place="_offset")}))
    assert (replayed.failures, replayed.counts) == ({}, {0: (0, 1)})
