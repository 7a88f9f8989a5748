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
    """An app whose queues, source and table are in AWS."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checks, "_spark_checks", lambda environ, formats: ())
    for name, value in moto.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PENSTOCK_BROKER", f"sqs://{REGION}")
    monkeypatch.setenv("PENSTOCK_ONE_HOST", "true")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "cloudy.py").write_text(APP)
    monkeypatch.delitem(sys.modules, "cloudy", raising=False)
    return tmp_path


def make(moto: AwsServer, name: str, *, receives: int = 20, letters_days: int = 14, **more: str) -> str:
    """A queue, its dead letters, and a policy by which the bucket may send; answers its URL."""
    sqs = moto.client("sqs")
    letters = sqs.create_queue(QueueName=f"{name}-dlq", Attributes={"MessageRetentionPeriod": str(letters_days * DAY)})[
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
    assert letters
    made = sqs.create_queue(
        QueueName=name,
        Attributes={
            "MessageRetentionPeriod": str(4 * DAY),
            "RedrivePolicy": json.dumps({"deadLetterTargetArn": f"{arn}-dlq", "maxReceiveCount": receives}),
            "Policy": json.dumps(policy),
            **more,
        },
    )
    return str(made["QueueUrl"])


def announce(moto: AwsServer, queue: str, prefix: str = "in/") -> None:
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
def whole(moto: AwsServer, here: Path) -> AwsServer:
    """Everything that the app takes."""
    for bucket in (BUCKET, TABLES):
        moto.client("s3").create_bucket(Bucket=bucket)
    for name in ("clicks", "orders"):
        make(moto, name)
    announce(moto, "clicks")
    return moto


def found(penstock: Call, *options: str) -> dict[tuple[str, str], tuple[str, str]]:
    """Return status and text, by check and by the queue or address at the start of the text."""
    said = penstock("doctor", "--app", "cloudy:app", *options, "--json")
    assert said.exit_code in (0, CHECK_FOUND_PROBLEMS), said.err
    document: list[dict[str, Any]] = json.loads(said.out)
    return {
        (one["check"], one["found"].partition(": ")[0]): (one["level"], one["found"])
        for one in document
        if one["check"].startswith(("aws", "sqs", "s3"))
    }


def test_everything_that_is_well(penstock: Call, whole: AwsServer) -> None:
    everything = found(penstock)
    assert [verdict for verdict, _ in everything.values() if verdict != "ok"] == [], everything
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
    assert "test" not in access, "key and secret are nobody's to see"
    assert "max_attempts 6 plus 3 for deployments" in everything["sqs dead", "orders"][1]


def test_workers_that_replay_need_a_final_dlq(
    penstock: Call, whole: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_REPLAY", "true")
    monkeypatch.setenv("PENSTOCK_DEAD_LETTERS_REPLAY_QUEUES", '{"clicks": {"off": true}}')
    ((verdict, words),) = [said for (check, _), said in found(penstock).items() if check == "sqs second"]
    assert (verdict, "there is no final DLQ" in words) == (FAILED, True), words
    whole.client("sqs").create_queue(QueueName="orders-dead", Attributes={"MessageRetentionPeriod": str(14 * DAY)})
    (said,) = [said for (check, _), said in found(penstock).items() if check == "sqs second"]
    assert (said[0], said[1].endswith("orders-dead, kept there for 14 days")) == ("ok", True), said


def test_nothing_is_left_behind(penstock: Call, whole: AwsServer) -> None:
    found(penstock)
    assert "Contents" not in whole.client("s3").list_objects_v2(Bucket=TABLES)
    attributes = whole.client("sqs").get_queue_attributes(
        QueueUrl=whole.client("sqs").get_queue_url(QueueName="orders")["QueueUrl"], AttributeNames=["All"]
    )["Attributes"]
    assert attributes["ApproximateNumberOfMessages"] == attributes["ApproximateNumberOfMessagesNotVisible"] == "0"


def no_queue(moto: AwsServer) -> None:
    sqs = moto.client("sqs")
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="orders")["QueueUrl"])


def no_letters(moto: AwsServer) -> None:
    sqs = moto.client("sqs")
    sqs.delete_queue(QueueUrl=sqs.get_queue_url(QueueName="orders-dlq")["QueueUrl"])


def few_receives(moto: AwsServer) -> None:
    no_queue(moto)
    make(moto, "orders", receives=5)


def short_letters(moto: AwsServer) -> None:
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
    announce(moto, "clicks", "elsewhere/")


def no_tables(moto: AwsServer) -> None:
    moto.client("s3").delete_bucket(Bucket=TABLES)


@pytest.mark.parametrize(
    ("spoil", "check", "verdict", "words"),
    [
        (no_queue, ("sqs queue", "There is no queue"), FAILED, ""),
        (no_letters, ("sqs dead", "orders"), FAILED, "it has no dead-letter queue"),
        (few_receives, ("sqs dead", "orders"), FAILED, "before max_attempts is reached"),
        (short_letters, ("sqs dead", "clicks"), "warning", "kept for 1 hour, no longer than"),
        (no_policy, ("sqs policy", "clicks"), FAILED, "does not allow s3.amazonaws.com to send"),
        (
            no_bucket,
            ("s3 source", "s3://landing/in cannot be listed, which takes s3:ListBucket"),
            FAILED,
            "the bucket does not exist",
        ),
        (other_prefix, ("s3 notice", "s3://landing/in"), FAILED, "nothing below this address"),
        (no_tables, ("s3 table", ""), FAILED, "the bucket does not exist"),
    ],
)
def test_what_is_not_well(
    penstock: Call,
    whole: AwsServer,
    spoil: Callable[[AwsServer], None],
    check: tuple[str, str],
    verdict: str,
    words: str,
) -> None:
    spoil(whole)
    everything = found(penstock)
    matching = [one for (name, at), one in everything.items() if name == check[0] and at.startswith(check[1])]
    assert (verdict, True) in [(one[0], words in one[1]) for one in matching], everything


def test_a_test_event_arrives_and_nothing_else_is_taken(penstock: Call, whole: AwsServer) -> None:
    sqs, url = whole.client("sqs"), whole.client("sqs").get_queue_url(QueueName="clicks")["QueueUrl"]
    sqs.purge_queue(QueueUrl=url)  # of the event that the fixture's configuration sent
    before = whole.client("s3").get_bucket_notification_configuration(Bucket=BUCKET)
    verdict, words = found(penstock, "--try-notification")["s3 test", BUCKET]
    assert (verdict, "its test event arrived in clicks" in words) == ("ok", True), words
    after = whole.client("s3").get_bucket_notification_configuration(Bucket=BUCKET)
    assert before["QueueConfigurations"] == after["QueueConfigurations"]
    assert "Messages" not in sqs.receive_message(QueueUrl=url)


def test_messages_that_wait_are_not_received_to_look_for_a_test_event(penstock: Call, whole: AwsServer) -> None:
    sqs, url = whole.client("sqs"), whole.client("sqs").get_queue_url(QueueName="clicks")["QueueUrl"]
    sqs.purge_queue(QueueUrl=url)
    sqs.send_message(QueueUrl=url, MessageBody="theirs")
    verdict, words = found(penstock, "--try-notification")["s3 test", BUCKET]
    assert (verdict, "about 1 messages wait in clicks" in words) == ("ok", True), words
    raw = sqs.receive_message(QueueUrl=url, AttributeNames=["All"], MaxNumberOfMessages=10)["Messages"]
    assert {one["Attributes"]["ApproximateReceiveCount"] for one in raw} == {"1"}


def test_what_is_no_test_event_of_ours_is_visible_again_at_once(whole: AwsServer) -> None:
    sqs, url = whole.client("sqs"), whole.client("sqs").get_queue_url(QueueName="clicks")["QueueUrl"]
    sqs.send_message(QueueUrl=url, MessageBody="theirs")
    others = {"Event": "s3:TestEvent", "Bucket": "another", "Time": datetime.now(UTC).isoformat()}
    sqs.send_message(QueueUrl=url, MessageBody=json.dumps(others))
    soon = datetime.now(UTC) + timedelta(hours=1)  # so that the event of the fixture is an older one
    with inspecting(whole.aws, clock=SystemClock()) as look:
        assert not look.await_test_event("clicks", bucket=BUCKET, since=soon, seconds=0.1)
    assert len(sqs.receive_message(QueueUrl=url, MaxNumberOfMessages=10)["Messages"]) == len(["theirs", others, "ours"])


class Strict:
    """S3 as it is documented, and moto is not: it refuses a configuration with a place that it may not send to."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put_bucket_notification_configuration(self, **told: Any) -> Any:
        assert told["NotificationConfiguration"]["QueueConfigurations"]
        error = {"Code": "InvalidArgument", "Message": "Unable to validate the following destination configurations"}
        raise ClientError({"Error": error}, "PutBucketNotificationConfiguration")


