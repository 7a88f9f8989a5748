"""The Terraform of `penstock init --aws`: it parses, permissions are minimal, and its numbers are consistent.

If `terraform` is installed, it runs the checks that need no AWS provider.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.deploy.reading import read_hcl
from tests.deploy.tools import STARTER, terraform

from penstock.cli.init import TEMPLATES, VALUES, StarterNames, aws_files, wanted
from penstock.config import Settings

SOURCE, DLQ, DEAD = (f"${{aws_sqs_queue.{name}.arn}}" for name in ("source", "dlq", "dead"))
RECEIVES_LIMIT = 1_000  # SQS's own
RETENTION_LIMIT_SECONDS = 14 * 86_400  # as above
TAKE = {
    "sqs:ChangeMessageVisibility",
    "sqs:DeleteMessage",
    "sqs:GetQueueAttributes",
    "sqs:GetQueueUrl",
    "sqs:ReceiveMessage",
}
SEND = {"sqs:GetQueueAttributes", "sqs:GetQueueUrl", "sqs:SendMessage"}


def blocks(kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield all blocks of a kind in all files: the labels joined by dots, and the content."""
    for name in TEMPLATES:
        for block in read_hcl(STARTER / name).get(kind, []):
            for first, inner in block.items():
                if kind in ("resource", "data"):
                    yield from ((f"{first}.{second}", body) for second, body in inner.items())
                else:
                    yield first, inner


def resource(name: str) -> dict[str, Any]:
    return dict(blocks("resource"))[name]


def variable(name: str) -> Any:
    return dict(blocks("variable"))[name]["default"]


def statements(document: str) -> dict[str, dict[str, Any]]:
    """Return the statements of a policy by id, including those that depend on variables."""
    body = dict(blocks("data"))[f"aws_iam_policy_document.{document}"]
    dynamic = [content for one in body.get("dynamic", []) for content in one["statement"]["content"]]
    return {one["sid"]: one for one in (*body.get("statement", []), *dynamic)}


def sources(document: str) -> Any:
    """Return the policies that a policy includes."""
    return dict(blocks("data"))[f"aws_iam_policy_document.{document}"]["source_policy_documents"]


def granted(document: str) -> dict[str, tuple[set[str], Any]]:
    return {sid: (set(one["actions"]), one["resources"]) for sid, one in statements(document).items()}


def test_every_file_is_written() -> None:
    assert {path.name for path in STARTER.iterdir()} == set(TEMPLATES)


def test_all_references_resolve() -> None:
    text = "\n".join((STARTER / name).read_text(encoding="utf-8") for name in TEMPLATES)
    code = "\n".join(line.partition("#")[0] for line in text.splitlines())
    assert set(re.findall(r"\bvar\.(\w+)", code)) == {name for name, _ in blocks("variable")}
    local = {name for file in TEMPLATES for block in read_hcl(STARTER / file).get("locals", []) for name in block}
    assert set(re.findall(r"\blocal\.(\w+)", code)) == local
    resources = {name for name, _ in blocks("resource")}
    assert set(re.findall(r"(?<!data\.)\b(aws_\w+\.\w+)", code)) <= resources
    assert set(re.findall(r"\bdata\.(aws_\w+\.\w+)", code)) == {name for name, _ in blocks("data")}


def test_the_worker_has_only_the_permissions_that_it_needs() -> None:
    objects = '${[for prefix in var.prefixes : "${statement.value}/${prefix}*"]}'
    table = '${[for prefix in local.table_prefixes : "${statement.value}/${prefix}*"]}'
    assert granted("worker") == {
        "Work": (TAKE, [SOURCE]),
        "DeadLetters": (SEND, [DLQ]),
        "ReadObjects": ({"s3:GetObject", "s3:GetObjectVersion"}, objects),
        "ListObjects": ({"s3:ListBucket", "s3:ListBucketVersions"}, ["${statement.value}"]),
        "SeeBucket": ({"s3:GetBucketNotification", "s3:GetBucketVersioning"}, ["${statement.value}"]),
        "WriteTable": ({"s3:AbortMultipartUpload", "s3:DeleteObject", "s3:GetObject", "s3:PutObject"}, table),
        "ListTable": ({"s3:ListBucket"}, ["${statement.value}"]),
        "Keys": ({"kms:Decrypt", "kms:GenerateDataKey"}, "${statement.value}"),
    }


