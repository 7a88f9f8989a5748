"""The table in docs/run/brokers.md equals the capabilities of the brokers."""

import dataclasses

import pytest
from scripts.broker_table import PAGE, _cell, capabilities, written
from scripts.made_tables import rewritten


def test_the_table_is_up_to_date() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert written(page, capabilities()) == page, "it is stale: make docs"


def test_a_change_makes_the_table_stale() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = dict(capabilities())
    name = next(iter(found))
    changed = dataclasses.replace(found[name], pausable=not found[name].pausable)
    assert written(page, {**found, name: changed}) != page


def test_a_page_without_its_marks_is_reported() -> None:
    with pytest.raises(SystemExit, match=r"scripts/broker_table\.py"):
        rewritten("a page without marks", script="broker_table", table="")


def test_numbers_are_formatted_with_units() -> None:
    assert _cell("delay_seconds_max", 900.0) == "900 s"
    assert _cell("lease_seconds_max", 43_200.0) == "12 hours"
    assert _cell("body_bytes_max", 262_144) == "256 KiB"
    assert _cell("body_bytes_max", 1024**2) == "1 MiB"
    assert _cell("header_bytes", 100) == "100 bytes"
    assert _cell("settle_linger_seconds", 0.1) == "0.1 s"
    assert _cell("settle_linger_seconds", 0.0) == "0 s"
    assert _cell("delay_seconds_max", 14 * 86_400.0) == "14 days"
    assert _cell("retention_days_max", 3_660.0) == "3,660 days"
    assert _cell("receive_max", 1_000) == "1,000"
    assert _cell("settle_batch", 10.0) == "10"
    assert _cell("fenced", False) == "no"
