"""The alarms of the Terraform module are those of the CloudFormation template."""

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.alarm_stack import ALL, LEAST, PAGE_TOPIC, WARN_TOPIC, Stack, identity, read_template
from tests.deploy.tools import DEPLOY, terraform

MODULE = DEPLOY / "terraform"


@pytest.fixture
def numbers(tmp_path: Path) -> Path:
    """Return a folder with the variables and locals, without anything that needs a provider."""
    text = (MODULE / "alarms.tf").read_text(encoding="utf-8")
    text = text[: text.index('resource "')]
    text = text.replace("aws_sqs_queue.source.name", "var.queue")
    text = re.sub(r"aws_sqs_queue\.(\w+)\.name", r'"${var.queue}-\1"', text)
    (tmp_path / "alarms.tf").write_text(text, encoding="utf-8")
    shutil.copy(MODULE / "variables.tf", tmp_path)
    return tmp_path


def in_terraform(folder: Path, **alarms: object) -> Mapping[str, Mapping[str, Any]]:
    """Return its alarms in the form of CloudFormation."""
    (folder / "terraform.tfvars.json").write_text(json.dumps({"queue": "orders", "alarms": alarms}))
    done = terraform(folder, "console", stdin="jsonencode([local.metric_alarms, local.math_alarms])")
    assert done.returncode == 0, done.stderr
    simple, sums = json.loads(json.loads(done.stdout))
    return {
        **{name: as_cloudformation(one) for name, one in simple.items() if one["wanted"]},
        **{name: as_cloudformation(one) for name, one in sums.items() if one["wanted"]},
    }


def as_cloudformation(alarm: Mapping[str, Any]) -> Mapping[str, Any]:
    judged = {
        "AlarmName": f"orders {alarm['name']}",
        "AlarmDescription": alarm["says"],
        "EvaluationPeriods": alarm["periods"],
        "Threshold": alarm["threshold"],
        "ComparisonOperator": alarm.get("comparison", "GreaterThanThreshold"),
        "TreatMissingData": alarm.get("missing", "notBreaching"),
    }
    if "metric" in alarm:
        one = {"name": alarm["metric"], "dimensions": alarm["dimensions"], "stat": alarm["statistic"]}
        return {**judged, "watched": [query_of(alarm, one)], "expressions": {}}
    queries = [query_of(alarm, one, id_=id_) for id_, one in sorted(alarm["metrics"].items())]
    return {**judged, "watched": queries, "expressions": alarm["expression"]}


def query_of(alarm: Mapping[str, Any], metric: Mapping[str, Any], *, id_: str = "") -> Sequence[object]:
    dimensions = sorted(metric["dimensions"].items())
    namespace = metric.get("namespace", alarm["namespace"])
    return [id_, namespace, metric["name"], dimensions, metric["stat"], alarm["period"]]


def comparable(alarm: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an alarm of the template in the same form."""
    judged = (
        "AlarmName",
        "AlarmDescription",
        "Threshold",
        "EvaluationPeriods",
        "ComparisonOperator",
        "TreatMissingData",
    )
    queries = [("", alarm, alarm["Statistic"], alarm["Period"])] if "MetricName" in alarm else []
    for query in alarm.get("Metrics", ()):
        if "MetricStat" in query:
            stat = query["MetricStat"]
            queries.append((query["Id"], stat["Metric"], stat["Stat"], stat["Period"]))
    return {
        **{name: alarm[name] for name in judged},
        "watched": [
            [id_, metric["Namespace"], metric["MetricName"], sorted(identity(metric)[1]), stat, period]
            for id_, metric, stat, period in sorted(queries, key=lambda one: one[0])
        ],
        "expressions": {q["Id"]: q["Expression"] for q in alarm.get("Metrics", ()) if "Expression" in q},
    }


@pytest.mark.parametrize(
    ("given", "alarms"),
    [
        (ALL, {"log_group": "/ecs/orders", "own_metrics": True, "pipeline": "clicks"}),
        (LEAST, {}),
        ({**LEAST, "LateAfterSeconds": 60, "LogGroup": "/x"}, {"late_after_seconds": 60, "log_group": "/x"}),
        ({**LEAST, "OwnMetrics": "true"}, {"own_metrics": True}),
    ],
)
def test_terraform_makes_the_same_alarms(numbers: Path, given: Mapping[str, Any], alarms: Mapping[str, Any]) -> None:
    expected = {name: comparable(alarm) for name, alarm in Stack(read_template(), given).alarms.items()}
    found = in_terraform(numbers, page_topic=PAGE_TOPIC, warn_topic=WARN_TOPIC, **alarms)
    assert json.loads(json.dumps(found)) == json.loads(json.dumps(expected))


def test_terraform_plans_one_resource_per_alarm_and_none_without_a_topic(numbers: Path) -> None:
    """The resources need AWS's provider; their `for_each` does not."""
    resources = (MODULE / "alarms.tf").read_text(encoding="utf-8")
    each = re.findall(r"^  for_each = (\{.*?\})$(?!\n  \})", resources, re.MULTILINE | re.DOTALL)
    assert len(each) == 3
    held = "".join(
        f'resource "terraform_data" "r{at}" {{\n  for_each = {one}\n  input = each.value\n}}\n'
        for at, one in enumerate(each)
    )
    (numbers / "resources.tf").write_text(held, encoding="utf-8")
    topic = {"page_topic": PAGE_TOPIC}
    for alarms, count in (({}, 0), (topic, 6), ({**topic, "log_group": "/x"}, 10)):
        (numbers / "terraform.tfvars.json").write_text(json.dumps({"queue": "orders", "alarms": alarms}))
        assert terraform(numbers, "init", "-input=false").returncode == 0
        done = terraform(numbers, "plan", "-input=false", "-no-color")
        assert done.returncode == 0, done.stderr
        assert len(re.findall(r"will be created", done.stdout)) == count
