"""The CloudWatch alarms: cfn-lint finds nothing, and their metrics exist."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cfnlint.api import lint_file
from tests.deploy.alarm_stack import (
    ALL,
    LEAST,
    PAGE_TOPIC,
    TEMPLATE,
    WARN_TOPIC,
    Stack,
    identity,
    read_template,
    watched,
)
from tests.deploy.tools import ROOT

from penstock.config import Settings
from penstock.monitoring.logs.plans import ROWS
from penstock.monitoring.logs.rows import rows_of
from penstock.monitoring.metrics.catalogue import METRICS, PREFIX
from penstock.monitoring.metrics.cloudwatch import points
from penstock.monitoring.metrics.meters import NOTHING_READ, Meters, changes

# The metrics of SQS in CloudWatch that alarms use.
OF_SQS = {
    "ApproximateAgeOfOldestMessage",
    "ApproximateNumberOfMessagesVisible",
    "ApproximateNumberOfMessagesNotVisible",
    "NumberOfMessagesReceived",
}


@pytest.fixture(scope="module")
def template() -> Mapping[str, Any]:
    return read_template()


@pytest.fixture(scope="module")
def stack(template: Mapping[str, Any]) -> Stack:
    return Stack(template, ALL)


# -- the template


def test_cfn_lint_finds_nothing() -> None:
    assert [f"{match.rule.id} line {match.linenumber}: {match.message}" for match in lint_file(TEMPLATE)] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("GreaterThanThreshold", "GreaterThan"),
        ("TreatMissingData: breaching", "TreatMissingData: bad"),
        ("AlarmActions: [!Ref PageTopic]", "AlarmActions: [!Ref Topic]"),
        ("EvaluationPeriods: 5", "EvaluationPeriods: 0"),
        ("Condition: HasPipeline", "Condition: HasPipelines"),
    ],
)
def test_cfn_lint_finds_mistakes(tmp_path: Path, right: str, wrong: str) -> None:
    text = TEMPLATE.read_text(encoding="utf-8")
    assert right in text
    spoilt = tmp_path / "alarms.yaml"
    spoilt.write_text(text.replace(right, wrong), encoding="utf-8")
    assert lint_file(spoilt)


def test_without_metrics_and_log_there_are_alarms_on_metrics_of_sqs(template: Mapping[str, Any]) -> None:
    alarms = Stack(template, LEAST).alarms
    dead = {"DeadLettersForPeople", "DeadLetters", "FirstTierNearEnd", "SecondTierNearEnd"}
    assert set(alarms) == {"OldestMessage", "Unconsumed", *dead}
    assert all(metric["Namespace"] == "AWS/SQS" for alarm in alarms.values() for metric in watched(alarm))
    assert {alarm["AlarmActions"][0] for alarm in alarms.values()} == {PAGE_TOPIC}  # the only topic of these parameters


def test_with_our_metrics_the_alarm_uses_our_age_instead_of_that_of_sqs(stack: Stack) -> None:
    assert "Late" in stack.alarms
    assert "OldestMessage" not in stack.alarms
    assert len({alarm["AlarmName"] for alarm in stack.alarms.values()}) == len(stack.alarms)


def test_urgent_alarms_have_one_topic_and_the_others_another(stack: Stack) -> None:
    for alarm in stack.alarms.values():
        topic = {"page": PAGE_TOPIC, "warn": WARN_TOPIC}[alarm["AlarmDescription"].partition(":")[0]]
        assert alarm["AlarmActions"] == alarm["OKActions"] == [topic]


def test_an_alarm_is_as_urgent_as_the_rule_it_shares_a_runbook_with(stack: Stack) -> None:
    page = (ROOT / "docs/fix/alerts.md").read_text(encoding="utf-8")
    for alarm in stack.alarms.values():
        urgency, _, text = alarm["AlarmDescription"].partition(": ")
        runbook = re.search(r"docs/fix/alerts\.md, (Penstock\w+)\.$", text)
        assert runbook is not None
        assert f"### {runbook[1]}\n\n*{urgency}*: " in page


# -- their metrics


def sent() -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    """Return the metrics of the queue orders and the pipeline clicks in CloudWatch: names, and dimensions in order."""
    declared = {"queue": "orders", "pipeline": "clicks"}
    meters = Meters()
    for name, metric in METRICS.items():
        series: list[tuple[str, ...]] = [()]
        for label in metric.labels:
            values = metric.values.get(label, (declared.get(label, "x"),))
            series = [(*one, value) for one in series for value in values]
        for labels in series:
            if metric.kind == "gauge":
                meters.replace(name, dict.fromkeys(series, 1.0))
            elif metric.kind == "counter":
                meters.count(name, labels)
            else:
                meters.observe(name, labels, 1.0)
    fresh = changes(NOTHING_READ, meters.read(), METRICS)
    return {(point.name, point.dimensions) for point in points(fresh, METRICS)}


def test_our_metrics_have_these_names_and_dimensions(stack: Stack) -> None:
    there = sent()
    ours = [
        identity(metric)
        for alarm in stack.alarms.values()
        for metric in watched(alarm)
        if metric["MetricName"].startswith(PREFIX)
    ]
    assert len(ours) >= 10
    assert [metric for metric in ours if metric not in there] == []


def test_the_other_metrics_come_from_sqs_or_the_log(stack: Stack) -> None:
    filters = {
        transformation["MetricName"]: transformation
        for one in stack.of_type("AWS::Logs::MetricFilter").values()
        for transformation in one["MetricTransformations"]
    }
    for alarm in stack.alarms.values():
        for metric in watched(alarm):
            name, dimensions = identity(metric)
            if metric["Namespace"] == "AWS/SQS":
                assert name in OF_SQS
                assert [label for label, _ in dimensions] == ["QueueName"]
                assert dimensions[0][1] in ("orders", "orders-dlq", "orders-dead")
            elif not name.startswith(PREFIX):
                assert filters[name]["MetricNamespace"] == metric["Namespace"] == "Penstock"
                assert filters[name]["MetricValue"] == "1"
                assert not dimensions  # CloudWatch has defaults only for metrics without dimensions


def test_the_log_has_the_lines_that_are_counted(stack: Stack) -> None:
    events = {row.name for entry in ROWS.values() for row in rows_of(entry)}
    patterns = [one["FilterPattern"] for one in stack.of_type("AWS::Logs::MetricFilter").values()]
    assert len(patterns) == 2
    for pattern in patterns:
        found = re.fullmatch(r'\{ \$\.(level|event) = "([\w.]+)" \}', pattern)
        assert found is not None
        assert found[2] in (events if found[1] == "event" else {"error"})


def test_expressions_use_queries_of_the_same_alarm(stack: Stack) -> None:
    functions = {"IF", "FILL", "AND"}
    for alarm in stack.alarms.values():
        ids = [query["Id"] for query in alarm.get("Metrics", ())]
        assert len(ids) == len(set(ids))
        assert sum(query.get("ReturnData", True) for query in alarm.get("Metrics", ())) == (1 if ids else 0)
        for query in alarm.get("Metrics", ()):
            named = set(re.findall(r"[A-Za-z]\w*", query.get("Expression", ""))) - functions
            assert named <= set(ids)


@pytest.mark.parametrize(("alarm", "queue"), [("DeadLettersForPeople", "orders-dead"), ("DeadLetters", "orders-dlq")])
def test_reading_dead_letters_does_not_end_their_alarm(stack: Stack, alarm: str, queue: str) -> None:
    """On SQS, reading them hides them for a while."""
    (expression,) = [one["Expression"] for one in stack.alarms[alarm]["Metrics"] if "Expression" in one]
    assert expression == "FILL(visible, 0) + FILL(hidden, 0)"
    assert {identity(metric) for metric in watched(stack.alarms[alarm])} == {
        ("ApproximateNumberOfMessagesVisible", (("QueueName", queue),)),
        ("ApproximateNumberOfMessagesNotVisible", (("QueueName", queue),)),
    }


def test_missing_data_of_the_monitor_is_an_alarm(stack: Stack) -> None:
    loud = {
        identity(metric)
        for alarm in stack.alarms.values()
        if alarm["TreatMissingData"] == "breaching"
        for metric in watched(alarm)
    }
    assert loud == {("penstock_monitor_up", (("source", source),)) for source in ("broker", "ledger")}


def test_all_reasons_of_quarantine_are_summed_up(stack: Stack) -> None:
    reasons = {dict(identity(metric)[1]).get("reason") for metric in watched(stack.alarms["QuarantineHigh"])} - {None}
    assert reasons == set(METRICS["quarantined_lines_total"].values["reason"])


def test_thresholds_equal_those_of_the_settings(stack: Stack) -> None:
    assert stack.alarms["Late"]["Threshold"] == Settings.model_fields["alerts_lagging_after"].default
    assert stack.alarms["MonitorBlind"]["Namespace"] == Settings.model_fields["metrics_cloudwatch_namespace"].default
    assert stack.alarms["FirstTierNearEnd"]["Threshold"] == 14 * 86_400 / 2
