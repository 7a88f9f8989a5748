"""`penstock doctor` on queues and buckets in AWS."""

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.cli.conftest import Call
from tests.services.aws_server import REGION, AwsServer
from tests.services.s3_stub import S3Stub, refusal

from penstock.app.paths import LEDGER_FILE, table_paths
from penstock.app.scope import Scope
from penstock.brokers.sqs.facts import inspecting
from penstock.brokers.sqs.queues import SqsQueues
from penstock.config import Settings
from penstock.errors import ConfigurationError, TemporaryError
from penstock.ledger import Ledger
from penstock.messaging.clock import SystemClock
from penstock.objects.s3_facts import try_table
from penstock.operations.doctor import checks
from penstock.operations.doctor.aws import clocks, resources_of
from penstock.operations.doctor.findings import FindingLevel
from penstock.storage.address import S3Address

FAILED, CHECK_FOUND_PROBLEMS = "failed", 3
USAGE, CONFIGURATION = 2, 78
DAY = 86_400
BUCKET, TABLES = "landing", "lake"
APP = """
from penstock import App, DeltaSink, ObjectSource

app = App.from_config()
app.pipeline(
    "clicks",
    source=ObjectSource("s3://landing/in", queue="clicks", schema="id long"),
    sink=DeltaSink("s3://lake/tables/clicks"),
)

@app.handler("orders", max_attempts=6)
def work(message): ...
"""


@pytest.fixture
def here(tmp_path: Path, moto: AwsServer, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up an app whose queues, source and table are in AWS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "_spark_checks", lambda *_: ())
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_BROKER", f"sqs://{REGION}")
    monkeypatch.setenv("PENSTOCK_ONE_HOST", "true")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cloudy.py").write_text(APP)
    monkeypatch.delitem(sys.modules, "cloudy", raising=False)
    return tmp_path


def create_queue(moto: AwsServer, name: str, *, receives: int = 20, dlq_days: int = 14, **more: str) -> str:
    """Create a queue, its DLQ, and a policy by which the bucket may send; return its URL."""
    sqs = moto.client("sqs")
    dlq = sqs.create_queue(QueueName=f"{name}-dlq", Attributes={"MessageRetentionPeriod": str(dlq_days * DAY)})[
        "QueueUrl"
    ]
    arn = f"arn:aws:sqs:{REGION}:{moto.account}:{name}"
    policy = {
        "Statement": [
            {
                "Effect": "Allow",
                "Principal": {"Service": "s3.amazonaws.com"},
                "Action": "sqs:SendMessage",
                "Resource": arn,
                "Condition": {"ArnEquals": {"aws:SourceArn": f"arn:aws:s3:::{BUCKET}"}},
            }
        ]
    }
    assert dlq
    created = sqs.create_queue(
        QueueName=name,
        Attributes={
            "MessageRetentionPeriod": str(4 * DAY),
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": f"{arn}-dlq", "maxReceiveCount": receives}),
            "Policy": json.dumps(policy),
            **more,
        },
    )
    return str(created["QueueUrl"])


def configure_notification(moto: AwsServer, queue: str, prefix: str = "in/") -> None:
    moto.client("s3").put_bucket_notification_configuration(
        Bucket=BUCKET,
        NotificationConfiguration={
            "QueueConfigurations": [
                {
                    "QueueArn": f"arn:aws:sqs:{REGION}:{moto.account}:{queue}",
                    "Events": ["s3:ObjectCreated:*"],
                    "Filter": {"Key": {"FilterRules": [{"Name": "prefix", "Value": prefix}]}},
                }
            ]
        },
    )


@pytest.fixture
def complete_aws(moto: AwsServer, here: Path) -> AwsServer:
    """Create everything that the app needs."""
    for bucket in (BUCKET, TABLES):
        moto.client("s3").create_bucket(Bucket=bucket)
    for name in ("clicks", "orders"):
        create_queue(moto, name)
    configure_notification(moto, "clicks")
    return moto


