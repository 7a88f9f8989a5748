"""The template of alarms with its parameters filled in, as CloudFormation would do it."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tests.deploy.reading import read_cloudformation
from tests.deploy.tools import DEPLOY

TEMPLATE = DEPLOY / "cloudwatch/alarms.yaml"
PAGE_TOPIC, WARN_TOPIC = "arn:aws:sns:eu-west-1:123456789012:page", "arn:aws:sns:eu-west-1:123456789012:warn"
ALL = {
    "QueueName": "orders",
    "LogGroup": "/ecs/orders",
    "OwnMetrics": "true",
    "Pipeline": "clicks",
    "PageTopic": PAGE_TOPIC,
    "WarnTopic": WARN_TOPIC,
}
LEAST = {"QueueName": "orders", "PageTopic": PAGE_TOPIC}


class Stack:
    """The template with its parameters: conditions, references and substitutions are resolved."""

    def __init__(self, template: Mapping[str, Any], given: Mapping[str, str]) -> None:
        self._template = template
        defaults = {name: one.get("Default") for name, one in template["Parameters"].items()}
        self._values = {**defaults, **given}

    def of_type(self, kind: str) -> dict[str, dict[str, Any]]:
        return {
            name: self._resolved(one["Properties"])
            for name, one in self._template["Resources"].items()
            if one["Type"] == kind and ("Condition" not in one or self._holds({"Condition": one["Condition"]}))
        }

    @property
    def alarms(self) -> dict[str, dict[str, Any]]:
        return self.of_type("AWS::CloudWatch::Alarm")

    def _holds(self, condition: Mapping[str, Any]) -> bool:
        ((function, inner),) = condition.items()
        if function == "Condition":
            return self._holds(self._template["Conditions"][inner])
        if function == "Fn::Not":
            return not self._holds(inner[0])
        if function == "Fn::And":
            return all(self._holds(one) for one in inner)
        assert function == "Fn::Equals"
        left, right = (self._resolved(one) for one in inner)
        return bool(left == right)

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._resolved(one) for one in value]
        if not isinstance(value, dict):
            return value
        if value.keys() == {"Ref"}:
            return self._values[value["Ref"]]
        if value.keys() == {"Fn::Sub"}:
            return re.sub(r"\$\{(\w+)\}", lambda found: str(self._values[found[1]]), value["Fn::Sub"])
        if value.keys() == {"Fn::If"}:
            condition, yes, no = value["Fn::If"]
            return self._resolved(yes if self._holds({"Condition": condition}) else no)
        return {name: self._resolved(inner) for name, inner in value.items()}


def read_template() -> Mapping[str, Any]:
    return read_cloudformation(TEMPLATE)


def watched(alarm: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the namespace, name and dimensions of each metric."""
    if "MetricName" in alarm:
        yield alarm
    for query in alarm.get("Metrics", ()):
        if "MetricStat" in query:
            yield query["MetricStat"]["Metric"]


def identity(metric: Mapping[str, Any]) -> tuple[str, tuple[tuple[str, str], ...]]:
    return metric["MetricName"], tuple((one["Name"], one["Value"]) for one in metric.get("Dimensions", ()))
