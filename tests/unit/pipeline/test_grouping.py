"""Grouping of deliveries into runs."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.pipeline.notifications import group_objects_max, groups


@dataclass(frozen=True)
class Item:
    objects_count: int
    failures: int


@pytest.mark.parametrize(
    ("failures", "expected"), [(0, 5_000), (1, 292), (2, 17), (3, 1), (4, 1), (9, 1)], ids=lambda value: str(value)
)
def test_a_group_shrinks_with_every_unattributed_failure(failures: int, expected: int) -> None:
    assert group_objects_max(failures, objects_max=5_000, attempts_max=4) == expected


@pytest.mark.parametrize("attempts_max", [1, 2, 3, 10])
def test_the_last_attempt_is_always_alone(attempts_max: int) -> None:
    assert group_objects_max(max(1, attempts_max - 1), objects_max=5_000, attempts_max=attempts_max) == 1


def test_objects_without_failures_run_first_and_suspects_only_with_their_equals() -> None:
    items = [Item(1, 2), Item(1, 0), Item(1, 1), Item(1, 0), Item(1, 2)]
    grouped = groups(items, objects_max=100, attempts_max=4)
    assert [[item.failures for item in group] for group in grouped] == [[0, 0], [1], [2, 2]]


def test_a_delivery_with_more_objects_than_its_group_allows_is_not_split() -> None:
    big = Item(objects_count=50, failures=3)
    assert groups([Item(1, 3), big, Item(1, 3)], objects_max=100, attempts_max=4) == [[Item(1, 3)], [big], [Item(1, 3)]]


@given(
    st.lists(st.builds(Item, objects_count=st.integers(1, 9), failures=st.integers(0, 5)), max_size=60),
    st.integers(1, 40),
    st.integers(1, 6),
)
def test_every_delivery_is_in_exactly_one_group_within_its_limit(
    items: list[Item], objects_max: int, attempts_max: int
) -> None:
    grouped = groups(items, objects_max=objects_max, attempts_max=attempts_max)
    assert sorted(map(id, (item for group in grouped for item in group))) == sorted(map(id, items))
    for group in grouped:
        assert len({item.failures for item in group}) == 1
        limit = group_objects_max(group[0].failures, objects_max=objects_max, attempts_max=attempts_max)
        assert len(group) == 1 or sum(item.objects_count for item in group) <= limit
