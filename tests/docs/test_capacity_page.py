"""The simulation behind docs/run/capacity.md: cases with a known answer, and the page has the table that it prints."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from benchmarks.capacity import SCENARIOS, Costs, Plan, Result, Simulation, simulate, table

PAGE = (Path(__file__).parents[2] / "docs/run/capacity.md").read_text(encoding="utf-8")
FREE = replace(
    Costs(),
    **{field.name: 0.0 for field in fields(Costs) if field.name.endswith(("_us", "_ms", "_seconds", "_requests"))},
)
EVERY_TEN_SECONDS = Plan(tb_per_day=8_640 * 1e-6, object_mb=1.0, batch=1, files=0)  # 8,640 objects a day


def test_an_idle_pipeline_has_the_age_and_utilization_of_its_only_cost() -> None:
    result = simulate(EVERY_TEN_SECONDS, replace(FREE, spark_batch_seconds=2.0))

    assert result.age_p50 == pytest.approx(2.0)
    assert result.age_p99 == pytest.approx(2.0)
    assert result.utilization["Spark"] == pytest.approx(0.2, abs=1e-3)
    assert not result.overloaded
    assert result.commits_per_hour == pytest.approx(360, abs=1)


def test_an_overloaded_pipeline_has_the_backlog_that_its_slowest_resource_leaves() -> None:
    result = simulate(EVERY_TEN_SECONDS, replace(FREE, spark_batch_seconds=20.0))

    assert result.overloaded
    assert result.bottleneck == "Spark"
    assert result.backlog == pytest.approx(720 - 360, abs=2)  # in two hours one per 10 s arrives, one per 20 s ends
    assert result.age_p99 == pytest.approx(3_600, rel=0.05)


def test_two_batches_overlap_so_the_slowest_stage_alone_decides_the_rate() -> None:
    costs = replace(FREE, spark_batch_seconds=8.0, claim_us=8e6)

    assert simulate(replace(EVERY_TEN_SECONDS, in_flight=1), costs).bottleneck == "batches in flight"
    assert not simulate(replace(EVERY_TEN_SECONDS, in_flight=2), costs).overloaded


@pytest.mark.parametrize(
    ("cost", "value", "bottleneck"),
    [
        ("driver_us", 2_000.0, "driver"),
        ("claim_us", 5_000.0, "ledger"),
        ("spark_object_ms", 500.0, "Spark"),
        ("s3_gets", 100.0, "S3 GETs"),
        ("publish_ms", 60_000.0, "publish"),
        ("sqs_in_flight", 20_000.0, "SQS in flight"),
    ],
)
def test_the_resource_that_was_made_scarce_is_the_bottleneck(cost: str, value: float, bottleneck: str) -> None:
    plan = Plan(pipelines=8, cores=192, batch=20_000, hours=0.5)
    assert not simulate(plan).overloaded

    result = simulate(plan, replace(Costs(), **{cost: value}))

    assert result.overloaded
    assert result.bottleneck == bottleneck


def test_more_volume_never_makes_rows_younger_and_more_pipelines_never_make_a_resource_busier() -> None:
    def busiest(result: Result) -> float:
        return max(result.utilization.values())

    small, large = (simulate(Plan(tb_per_day=tb, object_mb=10.0, cores=32, hours=1.0)) for tb in (20.0, 100.0))
    few, many = (simulate(Plan(pipelines=count, batch=20_000, cores=512, hours=0.5)) for count in (8, 16))

    assert small.age_p50 is not None
    assert large.age_p50 is not None
    assert small.age_p50 <= large.age_p50
    assert busiest(small) <= busiest(large)
    assert busiest(many) <= busiest(few)


def test_a_run_repeats_itself_exactly() -> None:
    plan = Plan(pipelines=3, workers=2, hours=0.5)

    assert simulate(plan) == simulate(plan)


def test_every_object_is_published_once_and_in_order() -> None:
    simulation = Simulation(Plan(batch=20_000, workers=3, hours=0.5), Costs())
    result = simulation.run()
    batches = sorted(simulation.published, key=lambda batch: batch.first)

    ends = [batch.first + batch.objects for batch in batches]
    assert [batch.first for batch in batches] == [0, *ends[:-1]]
    assert ends[-1] + result.backlog == round(Plan().objects_per_second * 1_800)


def test_the_page_has_the_table_that_the_command_prints() -> None:
    assert table(SCENARIOS, Costs()) in PAGE, "run `python -m benchmarks.capacity` and put its table into the page"


def test_the_driver_cost_is_the_measured_figure_of_the_page() -> None:
    measured = re.search(r"^\| 100,000 \| local\[2\] \| 1 \| (\d+) us \|", PAGE, re.MULTILINE)

    assert measured is not None
    assert Costs().driver_us == float(measured[1])
