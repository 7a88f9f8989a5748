"""A pipeline whose table is in another registered format, from its declaration to reading the table."""

import pytest
from pyspark.sql import SparkSession
from tests.conformance.sinks.toy_sink import TOY, ToyTable

from penstock import App, ObjectSource
from penstock.sinks.registry import SINKS
from penstock.testing import run_pipeline


def test_a_pipeline_writes_publishes_and_reads_a_table_in_a_registered_format(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SINKS, "toy", TOY)
    numbers = App().pipeline(
        "numbers", source=ObjectSource("landing", queue="numbers", schema="id long"), sink=ToyTable("numbers")
    )
    result = run_pipeline(
        numbers, {"a.jsonl": '{"id": 1}\n{"id": 2}\n', "b.jsonl": '{"id": 3}\nno json\n'}, spark=spark
    )
    assert sorted(row["id"] for row in result.rows) == [1, 2, 3]
    assert len(result.quarantined) == 1