def found(penstock: Call, *options: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Return level and text of each finding, by check and by the queue or address at the start of the text."""
    result = penstock("doctor", "--app", "cloudy:app", *options, "--json")
    assert result.exit_code in (0, CHECK_FOUND_PROBLEMS), result.err
    document: list[dict[str, Any]] = json.loads(result.out)
    return {
        (one["check"], one["found"].partition(": ")[0]): (one["level"], one["found"])
        for one in document
        if one["check"].startswith(("aws", "sqs", "s3"))
    }


def test_a_complete_setup_passes_every_check(penstock: Call, complete_aws: AwsServer) -> None:
    everything = found(penstock)
    assert [level for level, _ in everything.values() if level != "ok"] == [], everything
    assert {check for check, _ in everything} == {
        "aws",
        "sqs queue",
        "sqs dead",
        "sqs policy",
        "s3 source",
        "s3 notice",
        "s3 table",
        "aws clock",
    }
    ((_, access),) = [found for (check, _), found in everything.items() if check == "aws"]
    assert f"credentials from env, region {REGION}" in access
    assert "test" not in access, "key and secret must not be shown"
    assert "max_attempts 6 plus 3 for deployments" in everything["sqs dead", "orders"][1]


def test_workers_that_replay_need_a_final_dlq(
    penstock: Call, complete_aws: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_REPLAY", "true")
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_REPLAY_QUEUES", '{"clicks": {"off": true}}')
    ((level, words),) = [result for (check, _), result in found(penstock).items() if check == "sqs second"]
    assert (level, "there is no final DLQ" in words) == (FAILED, True), words
    complete_aws.client("sqs").create_queue(
        QueueName="orders-dead", Attributes={"MessageRetentionPeriod": str(14 * DAY)}
    )
    (result,) = [result for (check, _), result in found(penstock).items() if check == "sqs second"]
    assert (result[0], result[1].endswith("orders-dead, kept there for 14 days")) == ("ok", True), result


def test_doctor_leaves_nothing_behind(penstock: Call, complete_aws: AwsServer) -> None:
    found(penstock)
    assert "Contents" not in complete_aws.client("s3").list_objects_v2(Bucket=TABLES)
    attributes = complete_aws.client("sqs").get_queue_attributes(
        QueueUrl=complete_aws.client("sqs").get_queue_url(QueueName="orders")["QueueUrl"], AttributeNames=["All"]
    )["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == attributes["ApproximateNumberOfMessagesNotVisible"] == "0"


def no_queue(moto: AwsServer) -> None:
    sqs = moto.client("sqs")
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="orders")["QueueUrl"])


def no_dlq(moto: AwsServer) -> None:
    sqs = moto.client("sqs")
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="orders-dlq")["QueueUrl"])


def few_receives(moto: AwsServer) -> None:
    no_queue(moto)
    create_queue(moto, "orders", receives=5)


def short_dlq_retention(moto: AwsServer) -> None:
    sqs = moto.client("sqs")
    sqs.set_queue_attributes(
        QueueUrl=sqs.get_queue_url(QueueName="clicks-dlq")["QueueUrl"], Attributes={"MessageRetentionPeriod": "3600"}
    )


def no_policy(moto: AwsServer) -> None:
    sqs = moto.client("sqs")
    sqs.set_queue_attributes(QueueUrl=sqs.get_queue_url(QueueName="clicks")["QueueUrl"], Attributes={"Policy": ""})


def no_bucket(moto: AwsServer) -> None:
    moto.client("s3").delete_bucket(Bucket=BUCKET)


def other_prefix(moto: AwsServer) -> None:
    configure_notification(moto, "clicks", "elsewhere/")


def no_tables(moto: AwsServer) -> None:
    moto.client("s3").delete_bucket(Bucket=TABLES)


@pytest.mark.parametrize(
    ("break_setup", "check", "level", "words"),
    [
        (no_queue, ("sqs queue", "There is no queue"), FAILED, ""),
        (no_dlq, ("sqs dead", "orders"), FAILED, "it has no dead-letter queue"),
        (few_receives, ("sqs dead", "orders"), FAILED, "before max_attempts is reached"),
        (short_dlq_retention, ("sqs dead", "clicks"), "warning", "kept for 1 hour, no longer than"),
        (no_policy, ("sqs policy", "clicks"), FAILED, "does not allow s3.amazonaws.com to send"),
        (
            no_bucket,
            ("s3 source", "s3://landing/in cannot be listed, which requires s3:ListBucket"),
            FAILED,
            "the bucket does not exist",
        ),
        (other_prefix, ("s3 notice", "s3://landing/in"), FAILED, "nothing below this address"),
        (no_tables, ("s3 table", ""), FAILED, "the bucket does not exist"),
    ],
)
def test_each_broken_part_is_reported(
    penstock: Call,
    complete_aws: AwsServer,
    break_setup: Callable[[AwsServer], None],
    check: tuple[str, str],
    level: str,
    words: str,
) -> None:
    break_setup(complete_aws)
    everything = found(penstock)
    matching = [one for (name, at), one in everything.items() if name == check[0] and at.startswith(check[1])]
    assert (level, True) in [(one[0], words in one[1]) for one in matching], everything


def test_a_test_event_is_received_and_nothing_else_is_changed(penstock: Call, complete_aws: AwsServer) -> None:
    sqs, url = complete_aws.client("sqs"), complete_aws.client("sqs").get_queue_url(QueueName="clicks")["QueueUrl"]
    sqs.purge_queue(QueueUrl=url)  # without the event that the fixture's configuration sent
    before = complete_aws.client("s3").get_bucket_notification_configuration(Bucket=BUCKET)
    level, words = found(penstock, "--try-notification")["s3 test", BUCKET]
    assert (level, "its test event arrived in clicks" in words) == ("ok", True), words
    after = complete_aws.client("s3").get_bucket_notification_configuration(Bucket=BUCKET)
    assert before["QueueConfigurations"] == after["QueueConfigurations"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_waiting_messages_are_not_received_to_find_a_test_event(penstock: Call, complete_aws: AwsServer) -> None:
    sqs, url = complete_aws.client("sqs"), complete_aws.client("sqs").get_queue_url(QueueName="clicks")["QueueUrl"]
    sqs.purge_queue(QueueUrl=url)
    sqs.send_message(QueueUrl=url, MessageBody="theirs")
    level, words = found(penstock, "--try-notification")["s3 test", BUCKET]
    assert (level, "about 1 message waits in clicks" in words) == ("ok", True), words
    raw = sqs.receive_message(QueueUrl=url, AttributeNames=["All"], MaxNumberOfMessages=10)["Messages"]
    assert {one["Attributes"]["ApproximateReceiveCount"] for one in raw} == {"1"}


def test_messages_other_than_the_test_event_are_visible_again_at_once(complete_aws: AwsServer) -> None:
    sqs, url = complete_aws.client("sqs"), complete_aws.client("sqs").get_queue_url(QueueName="clicks")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="theirs")
    others = {"Event": "s3:TestEvent", "Bucket": "another", "Time": datetime.now(UTC).isoformat()}
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps(others))
    soon = datetime.now(UTC) + timedelta(hours=1)  # so that the event of the fixture is older
    with inspecting(complete_aws.aws, clock=SystemClock()) as inspection:
        assert not inspection.await_test_event("clicks", bucket=BUCKET, since=soon, seconds=0.1)
    assert len(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]) == len(["theirs", others, "ours"])


class StrictClient:
    """S3 as documented, unlike moto: it refuses a configuration with a destination that it may not send to."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put_bucket_notification_configuration(self, **options: Any) -> Any:
        assert options["NotificationConfiguration"]["QueueConfigurations"]
        error = {"Code": "InvalidArgument", "Message": "Unable to validate the following destination configurations"}
        raise ClientError({"Error": error}, "PutBucketNotificationConfiguration")


def test_a_destination_that_s3_may_not_send_to_is_reported(
    penstock: Call, complete_aws: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = StrictClient(complete_aws.client("s3"))
    monkeypatch.setattr("penstock.objects.s3_facts.service_client", lambda aws: client)
    everything = found(penstock, "--try-notification")
    ((level, words),) = [one for (check, _), one in everything.items() if check == "s3 test"]
    assert level == FAILED
    assert "places that S3 may send to" in words


class UnconditionalClient:
    """A store that overwrites in spite of conditions."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put_object(self, **options: Any) -> Any:
        options.pop("IfNoneMatch", None)
        return self._client.put_object(**options)


def test_a_store_that_ignores_conditions_is_refused(complete_aws: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = UnconditionalClient(complete_aws.client("s3"))
    monkeypatch.setattr("penstock.objects.s3_facts.service_client", lambda aws: client)
    with pytest.raises(ConfigurationError, match="a table there would lose batches"):
        try_table(S3Address(bucket=TABLES, prefix="tables/clicks"), complete_aws.aws, name="doctor")
    assert "Contents" not in complete_aws.client("s3").list_objects_v2(Bucket=TABLES)


def test_without_an_app_its_queues_are_not_checked(penstock: Call, complete_aws: AwsServer) -> None:
    document = json.loads(penstock("doctor", "--json").out)
    (one,) = [one for one in document if one["check"] == "sqs queue"]
    assert (one["level"], "--app" in one["hint"]) == ("warning", True)


def test_doctor_needs_no_right_to_list_queues(
    penstock: Call, complete_aws: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: SqsQueues) -> None:
        raise ConfigurationError("refused: sqs:ListQueues")

    monkeypatch.setattr(SqsQueues, "names", refuse)
    result = penstock("doctor", "--app", "cloudy:app", "--json")
    by_check = {one["check"]: one for one in result.document}
    assert by_check["broker"]["level"] == "ok"
    assert by_check["app"]["found"].endswith("1 message waits in clicks, and no worker runs"), (
        "the app's queues were read"
    )


def test_an_invalid_address_is_one_finding(penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "sqs://nowhere")
    result = penstock("doctor", "--app", "cloudy:app", "--json")
    assert [one["check"] for one in json.loads(result.out) if one["level"] == FAILED] == ["broker"]


def test_missing_credentials_are_one_finding(
    penstock: Call, complete_aws: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    from penstock.storage import aws

    aws._session.cache_clear()
    try:
        everything = found(penstock)
    finally:
        aws._session.cache_clear()
    assert [(check, level) for (check, _), (level, _) in everything.items()] == [("aws", FAILED)]


def test_an_unreachable_endpoint_is_one_finding(
    penstock: Call, complete_aws: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert [(check, level) for (check, _), (level, _) in found(penstock).items()] == [("aws", FAILED)]


@pytest.mark.parametrize(
    ("code", "words"),
    [("ExpiredToken", "have expired: get new ones"), ("InvalidAccessKeyId", "does not know the access")],
)
def test_refused_credentials_are_one_finding(
    penstock: Call, complete_aws: AwsServer, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    with S3Stub(lambda request: refusal(403, code)) as stub:
        monkeypatch.setenv("PENSTOCK_AWS_ENDPOINT_URL", stub.url)
        everything = found(penstock)
    assert [(check, level) for (check, _), (level, _) in everything.items()] == [("aws", FAILED)]
    assert words in next(iter(everything.values()))[1]


def test_credentials_are_checked_with_sqs_too(complete_aws: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, operation: str, parameters: Any) -> None:
        raise ClientError({"Error": {"Code": codes[-1]}, "ResponseMetadata": {"HTTPStatusCode": 403}}, operation)

    codes: list[str] = []
    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", refuse)
    with inspecting(complete_aws.aws, clock=SystemClock()) as inspection:
        for code, error in (("InvalidClientTokenId", ConfigurationError), ("ExpiredToken", TemporaryError)):
            codes.append(code)
            with pytest.raises(error):
                inspection.check_identity("orders")
        codes.append("AccessDenied")
        inspection.check_identity("orders")


def test_a_prefix_with_foreign_files_is_refused_for_a_table(penstock: Call, complete_aws: AwsServer) -> None:
    complete_aws.client("s3").put_object(Bucket=TABLES, Key="tables/clicks/theirs.parquet", Body=b"theirs")
    ((level, words),) = [one for (check, _), one in found(penstock).items() if check == "s3 table"]
    assert (level, "not empty (it holds theirs.parquet)" in words) == (FAILED, True)
    complete_aws.client("s3").put_object(Bucket=TABLES, Key="tables/clicks/_delta_log/0.json", Body=b"{}")
    ((level, _),) = [one for (check, _), one in found(penstock).items() if check == "s3 table"]
    assert level == "ok"


def test_a_missing_queue_is_reported_with_a_remedy(penstock: Call, complete_aws: AwsServer) -> None:
    no_queue(complete_aws)
    document = json.loads(penstock("doctor", "--app", "cloudy:app", "--json").out)
    (one,) = [one for one in document if one["check"] == "sqs queue" and one["level"] == FAILED]
    assert "penstock init --aws" in one["hint"]


def test_a_local_scope_has_no_aws_resources_to_check(tmp_path: Path) -> None:
    local = {"clicks": table_paths(tmp_path / "clicks")}
    assert resources_of(Scope(settings=Settings.model_construct(), tables=local), None).is_empty


def test_an_ingests_table_is_checked_at_the_endpoint_of_the_settings(
    penstock: Call, complete_aws: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("PENSTOCK_BROKER")
    monkeypatch.setenv("PENSTOCK_AWS_ENDPOINT_URL", complete_aws.url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    where = table_paths("s3://lake/tables/clicks", aws=complete_aws.aws)
    where.state.mkdir(parents=True)
    Ledger.open(f"sqlite:///{where.state / LEDGER_FILE}").close()
    result = penstock("doctor", "--table", "s3://lake/tables/clicks", "--json")
    by_check = {one["check"]: one for one in result.document}
    assert (by_check["s3 table"]["level"], by_check["aws"]["level"]) == ("ok", "ok")
    assert f"at {complete_aws.url}" in by_check["aws"]["found"]


def test_a_missing_package_is_named(penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.aws.find_spec", lambda name: None)
    result = penstock("doctor", "--app", "cloudy:app", "--json")
    failed = {one["check"]: one["found"] for one in json.loads(result.out) if one["level"] == FAILED}
    assert "pip install 'penstock[aws]'" in failed["app"]


@pytest.mark.parametrize(
    ("ahead_seconds", "level", "words"),
    [
        (0.4, FindingLevel.OK, "differ by 0 s"),
        (-60.0, FindingLevel.OK, "differ by 60 s"),
        (61.0, FindingLevel.WARNING, "61 s ahead of"),
        (-90.0, FindingLevel.WARNING, "90 s behind"),
    ],
)
def test_a_clock_difference_has_a_level_and_a_text(ahead_seconds: float, level: FindingLevel, words: str) -> None:
    found = clocks(ahead_seconds)
    assert (found[0], words in found[1]) == (level, True)


@pytest.mark.parametrize(
    ("source", "table"), [("s3://none/in", "s3://lake/t"), ("s3://landing/in", "s3://none/t")], ids=["source", "table"]
)
def test_an_ingest_with_a_missing_bucket_is_a_usage_error(
    penstock: Call, complete_aws: AwsServer, source: str, table: str
) -> None:
    result = penstock("ingest", source, table, "--schema", "id long", "--data-dir", "state")
    assert (result.exit_code, "the bucket does not exist: create it, or correct its name" in result.err) == (
        USAGE,
        True,
    ), result.err


@pytest.mark.parametrize(
    ("source", "table"), [("s3://landing/in", "t"), ("in", "s3://lake/t")], ids=["source", "table"]
)
def test_an_ingest_with_unknown_credentials_is_a_configuration_error(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch, source: str, table: str
) -> None:
    (here / "in").mkdir()
    with S3Stub(lambda request: refusal(403, "InvalidAccessKeyId")) as stub:
        monkeypatch.setenv("PENSTOCK_AWS_ENDPOINT_URL", stub.url)
        result = penstock("ingest", source, table, "--schema", "id long", "--data-dir", "state")
    assert (result.exit_code, "AWS does not know the access key" in result.err) == (CONFIGURATION, True), result.err
