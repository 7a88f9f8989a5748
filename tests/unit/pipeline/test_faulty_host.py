"""Naming the host on which a fault occurred."""

import os

import pytest

from penstock.errors import PenstockError, TableDenied, TemporaryError
from penstock.pipeline.spark.arrow_writer import naming_host

HERE = os.uname().nodename


@pytest.mark.parametrize("kind", [TemporaryError, TableDenied])
def test_a_fault_on_another_host_names_that_host(kind: type[PenstockError]) -> None:
    with pytest.raises(kind, match=f"^on the host {HERE}, the disk is full$"), naming_host("driver"):
        raise kind("the disk is full")


def test_a_fault_on_the_drivers_host_names_no_host() -> None:
    with pytest.raises(TemporaryError, match=r"^the disk is full$"), naming_host(HERE):
        raise TemporaryError("the disk is full")
