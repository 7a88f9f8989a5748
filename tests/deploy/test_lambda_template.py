"""The template of the replay function: cfn-lint finds nothing, permissions are minimal, and the function reads its
variables."""

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from cfnlint.api import lint_file
from tests.deploy.reading import read_cloudformation
from tests.deploy.tools import DEPLOY

from penstock.config import Settings
from penstock.dead_letters.sample import sample_settings

FOLDER = DEPLOY / "lambda"
TEMPLATE = FOLDER / "template.yaml"
RETENTION_LIMIT_SECONDS = 14 * 86_400  # SQS's own
RECEIVES_LIMIT = 1_000  # as above
ARN = "arn:${AWS::Partition}:sqs:${AWS::Region}:${AWS::AccountId}:${QueueName}"
FIFO_END = {"Fn::If": ["IsFifo", ".fifo", ""]}


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    return read_cloudformation(TEMPLATE)


def resource(template: dict[str, Any], name: str) -> dict[str, Any]:
    properties: dict[str, Any] = template["Resources"][name]["Properties"]
    return properties


def queue_arn(suffix: str = "") -> dict[str, Any]:
    return {"Fn::Sub": [f"{ARN}{suffix}${{End}}", {"End": FIFO_END}]}


def default(template: dict[str, Any], parameter: str) -> Any:
    return template["Parameters"][parameter]["Default"]


def test_cfn_lint_finds_nothing() -> None:
    assert [f"{match.rule.id} line {match.linenumber}: {match.message}" for match in lint_file(TEMPLATE)] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("[ReportBatchItemFailures]", "[ReportFailures]"),
        ("SqsManagedSseEnabled:", "SqsManagedSse:"),
        ("python3.13", "python3.6"),
        ("!GetAtt Role.Arn", "!GetAtt Roll.Arn"),
    ],
)
def test_cfn_lint_finds_mistakes(tmp_path: Path, right: str, wrong: str) -> None:
    text = TEMPLATE.read_text()
    assert right in text
    spoilt = tmp_path / "template.yaml"
    spoilt.write_text(text.replace(right, wrong))
    assert lint_file(spoilt)


def test_the_function_has_only_the_permissions_that_it_needs(template: dict[str, Any]) -> None:
    role = resource(template, "Role")
    assert "ManagedPolicyArns" not in role
    (policy,) = role["Policies"]
    statements = {
        one["Sid"]: (one["Effect"], one["Action"], one["Resource"]) for one in policy["PolicyDocument"]["Statement"]
    }
    take = ["sqs:ChangeMessageVisibility", "sqs:DeleteMessage", "sqs:GetQueueAttributes", "sqs:ReceiveMessage"]
    assert statements == {
        "TakeLetters": ("Allow", take, queue_arn("-dlq")),
        "SendLetters": ("Allow", "sqs:SendMessage", [queue_arn(), queue_arn("-dead")]),
        "Log": ("Allow", ["logs:CreateLogStream", "logs:PutLogEvents"], {"Fn::GetAtt": ["Log", "Arn"]}),
    }
    assert "Policies" not in resource(template, "Replay")  # SAM would create a second role for them
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    assert trust["Principal"] == {"Service": "lambda.amazonaws.com"}


def test_messages_that_the_function_reports_as_failed_stay(template: dict[str, Any]) -> None:
    mapping = resource(template, "Letters")
    assert mapping["FunctionName"] == {"Ref": "Replay"}
    assert mapping["FunctionResponseTypes"] == ["ReportBatchItemFailures"]
    first = {"Fn::GetAtt": ["FirstTier", "Arn"]}
    assert mapping["EventSourceArn"] == {"Fn::If": ["MakesTiers", first, queue_arn("-dlq")]}
    assert mapping["BatchSize"] <= 10  # FIFO allows no more, and more would need a batching window
    assert mapping["ScalingConfig"] == {"MaximumConcurrency": {"Ref": "Concurrency"}}
    assert resource(template, "Replay")["ReservedConcurrentExecutions"] == {"Ref": "Concurrency"}
    assert template["Parameters"]["Concurrency"]["MinValue"] == 2  # the least that AWS accepts for an event source


def test_the_dlq_is_not_skipped_and_has_a_longer_retention_than_the_queue(template: dict[str, Any]) -> None:
    first, second = resource(template, "FirstTier"), resource(template, "SecondTier")
    assert first["RedrivePolicy"] == {
        "deadLetterTargetArn": {"Fn::GetAtt": ["SecondTier", "Arn"]},
        "maxReceiveCount": RECEIVES_LIMIT,
    }
    assert "RedrivePolicy" not in second
    for tier in (first, second):
        assert tier["MessageRetentionPeriod"] == RETENTION_LIMIT_SECONDS
        assert tier["SqsManagedSseEnabled"] is True
    source = template["Parameters"]["MessageRetentionPeriod"]
    assert source["Default"] < source["MaxValue"] < RETENTION_LIMIT_SECONDS
    assert resource(template, "Replay")["Timeout"] * 6 <= first["VisibilityTimeout"]