@pytest.mark.parametrize(
    ("sid", "values"),
    [
        # A listing also checks for an object whose name is the prefix itself.
        ("ListObjects", '${flatten([for prefix in var.prefixes : [trimsuffix(prefix, "/"), "${prefix}*"]])}'),
        ("ListTable", '${[for prefix in local.table_prefixes : "${prefix}*"]}'),
    ],
)
def test_a_bucket_is_listed_only_below_its_prefixes(sid: str, values: str) -> None:
    (condition,) = statements("worker")[sid]["condition"]
    assert (condition["test"], condition["variable"]) == ("StringLike", "s3:prefix")
    assert condition["values"] == values


def test_a_sender_may_only_send() -> None:
    assert granted("sender") == {"Send": (SEND, [SOURCE])}


def test_a_worker_measures_and_reads_dead_letters_only_if_it_replays_or_archives() -> None:
    assert granted("monitor") == {
        "Measure": ({"sqs:GetQueueAttributes", "sqs:GetQueueUrl"}, [SOURCE, DLQ, DEAD]),
        "Ages": ({"cloudwatch:GetMetricData"}, ["*"]),
    }
    assert granted("automatic_replay") == {
        "ReceiveDeadLetters": (TAKE, [DLQ]),
        "SendDeadLetters": (SEND, [SOURCE, DEAD]),
    }
    assert granted("archive_dead_letters") == {"ArchiveDeadLetters": (TAKE, [DLQ, DEAD])}
    assert re.findall(r"aws_iam_policy_document\.\w+|var\.\w+", str(sources("worker"))) == [
        "aws_iam_policy_document.monitor",
        "var.dead_letters_replay",
        "aws_iam_policy_document.automatic_replay",
        "var.dead_letters_archive",
        "aws_iam_policy_document.archive_dead_letters",
    ]
    assert variable("dead_letters_replay") is Settings.model_fields["dead_letters_replay"].default is False
    assert Settings.model_fields["dead_letters_archive"].default is None
    assert variable("dead_letters_archive") is False
    environment = dict(blocks("output"))["worker_environment"]["value"]
    assert environment["PENSTOCK_DEAD_LETTERS_REPLAY"] == "${tostring(var.dead_letters_replay)}"


def test_only_people_and_the_archive_receive_from_the_final_dlq() -> None:
    assert granted("replay") == {"ReceiveFinalDeadLetters": (TAKE, [DEAD])}
    assert sources("replay") == ["${data.aws_iam_policy_document.automatic_replay.json}"]
    assert resource("aws_iam_role_policy.replay")["role"] == "${aws_iam_role.replay[0].id}"
    for document in ("worker", "sender", "monitor", "automatic_replay"):
        for actions, resources in granted(document).values():
            assert "sqs:ReceiveMessage" not in actions or DEAD not in resources
    (trust,) = statements("replay_trust").values()
    (principals,) = trust["principals"]
    assert principals["type"] == "AWS"
    assert "*" not in str(principals["identifiers"])


def test_the_role_for_replay_is_created_only_on_request() -> None:
    assert variable("replay_role") is False
    for name in ("aws_iam_role.replay", "aws_iam_role_policy.replay"):
        assert resource(name)["count"] == "${var.replay_role ? 1 : 0}"
    output = dict(blocks("output"))["replay_role_arn"]["value"]
    assert output == "${var.replay_role ? aws_iam_role.replay[0].arn : null}"


