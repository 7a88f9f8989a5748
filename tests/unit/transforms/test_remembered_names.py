"""The names under which a ledger remembers ready-made transforms."""

import pytest

from penstock import transforms
from penstock.app.pipelines.transforms import name_of
from penstock.transforms import Debezium, Dms, debezium, debezium_flattened, dms


@pytest.mark.parametrize(
    ("transform", "name"),
    [
        (debezium, "penstock.transforms:debezium"),
        (Debezium(), "penstock.transforms:debezium"),
        (Debezium(flattened=True), "penstock.transforms:debezium_flattened"),
        (Debezium(order="time"), "penstock.transforms:Debezium(order='time')"),
        (
            Debezium(order="time", flattened=True),
            "penstock.transforms:Debezium(flattened=True, order='time')",
        ),
        (dms, "penstock.transforms:dms"),
        (Dms(timestamp_column="at"), "penstock.transforms:Dms(timestamp_column='at')"),
    ],
)
def test_the_remembered_name_contains_the_options(transform: Debezium | Dms, name: str) -> None:
    assert name_of(transform) == name


def test_a_command_can_name_the_ready_made_ones() -> None:
    for transform in (debezium, debezium_flattened, dms):
        assert getattr(transforms, name_of(transform).partition(":")[2]) is transform
