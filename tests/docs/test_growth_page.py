"""docs/run/growth.md and its charts show exactly the stored figures, and growth is what the page says it is."""

import re
from pathlib import Path

import pytest
from benchmarks.growth.__main__ import PARTS
from benchmarks.growth.curves import Curve, Point, Series, load, store
from benchmarks.growth.page import FIGURES, FOLDER, PAGE, chart, filled, table

CURVES = load(FIGURES)


def curve(*costs: float) -> Curve:
    points = [Point(size=10**at, cost=cost, wall_us=cost) for at, cost in enumerate(costs)]
    return Curve(part="queue", operation="send <one>", unit="message", points=points)


def test_the_page_has_the_tables_of_the_figures() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert filled(page, CURVES) == page, "run `python -m benchmarks.growth.page`"
    assert re.findall(r"<!-- growth: (\w+) -->", page) == list(PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_every_part_has_its_figures_and_its_chart(part: str) -> None:
    assert [one for one in CURVES if one.part == part]
    assert (FOLDER / f"{part}.svg").read_text(encoding="utf-8") == chart(part, CURVES)
    assert f"growth/{part}.svg" in PAGE.read_text(encoding="utf-8")


def test_growth_compares_the_last_size_with_the_second() -> None:
    assert curve(9.0, 2.0, 1.0, 3.0).growth == pytest.approx(1.5)
    assert curve(9.0, 2.0, 1.0, 3.0).is_flat
    assert not curve(1.0, 2.0, 3.1).is_flat


def test_a_chart_names_its_curves_and_marks_those_that_grow() -> None:
    drawn = chart("queue", [curve(1.0, 2.0, 2.0), curve(1.0, 2.0, 20.0)])
    assert drawn.count("send &lt;one&gt;") == 2
    assert drawn.count('class="flat"') == drawn.count('class="grows"') == 1
    assert "prefers-color-scheme:dark" in drawn
    assert "10 x" in drawn


def test_a_table_has_a_column_for_each_size() -> None:
    head, _, row = table("queue", [curve(1.0, 2.0, 250.0)]).splitlines()
    assert head == "| CPU us | each | 1 | 10 | 100 | growth |"
    assert row == "| send <one> | message | 1.0 | 2.0 | 250 | 125 x |"


def test_curves_are_stored_and_loaded(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    assert load(file) == []
    store(file, [curve(1.0, 2.0)])
    assert load(file) == [curve(1.0, 2.0)]


def test_costs_of_one_size_add_up() -> None:
    series = Series("queue", {"send": "message", "ack": "message"})
    for _ in range(2):
        with series.of("send", 5):
            pass
    series.add("ack", units=2, cpu_seconds=1e-3, wall_seconds=2e-3)
    series.done(7)
    sent, acked = series.curves()
    assert [point.size for point in sent.points] == [7]
    assert acked.points == [Point(size=7, cost=500.0, wall_us=1000.0)]