@pytest.mark.parametrize(("tier", "source_suffix"), [("FirstTier", ""), ("SecondTier", "-dlq")])
def test_no_other_queue_may_use_the_dlq(template: dict[str, Any], tier: str, source_suffix: str) -> None:
    allowed = resource(template, tier)["RedriveAllowPolicy"]
    assert allowed == {"redrivePermission": "byQueue", "sourceQueueArns": [queue_arn(source_suffix)]}


@pytest.mark.parametrize("tier", ["FirstTier", "SecondTier"])
def test_the_dlqs_outlive_the_stack(template: dict[str, Any], tier: str) -> None:
    made = template["Resources"][tier]
    assert (made["DeletionPolicy"], made["UpdateReplacePolicy"]) == ("Retain", "Retain")
    assert made["Condition"] == "MakesTiers"


def test_the_dlqs_have_the_names_that_workers_expect(template: dict[str, Any]) -> None:
    for tier, suffix in (("FirstTier", "-dlq"), ("SecondTier", "-dead")):
        fifo, standard = (f"${{QueueName}}{suffix}{end}" for end in (".fifo", ""))
        assert resource(template, tier)["QueueName"] == {"Fn::If": ["IsFifo", {"Fn::Sub": fifo}, {"Fn::Sub": standard}]}


def test_the_defaults_equal_those_of_the_sample_and_of_penstock(template: dict[str, Any]) -> None:
    assert (default(template, "BackoffRate"), default(template, "MaxAttempts")) == (2, 3)
    assert Settings.model_fields["dead_letters_replay_base"].default == default(template, "BackoffRate")
    assert Settings.model_fields["dead_letters_max_replays"].default == default(template, "MaxAttempts")
    assert set(template["Parameters"]["LogLevel"]["AllowedValues"]) == {"debug", "info", "warning", "error"}


def test_the_function_reads_the_variables_of_the_template(template: dict[str, Any]) -> None:
    variables = resource(template, "Replay")["Environment"]["Variables"]
    given = {name: str(default(template, value["Ref"])) for name, value in variables.items() if "Ref" in value} | {
        "SQS_MAIN_URL": "https://sqs.eu-west-1.amazonaws.com/123456789012/orders"
    }
    read = sample_settings(given)
    assert (read.replays_max, read.base_seconds, read.cap_seconds) == (3, 2.0, 345_600.0)
    assert read.queue == given["SQS_MAIN_URL"]
    ours = {name.removeprefix("PENSTOCK_").lower() for name in variables if name.startswith("PENSTOCK_")}
    assert ours <= Settings.model_fields.keys()
    assert variables["SQS_MAIN_URL"]["Fn::Sub"][0] == (
        "https://sqs.${AWS::Region}.${AWS::URLSuffix}/${AWS::AccountId}/${QueueName}${End}"
    )


def test_the_handler_exists_and_its_package_is_required(template: dict[str, Any]) -> None:
    function = resource(template, "Replay")
    module, _, name = function["Handler"].rpartition(".")
    assert callable(getattr(importlib.import_module(module), name))
    lines = (FOLDER / function["CodeUri"] / "requirements.txt").read_text().splitlines()
    assert [line for line in lines if not line.startswith("#")] == ["penstock[aws]"]


def test_existing_dlqs_may_invoke_the_function(template: dict[str, Any]) -> None:
    """AWS rejects a queue whose visibility timeout is shorter than the function's timeout."""
    function = template["Resources"]["Replay"]["Properties"]
    assert function["Timeout"] <= Settings.model_fields["worker_lease"].default
    for tier in ("FirstTier", "SecondTier"):
        assert template["Resources"][tier]["Properties"]["VisibilityTimeout"] == 6 * function["Timeout"]


def test_the_redrive_policy_for_the_queue_is_json(template: dict[str, Any]) -> None:
    text, names = template["Outputs"]["RedrivePolicy"]["Value"]["Fn::Sub"]
    policy = json.loads(text.replace("${End}", ""))
    assert policy["deadLetterTargetArn"] == f"{ARN}-dlq"
    assert policy["maxReceiveCount"] == 20  # as in `penstock init --aws`: four attempts and sixteen releases
    assert names == {"End": FIFO_END}