@pytest.mark.parametrize(
    "document",
    [
        "worker",
        "sender",
        "monitor",
        "automatic_replay",
        "archive_dead_letters",
        "replay",
        "replay_trust",
        "bucket_sends",
    ],
)
def test_only_ages_have_a_wildcard_as_their_resource(document: str) -> None:
    for sid, one in statements(document).items():
        assert one.get("effect", "Allow") == "Allow"
        assert not [action for action in one["actions"] if "*" in action], sid
        if document != "replay_trust":
            assert (one["resources"] in ("*", ["*"])) is (sid == "Ages"), sid


def test_only_this_bucket_of_this_account_may_send() -> None:
    (one,) = statements("bucket_sends").values()
    assert (one["actions"], one["resources"]) == (["sqs:SendMessage"], [SOURCE])
    assert one["principals"] == [{"type": "Service", "identifiers": ["s3.amazonaws.com"]}]
    assert one["condition"] == [
        {"test": "ArnEquals", "variable": "aws:SourceArn", "values": ["${local.bucket_arn}"]},
        {
            "test": "StringEquals",
            "variable": "aws:SourceAccount",
            "values": ["${data.aws_caller_identity.current.account_id}"],
        },
    ]


def test_the_bucket_sends_notifications_for_each_prefix_once_the_queue_accepts_them() -> None:
    made = resource("aws_s3_bucket_notification.created")
    (dynamic,) = made["dynamic"]
    (content,) = dynamic["queue"]["content"]
    assert dynamic["queue"]["for_each"] == "${toset(var.prefixes)}"
    assert content == {"queue_arn": SOURCE, "events": ["s3:ObjectCreated:*"], "filter_prefix": "${queue.value}"}
    assert made["depends_on"] == ["${aws_sqs_queue_policy.bucket_sends}"]
    assert "var.manage_notification" in made["count"]


@pytest.mark.parametrize("name", ["source", "dlq", "dead"])
def test_every_queue_is_encrypted_and_polled_long(name: str) -> None:
    queue = resource(f"aws_sqs_queue.{name}")
    assert queue["sqs_managed_sse_enabled"] is True
    assert queue["receive_wait_time_seconds"] == 20
    assert queue["visibility_timeout_seconds"] == "${ceil(var.lease_seconds)}"
    assert queue["name"] == ("${var.queue}" if name == "source" else f"${{var.queue}}-{name}")


def test_dead_letters_are_kept_for_longer_than_messages() -> None:
    assert resource("aws_sqs_queue.source")["message_retention_seconds"] == "${var.retention_seconds}"
    for name in ("dlq", "dead"):
        kept = resource(f"aws_sqs_queue.{name}")["message_retention_seconds"]
        assert kept == "${var.dead_letter_retention_seconds}"
    assert variable("retention_seconds") < variable("dead_letter_retention_seconds") == RETENTION_LIMIT_SECONDS
    conditions = [one["condition"] for one in resource("aws_sqs_queue.source")["lifecycle"][0]["precondition"]]
    assert "${var.dead_letter_retention_seconds > var.retention_seconds}" in conditions


def test_max_receive_counts_leave_room_for_attempts_and_deploys() -> None:
    (local,) = read_hcl(STARTER / "queues.tf")["locals"]
    assert local["max_receive_count"] == "${var.max_attempts + var.give_backs}"
    assert variable("give_backs") >= 3
    assert local["dead_letter_max_receive_count"] == RECEIVES_LIMIT
    assert variable("max_attempts") == Settings.model_fields["objects_max_attempts"].default
    assert variable("max_attempts") + variable("give_backs") < RECEIVES_LIMIT / 10
    for queue, next_one, count in (
        ("source", "dlq", "local.max_receive_count"),
        ("dlq", "dead", "local.dead_letter_max_receive_count"),
    ):
        policy = resource(f"aws_sqs_queue.{queue}")["redrive_policy"]
        assert f"deadLetterTargetArn = aws_sqs_queue.{next_one}.arn" in policy
        assert re.search(rf"maxReceiveCount\s*= {count}", policy), policy
    assert "redrive_policy" not in resource("aws_sqs_queue.dead")


