"""The CloudFormation template: cfn-lint finds nothing, and it creates the same as the Terraform."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from cfnlint.api import lint_file
from tests.deploy.reading import read_cloudformation, read_hcl
from tests.deploy.tools import DEPLOY

TEMPLATE = DEPLOY / "cloudformation/penstock.yaml"
TERRAFORM = DEPLOY / "terraform"
QUEUES = {"Source": "source", "FirstTier": "dlq", "SecondTier": "dead"}
POLICIES = ("AWS::IAM::ManagedPolicy", "AWS::IAM::Policy", "AWS::IAM::RolePolicy", "AWS::SQS::QueuePolicy")
RETENTION_LIMIT_SECONDS = 14 * 86_400  # SQS's own
RECEIVES_LIMIT = 1_000  # as above


@pytest.fixture(scope="module")
def template() -> dict[str, Any]:
    return read_cloudformation(TEMPLATE)


def resource(template: dict[str, Any], name: str) -> dict[str, Any]:
    properties: dict[str, Any] = template["Resources"][name]["Properties"]
    return properties


def listed(one: Any) -> list[Any]:
    return one if isinstance(one, list) else [one]


def queue_of(arn: Any) -> str:
    """Return the Terraform name of the queue of an ARN; for other resources `elsewhere`."""
    if isinstance(arn, dict) and "Fn::GetAtt" in arn and arn["Fn::GetAtt"][0] in QUEUES:
        return QUEUES[arn["Fn::GetAtt"][0]]
    named = re.fullmatch(r"\$\{aws_sqs_queue\.(\w+)\.arn\}", str(arn))
    return named[1] if named else "elsewhere"


Grants = Mapping[str, tuple[frozenset[str], frozenset[str]]]


def granted(template: dict[str, Any]) -> Grants:
    """Return the actions and queues of each statement in all policies, by statement id."""
    found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
    for one in template["Resources"].values():
        properties = one["Properties"]
        documents = [each["PolicyDocument"] for each in properties.get("Policies", [])]
        if one["Type"] in POLICIES:
            documents.append(properties["PolicyDocument"])
        for statement in (each for document in documents for each in document["Statement"]):
            assert (statement["Effect"], statement["Sid"] in found) == ("Allow", False)
            queues = frozenset(map(queue_of, listed(statement["Resource"])))
            found[statement["Sid"]] = (frozenset(listed(statement["Action"])), queues)
    return found


def granted_by_terraform() -> Grants:
    found: dict[str, tuple[frozenset[str], frozenset[str]]] = {}
    for file in ("policies.tf", "bucket.tf", "roles.tf"):
        for block in read_hcl(TERRAFORM / file)["data"]:
            for body in block["aws_iam_policy_document"].values():
                dynamic = [one["statement"]["content"] for one in body.get("dynamic", [])]
                contents = [each for one in dynamic for each in listed(one)]
                for one in (*body.get("statement", []), *contents):
                    queues = frozenset(map(queue_of, listed(one.get("resources", "elsewhere"))))
                    found[one["sid"]] = (frozenset(one["actions"]), queues)
    return found


def test_cfn_lint_finds_nothing() -> None:
    assert [f"{match.rule.id} line {match.linenumber}: {match.message}" for match in lint_file(TEMPLATE)] == []


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("SqsManagedSseEnabled:", "SqsManagedSse:"),
        ("!GetAtt SecondTier.Arn", "!GetAtt ThirdTier.Arn"),
        ("DependsOn: BucketSends", "DependsOn: Sends"),
        ("Condition: HasTable", "Condition: HasTables"),
    ],
)
def test_cfn_lint_finds_mistakes(tmp_path: Path, right: str, wrong: str) -> None:
    text = TEMPLATE.read_text()
    assert right in text
    spoilt = tmp_path / "template.yaml"
    spoilt.write_text(text.replace(right, wrong))
    assert lint_file(spoilt)


def test_the_permissions_equal_those_of_the_terraform(template: dict[str, Any]) -> None:
    here, there = granted(template), granted_by_terraform()
    # Only the Terraform has statements for metrics, people who replay, and pods.
    assert there.keys() - here.keys() == {"Metrics", "Pods", "TakeOn", "Tasks"}
    assert here == {sid: there[sid] for sid in here}


def test_only_actions_without_resources_have_a_wildcard(template: dict[str, Any]) -> None:
    for sid, (actions, _) in granted(template).items():
        assert not [action for action in actions if "*" in action], sid
    assert TEMPLATE.read_text().count('Resource: ["*"]') == 2  # cloudwatch:GetMetricData, sqs:ListQueues


def test_only_tasks_of_this_account_may_assume_the_roles(template: dict[str, Any]) -> None:
    roles = {name for name, one in template["Resources"].items() if one["Type"] == "AWS::IAM::Role"}
    assert roles == {"WorkerRole", "OperatorRole"}
    for name in roles:
        (trust,) = resource(template, name)["AssumeRolePolicyDocument"]["Statement"]
        assert trust["Principal"] == {"Service": "ecs-tasks.amazonaws.com"}
        assert trust["Condition"]["StringEquals"] == {"aws:SourceAccount": {"Ref": "AWS::AccountId"}}


def test_the_worker_measures_and_replays_if_asked_and_the_operator_does_both(template: dict[str, Any]) -> None:
    shared = {
        name: one["Properties"]["Roles"]
        for name, one in template["Resources"].items()
        if one["Type"] == "AWS::IAM::Policy"
    }
    worker, operator = {"Ref": "WorkerRole"}, {"Ref": "OperatorRole"}
    assert shared == {
        "Measures": [worker, operator],
        "Replays": {"Fn::If": ["WorkerReplays", [worker, operator], [operator]]},
    }
    assert template["Conditions"]["WorkerReplays"] == {"Fn::Equals": [{"Ref": "DeadLettersReplay"}, "true"]}
    assert template["Parameters"]["DeadLettersReplay"]["Default"] == "false"


def test_the_worker_takes_expiring_dead_letters_if_asked(template: dict[str, Any]) -> None:
    made = template["Resources"]["Archives"]
    assert (made["Condition"], made["Properties"]["RoleName"]) == ("WorkerArchives", {"Ref": "WorkerRole"})
    assert granted(template)["ArchiveDeadLetters"][1] == {"dlq", "dead"}
    assert template["Conditions"]["WorkerArchives"] == {"Fn::Equals": [{"Ref": "DeadLettersArchive"}, "true"]}
    assert template["Parameters"]["DeadLettersArchive"]["Default"] == "false"


def test_only_this_bucket_of_this_account_may_send(template: dict[str, Any]) -> None:
    (one,) = resource(template, "BucketSends")["PolicyDocument"]["Statement"]
    assert one["Principal"] == {"Service": "s3.amazonaws.com"}
    assert one["Condition"] == {
        "ArnEquals": {"aws:SourceArn": {"Fn::Sub": "arn:${AWS::Partition}:s3:::${BucketName}"}},
        "StringEquals": {"aws:SourceAccount": {"Ref": "AWS::AccountId"}},
    }


def test_the_bucket_sends_the_same_notifications_as_with_terraform(template: dict[str, Any]) -> None:
    (one,) = resource(template, "Bucket")["NotificationConfiguration"]["QueueConfigurations"]
    assert one["Event"] == "s3:ObjectCreated:*"
    assert template["Resources"]["Bucket"]["DependsOn"] == "BucketSends"
    text, names = template["Outputs"]["NotificationConfiguration"]["Value"]["Fn::Sub"]
    (by_hand,) = json.loads(text)["QueueConfigurations"]
    assert (by_hand["QueueArn"], by_hand["Events"]) == ("${Source.Arn}", [one["Event"]])
    assert names == {"Folder": one["Filter"]["S3Key"]["Rules"][0]["Value"]}


def test_max_receive_counts_leave_room_for_attempts_and_deploys(
    template: dict[str, Any],
) -> None:
    variables = {name: one for block in read_hcl(TERRAFORM / "variables.tf")["variable"] for name, one in block.items()}
    parameter = template["Parameters"]["MaxReceiveCount"]
    assert parameter["Default"] == variables["max_attempts"]["default"] + variables["give_backs"]["default"]
    assert parameter["MinValue"] == variables["max_attempts"]["default"] + 3  # the least that give_backs may be
    assert parameter["MaxValue"] < RECEIVES_LIMIT
    redrive = {name: resource(template, name).get("RedrivePolicy") for name in QUEUES}
    assert redrive == {
        "Source": {
            "deadLetterTargetArn": {"Fn::GetAtt": ["FirstTier", "Arn"]},
            "maxReceiveCount": {"Ref": "MaxReceiveCount"},
        },
        "FirstTier": {
            "deadLetterTargetArn": {"Fn::GetAtt": ["SecondTier", "Arn"]},
            "maxReceiveCount": RECEIVES_LIMIT,
        },
        "SecondTier": None,
    }


def test_dead_letters_are_kept_for_longer_than_messages_and_everything_outlives_the_stack(
    template: dict[str, Any],
) -> None:
    parameter = template["Parameters"]["RetentionSeconds"]
    assert parameter["Default"] < parameter["MaxValue"] < RETENTION_LIMIT_SECONDS
    for name, suffix in {"FirstTier": "-dlq", "SecondTier": "-dead"}.items():
        queue = resource(template, name)
        assert queue["MessageRetentionPeriod"] == RETENTION_LIMIT_SECONDS
        assert queue["QueueName"] == {"Fn::Sub": f"${{QueueName}}{suffix}"}
        source_suffix = "" if name == "FirstTier" else "-dlq"
        arn = f"arn:${{AWS::Partition}}:sqs:${{AWS::Region}}:${{AWS::AccountId}}:${{QueueName}}{source_suffix}"
        assert queue["RedriveAllowPolicy"] == {"redrivePermission": "byQueue", "sourceQueueArns": [{"Fn::Sub": arn}]}
    for name in (*QUEUES, "Bucket"):
        made = template["Resources"][name]
        assert (made["DeletionPolicy"], made["UpdateReplacePolicy"]) == ("Retain", "Retain")


def test_numbers_and_queue_settings_equal_those_of_the_terraform(template: dict[str, Any]) -> None:
    variables = {name: one for block in read_hcl(TERRAFORM / "variables.tf")["variable"] for name, one in block.items()}
    for parameter, variable in {"LeaseSeconds": "lease_seconds", "RetentionSeconds": "retention_seconds"}.items():
        assert template["Parameters"][parameter]["Default"] == variables[variable]["default"]
    made = {
        name: body
        for block in read_hcl(TERRAFORM / "queues.tf")["resource"]
        for name, body in block.get("aws_sqs_queue", {}).items()
    }
    for name, same in QUEUES.items():
        queue = resource(template, name)
        assert queue["SqsManagedSseEnabled"] is made[same]["sqs_managed_sse_enabled"] is True
        assert queue["ReceiveMessageWaitTimeSeconds"] == made[same]["receive_wait_time_seconds"]
        assert queue["VisibilityTimeout"] == {"Ref": "LeaseSeconds"}


def test_the_scaling_equals_that_of_the_terraform(template: dict[str, Any]) -> None:
    file = read_hcl(TERRAFORM / "scaling.tf")
    made = {name: body for block in file["resource"] for kind in block.values() for name, body in [*kind.items()]}
    [policy] = [
        one["aws_appautoscaling_policy"]["worker"] for one in file["resource"] if "aws_appautoscaling_policy" in one
    ]
    assert made
    [tracking] = listed(policy["target_tracking_scaling_policy_configuration"])
    [specification] = listed(tracking["customized_metric_specification"])
    there = resource(template, "ScalingPolicy")["TargetTrackingScalingPolicyConfiguration"]
    assert (there["ScaleInCooldown"], there["ScaleOutCooldown"]) == (
        tracking["scale_in_cooldown"],
        tracking["scale_out_cooldown"],
    )
    assert [_metric_of_terraform(one) for one in specification["metrics"]] == [
        _metric(one) for one in there["CustomizedMetricSpecification"]["Metrics"]
    ]
    given = {one["Id"] for one in there["CustomizedMetricSpecification"]["Metrics"] if "MetricStat" in one}
    assert set(re.findall(r"[a-z_]+", there["CustomizedMetricSpecification"]["Metrics"][-1]["Expression"])) == given
    defaults = file["variable"][0]["scaling"]["type"]
    for parameter, field in {
        "TasksMin": "tasks_min",
        "TasksMax": "tasks_max",
        "MessagesPerTask": "messages_per_task",
    }.items():
        assert re.search(
            rf"{field}\W.*?optional\(number, {template['Parameters'][parameter]['Default']}\)", str(defaults)
        )


def _metric(one: Mapping[str, Any]) -> tuple[object, ...]:
    stat = one.get("MetricStat")
    if stat is None:
        return one["Id"], one["ReturnData"], one["Expression"]
    metric = stat["Metric"]
    names = [dimension["Name"] for dimension in metric["Dimensions"]]
    return one["Id"], one["ReturnData"], stat["Stat"], metric["Namespace"], metric["MetricName"], names


def _metric_of_terraform(one: Mapping[str, Any]) -> tuple[object, ...]:
    if "metric_stat" not in one:
        return one["id"], one["return_data"], one["expression"]
    [stat] = listed(one["metric_stat"])
    [metric] = listed(stat["metric"])
    names = [dimension["name"] for dimension in listed(metric["dimensions"])]
    return one["id"], one["return_data"], stat["stat"], metric["namespace"], metric["metric_name"], names