def test_a_place_that_s3_may_not_send_to_is_reported(
    penstock: Call, whole: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Strict(whole.client("s3"))
    monkeypatch.setattr("penstock.objects.s3_facts.service_client", lambda aws: client)
    everything = found(penstock, "--try-notification")
    ((verdict, words),) = [one for (check, _), one in everything.items() if check == "s3 test"]
    assert verdict == FAILED
    assert "places that S3 may send to" in words


class Careless:
    """A store that overwrites in spite of conditions."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def put_object(self, **told: Any) -> Any:
        told.pop("IfNoneMatch", None)
        return self._client.put_object(**told)


def test_a_store_that_ignores_conditions_is_refused(whole: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Careless(whole.client("s3"))
    monkeypatch.setattr("penstock.objects.s3_facts.service_client", lambda aws: client)
    with pytest.raises(ConfigurationError, match="a table there would lose batches"):
        try_table(S3Address(bucket=TABLES, prefix="tables/clicks"), whole.aws, name="doctor")
    assert "Contents" not in whole.client("s3").list_objects_v2(Bucket=TABLES)


def test_without_an_app_nothing_is_known_of_its_queues(penstock: Call, whole: AwsServer) -> None:
    document = json.loads(penstock("doctor", "--json").out)
    (one,) = [one for one in document if one["check"] == "sqs queue"]
    assert (one["level"], "--app" in one["hint"]) == ("warning", True)


def test_doctor_needs_no_right_to_list_queues(
    penstock: Call, whole: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: SqsQueues) -> None:
        raise ConfigurationError("refused: sqs:ListQueues")

    monkeypatch.setattr(SqsQueues, "names", refuse)
    said = penstock("doctor", "--app", "cloudy:app", "--json")
    by_check = {one["check"]: one for one in said.document}
    assert by_check["broker"]["level"] == "ok"
    assert by_check["app"]["found"].endswith("messages waiting with no worker running: 1"), "it was looked at"


def test_an_address_that_is_none_is_one_finding(penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_BROKER", "sqs://nowhere")
    said = penstock("doctor", "--app", "cloudy:app", "--json")
    assert [one["check"] for one in json.loads(said.out) if one["level"] == FAILED] == ["broker"]


def test_no_credentials_are_one_finding(penstock: Call, whole: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    from penstock.storage import aws

    aws._session.cache_clear()
    try:
        everything = found(penstock)
    finally:
        aws._session.cache_clear()
    assert [(check, verdict) for (check, _), (verdict, _) in everything.items()] == [("aws", FAILED)]


def test_an_endpoint_that_does_not_answer_is_one_finding(
    penstock: Call, whole: AwsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert [(check, verdict) for (check, _), (verdict, _) in found(penstock).items()] == [("aws", FAILED)]


@pytest.mark.parametrize(
    ("code", "words"),
    [("ExpiredToken", "have expired: get new ones"), ("InvalidAccessKeyId", "does not know the access")],
)
def test_keys_that_are_refused_are_one_finding(
    penstock: Call, whole: AwsServer, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    with S3Stub(lambda asked: refusal(403, code)) as stub:
        monkeypatch.setenv("PENSTOCK_AWS_ENDPOINT_URL", stub.url)
        everything = found(penstock)
    assert [(check, verdict) for (check, _), (verdict, _) in everything.items()] == [("aws", FAILED)]
    assert words in next(iter(everything.values()))[1]


def test_keys_that_sqs_alone_is_asked_with_are_tried_too(whole: AwsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Any, operation: str, parameters: Any) -> None:
        raise ClientError({"Error": {"Code": codes[-1]}, "ResponseMetadata": {"HTTPStatusCode": 403}}, operation)

    codes: list[str] = []
    monkeypatch.setattr("botocore.client.BaseClient._make_api_call", refuse)
    with inspecting(whole.aws, clock=SystemClock()) as look:
        for code, error in (("InvalidClientTokenId", ConfigurationError), ("ExpiredToken", TemporaryError)):
            codes.append(code)
            with pytest.raises(error):
                look.check_identity("orders")
        codes.append("AccessDenied")
        look.check_identity("orders")


def test_a_prefix_with_files_of_others_is_no_place_for_a_table(penstock: Call, whole: AwsServer) -> None:
    whole.client("s3").put_object(Bucket=TABLES, Key="tables/clicks/theirs.parquet", Body=b"theirs")
    ((verdict, words),) = [one for (check, _), one in found(penstock).items() if check == "s3 table"]
    assert (verdict, "not empty (it holds theirs.parquet)" in words) == (FAILED, True)
    whole.client("s3").put_object(Bucket=TABLES, Key="tables/clicks/_delta_log/0.json", Body=b"{}")
    ((verdict, _),) = [one for (check, _), one in found(penstock).items() if check == "s3 table"]
    assert verdict == "ok"


def test_a_queue_that_does_not_exist_is_reported_with_what_to_do(penstock: Call, whole: AwsServer) -> None:
    no_queue(whole)
    document = json.loads(penstock("doctor", "--app", "cloudy:app", "--json").out)
    (one,) = [one for one in document if one["check"] == "sqs queue" and one["level"] == FAILED]
    assert "penstock init --aws" in one["hint"]


def test_a_queue_here_and_nothing_in_aws_is_nothing_to_look_at(tmp_path: Path) -> None:
    local = {"clicks": table_paths(tmp_path / "clicks")}
    assert resources_of(Scope(settings=Settings.model_construct(), tables=local), None).is_empty


def test_a_table_of_an_ingest_is_looked_at_where_the_settings_say(
    penstock: Call, whole: AwsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("PENSTOCK_BROKER")
    monkeypatch.setenv("PENSTOCK_AWS_ENDPOINT_URL", whole.url)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    where = table_paths("s3://lake/tables/clicks", aws=whole.aws)
    where.state.mkdir(parents=True)
    Ledger.open(f"sqlite:///{where.state / LEDGER_FILE}").close()
    said = penstock("doctor", "--table", "s3://lake/tables/clicks", "--json")
    by_check = {one["check"]: one for one in said.document}
    assert (by_check["s3 table"]["level"], by_check["aws"]["level"]) == ("ok", "ok")
    assert f"at {whole.url}" in by_check["aws"]["found"]


def test_a_package_that_is_missing_is_named(penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.storage.aws.find_spec", lambda name: None)
    said = penstock("doctor", "--app", "cloudy:app", "--json")
    failed = {one["check"]: one["found"] for one in json.loads(said.out) if one["level"] == FAILED}
    assert "pip install 'penstock[aws]'" in failed["app"]


@pytest.mark.parametrize(
    ("ahead_seconds", "verdict", "words"),
    [
        (0.4, FindingLevel.OK, "differ by 0 s"),
        (-60.0, FindingLevel.OK, "differ by 60 s"),
        (61.0, FindingLevel.WARNING, "61 s ahead of"),
        (-90.0, FindingLevel.WARNING, "90 s behind"),
    ],
)
def test_clocks(ahead_seconds: float, verdict: FindingLevel, words: str) -> None:
    found = clocks(ahead_seconds)
    assert (found[0], words in found[1]) == (verdict, True)


@pytest.mark.parametrize(
    ("source", "table"), [("s3://none/in", "s3://lake/t"), ("s3://landing/in", "s3://none/t")], ids=["source", "table"]
)
def test_a_bucket_that_does_not_exist_is_wrong_usage_of_ingest(
    penstock: Call, whole: AwsServer, source: str, table: str
) -> None:
    said = penstock("ingest", source, table, "--schema", "id long", "--data-dir", "state")
    assert (said.exit_code, "the bucket does not exist: create it, or correct its name" in said.err) == (USAGE, True), (
        said.err
    )


@pytest.mark.parametrize(
    ("source", "table"), [("s3://landing/in", "t"), ("in", "s3://lake/t")], ids=["source", "table"]
)
def test_keys_that_are_unknown_are_settings_at_fault(
    penstock: Call, here: Path, monkeypatch: pytest.MonkeyPatch, source: str, table: str
) -> None:
    (here / "in").mkdir()
    with S3Stub(lambda asked: refusal(403, "InvalidAccessKeyId")) as stub:
        monkeypatch.setenv("PENSTOCK_AWS_ENDPOINT_URL", stub.url)
        said = penstock("ingest", source, table, "--schema", "id long", "--data-dir", "state")
    assert (said.exit_code, "AWS does not know the access key" in said.err) == (CONFIGURATION, True), said.err