@pytest.mark.parametrize(("queue", "source_queue"), [("dlq", "source"), ("dead", "dlq")])
def test_no_other_queue_may_use_the_dlq(queue: str, source_queue: str) -> None:
    allowed = resource(f"aws_sqs_queue_redrive_allow_policy.{queue}")
    assert allowed["queue_url"] == f"${{aws_sqs_queue.{queue}.id}}"
    assert "byQueue" in allowed["redrive_allow_policy"]
    assert f"[aws_sqs_queue.{source_queue}.arn]" in allowed["redrive_allow_policy"]


def test_the_values_file_has_the_names_and_the_settings() -> None:
    names = wanted(queue="orders", bucket="landing-zone", prefixes=["clicks", "a/b/"], table="s3://lake/t/clicks/")
    settings = Settings.model_construct(
        objects_max_attempts=7,
        worker_lease=45.0,
        worker_stop_timeout=120.0,
        dead_letters_replay=True,
        dead_letters_archive="s3://lake/dead",
    )
    assert json.loads(aws_files(names, settings)[VALUES]) == {
        "queue": "orders",
        "bucket": "landing-zone",
        "prefixes": ["clicks/", "a/b/"],
        "table": {"bucket": "lake", "prefix": "t/clicks"},
        "max_attempts": 7,
        "lease_seconds": 45.0,
        "stop_timeout_seconds": 120.0,
        "dead_letters_replay": True,
        "dead_letters_archive": True,
    }


@pytest.mark.parametrize("names", [StarterNames(queue="q", bucket="b-b", prefixes=("a/",), table=None)])
def test_every_value_has_a_variable(names: StarterNames) -> None:
    settings = Settings.model_construct(aws_region="eu-west-1")
    values = json.loads(aws_files(names, settings)[VALUES])
    assert (values["region"], values["dead_letters_archive"]) == ("eu-west-1", False)
    assert set(values) <= {name for name, _ in blocks("variable")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with the variables and numbers, without anything that needs a provider."""
    shutil.copy(STARTER / "variables.tf", tmp_path)
    numbers = re.search(r"^locals \{.*?^\}", (STARTER / "queues.tf").read_text(), re.DOTALL | re.MULTILINE)
    assert numbers is not None
    (tmp_path / "numbers.tf").write_text(numbers.group())
    return tmp_path


def test_terraform_fmt_finds_nothing_in_the_starter(folder: Path) -> None:
    for name in TEMPLATES:
        shutil.copy(STARTER / name, folder)
    (folder / "numbers.tf").unlink()
    done = terraform(folder, "fmt", "-check", "-diff")
    assert done.returncode == 0, done.stdout + done.stderr


def test_terraform_accepts_the_values_and_computes_the_same_sums(folder: Path) -> None:
    names = wanted(queue="orders", bucket="landing", prefixes=["a", "b/c"], table="s3://lake/clicks")
    settings = Settings.model_construct(objects_max_attempts=7, worker_lease=45.5)
    (folder / VALUES).write_text(aws_files(names, settings)[VALUES])
    done = terraform(
        folder,
        "console",
        stdin="jsonencode([local.max_receive_count, ceil(var.lease_seconds), var.prefixes, var.table.prefix])",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(json.loads(done.stdout))
    assert found == [7 + variable("give_backs"), 46, ["a/", "b/c/"], "clicks"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("queue", "orders.fifo"),
        ("prefixes", ["no-slash"]),
        ("prefixes", ["a*/"]),
        ("give_backs", 2),
        ("give_backs", 3.5),
        ("table", {"bucket": "lake", "prefix": "t/"}),
    ],
)
def test_terraform_refuses_the_values_that_init_refuses(folder: Path, name: str, value: object) -> None:
    (folder / VALUES).write_text(json.dumps({name: value}))
    done = terraform(folder, "plan", "-no-color")
    assert done.returncode != 0
    assert "Invalid value for variable" in done.stderr
    assert f'{VALUES} line 1:\n   1: {{"{name}"' in done.stderr
