"""Our outcome for each case of JSON, as a line and as a document."""

from tests.conformance.formats.differences import DIFFERENCES
from tests.conformance.formats.json_cases import GOOD_ID, GOOD_LINE, JSON_CASES, as_spark_says
from tests.conformance.formats.outcomes import outcome_of, read_each

from penstock.pipeline.spark.source.options import ReadOptions


def test_json_lines() -> None:
    contents = [case.content + b"\n" + GOOD_LINE for case in JSON_CASES]
    found = read_each(contents, ReadOptions(schema_ddl="id BIGINT", format="jsonl"))
    wrong = []
    for case, (rows, bad, failed) in zip(JSON_CASES, found, strict=True):
        assert not failed
        assert rows.pop() == {"id": GOOD_ID}, f"{case.content!r} harms the line after it"
        if (outcome := outcome_of(len(rows), bad)) != case.line:
            wrong.append((case.content[:60], outcome, case.line))
    assert wrong == []


def test_json_documents() -> None:
    found = read_each([case.content for case in JSON_CASES], ReadOptions(schema_ddl="id BIGINT", format="json"))
    outcomes = [outcome_of(len(rows), bad, failed=failed) for rows, bad, failed in found]
    assert [
        (case.content[:60], outcome, case.document)
        for case, outcome in zip(JSON_CASES, outcomes, strict=True)
        if outcome != case.document
    ] == []


def test_each_disagreement_with_spark_has_a_reason_and_nothing_else_has_one() -> None:
    for case in JSON_CASES:
        ours = [as_spark_says(case.line), as_spark_says(case.document)]
        assert (ours != [case.spark_line, case.spark_document]) == bool(case.because), case
        assert not case.because or case.because in DIFFERENCES, case
