"""The table in docs/brokers.md is what the brokers say of themselves."""

import dataclasses
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "broker_table.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("broker_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_is_fresh(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    assert script.written(page, script.capabilities()) == page, "it is stale: make docs"


def test_a_change_makes_it_stale(script: ModuleType) -> None:
    page = script.PAGE.read_text(encoding="utf-8")
    found = dict(script.capabilities())
    name = next(iter(found))
    changed = dataclasses.replace(found[name], pausable=not found[name].pausable)
    assert script.written(page, {**found, name: changed}) != page


def test_numbers_are_for_people(script: ModuleType) -> None:
    assert script._cell("delay_seconds_max", 900.0) == "900 s"
    assert script._cell("lease_seconds_max", 43_200.0) == "12 hours"
    assert script._cell("body_bytes_max", 262_144) == "256 KiB"
    assert script._cell("receive_max", 1_000) == "1,000"
    assert script._cell("fenced", False) == "no"
