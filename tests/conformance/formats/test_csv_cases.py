"""Our rows and bad lines for each case of CSV."""

import pytest
from tests.conformance.formats.csv_cases import CSV_CASES, CsvCase, shown
from tests.conformance.formats.differences import DIFFERENCES
from tests.conformance.formats.json_cases import JSON_CASES
from tests.conformance.formats.outcomes import read_each

from penstock.pipeline.spark.source.options import ReadOptions


@pytest.mark.parametrize("case", CSV_CASES, ids=[case.name for case in CSV_CASES])
def test_csv(case: CsvCase) -> None:
    ((rows, bad, failed),) = read_each([case.data], ReadOptions(schema_ddl=case.ddl, format="csv", csv=case.csv))
    assert [shown(row.values()) for row in rows] == list(case.rows)
    assert tuple(bad) == case.bad
    assert failed == case.fails


def test_each_disagreement_with_spark_has_a_reason_and_nothing_else_has_one() -> None:
    for case in CSV_CASES:
        assert (case.spark is not None) == bool(case.because), case.name
        assert case.spark != (case.rows, len(case.bad)) or case.fails, f"{case.name} agrees"
        assert not case.because or case.because in DIFFERENCES, case.name


def test_each_difference_has_a_case() -> None:
    assert {*(case.because for case in JSON_CASES), *(case.because for case in CSV_CASES)} == {"", *DIFFERENCES}
